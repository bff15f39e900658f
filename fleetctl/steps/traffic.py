"""Steps on the running proxy: hold new requests, let running ones finish, open an engine."""

from __future__ import annotations

import time

from fleetctl.errors import StepError
from fleetctl.facts.types import ProxyFacts
from fleetctl.plan.types import PlannedStep
from fleetctl.spec.units import seconds
from fleetctl.steps.base import Context, Record, Step, register

PATIENCE = 15.0  # seconds for a proxy that died to be back: systemd starts it again after one


def _look(context: Context, step: PlannedStep) -> ProxyFacts:
    """The running proxy, started when it was stopped. Raises StepError, naming the unit, when it does not come."""
    box, proxy = context.box(step), context.proxy
    deadline = time.monotonic() + PATIENCE
    seen = box.call("proxy_look", path=proxy.admin_socket)
    while seen is None:
        if time.monotonic() > deadline:
            raise StepError(
                f"{step.box}: {proxy.unit} does not run, so that requests can be neither held nor sent anywhere",
                hint=f"systemctl status {proxy.unit} there says why",
            )
        box.call("unit_start", unit=proxy.unit)
        time.sleep(0.2)
        seen = box.call("proxy_look", path=proxy.admin_socket)
    return ProxyFacts.model_validate(seen)


def _servers_up(context: Context, step: PlannedStep) -> set[str]:
    return {name for name, server in _look(context, step).servers.items() if server.up}


@register
class Hold(Step):
    """Drain the old servers: with none left, new requests wait in the proxy."""

    kind = "hold"
    once_a_turn = True

    def check(self, context: Context, step: PlannedStep) -> bool:
        known = _look(context, step).servers
        return all(known[name].closed for name in step.params["servers"] if name in known)

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {"up": sorted(_servers_up(context, step))}

    def do(self, context: Context, step: PlannedStep) -> Record:
        states = dict.fromkeys(step.params["servers"], "drain")
        told = context.box(step).call("proxy_set", path=context.proxy.admin_socket, states=states)
        return {"held_from": told["at"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        seen = _look(context, step)
        # A server that the new configuration has no place for comes back when the earlier one is loaded again.
        names = [name for name in step.params["servers"] if name in seen.servers]
        states = dict.fromkeys(names, "ready")
        # One that was down before is not waited for. Journals of earlier versions do not say which those are.
        await_up = [name for name in names if name in prior.get("up", names)]
        socket = context.proxy.admin_socket
        return dict(context.box(step).call("proxy_set", path=socket, states=states, limit=60, await_up=await_up))


@register
class Drain(Step):
    """Wait for the requests that run on the old servers, then take those servers out altogether."""

    kind = "drain"
    once_a_turn = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        limit = step.params["limit"]
        box = context.box(step)
        told = box.call(
            "proxy_idle",
            path=context.proxy.admin_socket,
            names=step.params["servers"],
            limit=limit,
            on_event=context.progress(step),
        )
        if told["left"]:
            fate = "" if step.params.get("then") == "drain" else " and will be cut"
            context.say(step, {"log": f"{told['left']} requests still run after {seconds(limit)}{fate}"})
        # In `drain` no new request comes either, and what still runs is not in danger of being taken for done.
        states = dict.fromkeys(step.params["servers"], step.params.get("then", "maint"))
        box.call("proxy_set", path=context.proxy.admin_socket, states=states)
        return {"waited": told["waited"], "cut": told["left"]}


@register
class Open(Step):
    """The engine's server takes requests, at the engine's own address and with its own limit."""

    kind = "open"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return step.params["server"] in _servers_up(context, step)

    def do(self, context: Context, step: PlannedStep) -> Record:
        params = step.params
        told = context.box(step).call(
            "proxy_open",
            path=context.proxy.admin_socket,
            name=params["server"],
            address=params["address"],
            port=params["port"],
            maxconn=params["maxconn"],
        )
        return {"open_at": told["at"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        name = step.params["server"]
        seen = context.box(step).call("proxy_look", path=context.proxy.admin_socket)
        if seen is None or name not in seen["servers"]:
            return {}  # the proxy runs its earlier configuration again, or not at all
        if "drain" in step.params:
            self._drain(context, step)
        states = {name: "maint"}
        told = context.box(step).call("proxy_set", path=context.proxy.admin_socket, states=states)
        self._point_back(context, step)
        return dict(told)

    def _point_back(self, context: Context, step: PlannedStep) -> None:
        """The engine of the same name before the move may have had another port, and comes back there."""
        name, plan = step.params["server"], context.plan
        here = next((one for one in plan.release.engines if f"{one.backend}/{one.server}" == name), None)
        before = next((one for one in plan.source.engines if here is not None and one.id == here.id), None)
        if before is not None:
            context.box(step).call(
                "proxy_point",
                path=context.proxy.admin_socket,
                name=name,
                address=before.address,
                port=before.port,
                maxconn=before.concurrency,
            )

    def _drain(self, context: Context, step: PlannedStep) -> None:
        box, name, path = context.box(step), step.params["server"], context.proxy.admin_socket
        box.call("proxy_set", path=path, states={name: "drain"})
        limit = step.params["drain"]
        told = box.call("proxy_idle", path=path, names=[name], limit=limit, on_event=context.progress(step))
        if told["left"]:
            context.say(step, {"log": f"{told['left']} requests still run after {seconds(limit)} and will be cut"})
