"""The step on the floating address: keepalived on the boxes of the proxy, and on no others."""

from __future__ import annotations

import time
from typing import Any

from fleetctl.errors import StepError
from fleetctl.plan.types import PlannedStep
from fleetctl.render.release import ProxyConfig
from fleetctl.steps.base import Context, Record, Step, log_of, register
from fleetctl.steps.prepare import first_lines

LIMIT = 20.0  # seconds until one of the boxes has the address: an election takes one or two


@register
class SettleAddress(Step):
    """keepalived runs with the files of the generation and the address is on a box; or it is gone from this one."""

    kind = "settle_address"

    def prior(self, context: Context, step: PlannedStep) -> Record:
        unit = context.proxy.vrrp_unit
        state = context.box(step).call("unit_states", units=[unit])[unit]
        return {"active": state["active"], "enabled": state["enabled"]}

    def do(self, context: Context, step: PlannedStep) -> Record:
        box, proxy = context.box(step), context.proxy
        if "leave" in step.params:
            box.call("unit_enable", enable=[], disable=[proxy.vrrp_unit])
            box.call("unit_stop", unit=proxy.vrrp_unit)
            box.call("install", move=context.plan.move, folder="", paths=[], remove=step.params["leave"])
            box.call("daemon_reload")
            return {"address": "given up"}
        told = box.call(
            "install",
            move=context.plan.move,
            folder=context.generation_files(step.params["generation"]),
            paths=step.params["install"],
            remove=[],
        )
        box.call("daemon_reload")
        box.call("unit_enable", enable=[proxy.vrrp_unit], disable=[])
        _run(box, proxy, changed=bool(told["changed"]))
        return {"changed": told["changed"], "on": _await_holder(context, step)}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box, unit = context.box(step), context.proxy.vrrp_unit
        paths = step.params.get("leave") or step.params["install"]
        if prior["active"] != "active":
            box.call("unit_stop", unit=unit)
        if "leave" not in step.params and prior["enabled"] != "enabled":
            box.call("unit_enable", enable=[], disable=[unit])
        told = box.call("uninstall", move=context.plan.move, paths=paths)
        box.call("daemon_reload")
        if "leave" in step.params and prior["enabled"] == "enabled":
            box.call("unit_enable", enable=[unit], disable=[])
        if prior["active"] == "active":
            _run(box, context.proxy, changed=bool(told["restored"]))
        return {}


def _run(box: Any, proxy: ProxyConfig, *, changed: bool) -> None:
    """keepalived runs what is in its file. A reload leaves the address where it is."""
    state = box.call("unit_states", units=[proxy.vrrp_unit])[proxy.vrrp_unit]
    if state["active"] != "active":
        box.call("unit_start", unit=proxy.vrrp_unit)
    elif changed:
        ran = box.run("systemctl", "reload", proxy.vrrp_unit, timeout=60, check=False)
        if ran.rc != 0:
            raise StepError(f"{box.name}: {proxy.vrrp_unit} did not reload: {first_lines(ran.err)}")


def _await_holder(context: Context, step: PlannedStep) -> str:
    """The box of the proxy that has the address. Raises StepError when none gets it."""
    proxy = context.proxy
    assert proxy.floating is not None
    address, deadline = proxy.floating.address, time.monotonic() + LIMIT
    while True:
        for name in proxy.boxes:
            if address in context.boxes[name].call("addresses"):
                return name
        if time.monotonic() > deadline:
            raise StepError(
                f"no box has taken the address {address} within {LIMIT:.0f} s",
                hint=log_of(context, step.box, proxy.vrrp_unit),
            )
        time.sleep(0.2)
