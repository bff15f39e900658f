"""Steps on the firewall: a table is loaded on trial, proved from outside, and only then kept."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator

from fleetctl.errors import BoxError, FleetError, StepError
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.errors import ConnectionLost
from fleetctl.render.names import FIREWALL_FILE, FIREWALL_UNIT
from fleetctl.spec.units import seconds
from fleetctl.steps.base import Context, Record, Step, register

CONNECT_AGAIN = 5.0  # seconds that an engine which could be reached before gets to be reached again


@register
class ApplyFirewall(Step):
    """Load the table on trial, prove that the box and its engines are still reached, keep it, and have it at boot.

    Whether it starts at boot is the matter of another step. While it is on trial the box itself takes it back.
    """

    kind = "apply_firewall"

    def check(self, context: Context, step: PlannedStep) -> bool:
        box = context.box(step)
        paths = step.params["install"]
        if box.call("installed", folder=_folder(context, step), paths=paths, absent=[])["differ"]:
            return False
        seen = box.call("firewall_look", path=FIREWALL_FILE)
        return bool(seen["intact"] and not seen["tried"] and _active(context, step))

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {
            "table": context.box(step).call("firewall_before"),
            "active": _active(context, step),
        }

    def do(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        folder = _folder(context, step)
        self._sources(context, step)
        with _trial(step):
            box.call("firewall_take_back")  # one that a client which was killed has left on trial
            reached = {caller: _reached(context, step, caller) for caller in _callers(step)}
            box.call("firewall_try", path=folder + FIREWALL_FILE, limit=step.params["limit"])
            try:
                self._prove(context, step, reached)
            except FleetError:
                with contextlib.suppress(BoxError):  # then the box does it by itself
                    box.call("firewall_take_back")
                raise
            box.call("firewall_keep", path=folder + FIREWALL_FILE)
        box.call("install", move=context.plan.move, folder=folder, paths=step.params["install"], remove=[])
        box.call("daemon_reload")
        box.call("unit_start", unit=FIREWALL_UNIT, wait=True)
        return {"reached": reached}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box = context.box(step)
        if not prior["active"]:
            box.call("unit_stop", unit=FIREWALL_UNIT)
        box.call("uninstall", move=context.plan.move, paths=step.params["install"])
        box.call("daemon_reload")
        box.call("firewall_restore", script=prior["table"])
        return {}

    def _sources(self, context: Context, step: PlannedStep) -> None:
        """Raises StepError when the proxy would come from an address that the table does not let in."""
        allowed = [ipaddress.ip_network(text) for text in step.params["allowed"]]
        for caller in _callers(step):
            for told in _connects(context, step, caller):
                source = told["source"]
                if source is not None and not any(ipaddress.ip_address(source) in network for network in allowed):
                    raise StepError(
                        f"the proxy on {caller} reaches {told['address']} from {source}, which the firewall of "
                        f"{step.box} would refuse; nothing was loaded",
                        hint=f"write it in fleet.yaml: firewall: {{allow: [{source}]}}",
                    )

    def _prove(self, context: Context, step: PlannedStep, reached: dict[str, list[list[object]]]) -> None:
        """Raises FleetError when a new SSH connection, or the proxy's way to an engine, does not work any more."""
        try:
            context.box(step).prove_reachable()
        except BoxError as error:
            raise StepError(
                f"{step.box}: with the firewall loaded there is no new SSH connection, so it was taken back: "
                f"{error.message}",
                hint=error.hint,
            ) from error
        for caller, targets in reached.items():
            told = context.boxes[caller].call("connects", targets=targets, limit=CONNECT_AGAIN)
            lost = [f"{one['address']} port {one['port']}" for one in told if not one["taken"]]
            if lost:
                raise StepError(
                    f"{step.box}: with the firewall loaded {caller} does not reach {', '.join(lost)} any more, so it "
                    "was taken back"
                )


@register
class RemoveFirewall(Step):
    """No table of fleetctl, and neither its file nor its unit."""

    kind = "remove_firewall"

    def check(self, context: Context, step: PlannedStep) -> bool:
        box = context.box(step)
        told = box.call("installed", folder="", paths=[], absent=step.params["remove"])
        return not told["present"] and not box.call("firewall_look", path=FIREWALL_FILE)["loaded"]

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {"table": context.box(step).call("firewall_before"), "active": _active(context, step)}

    def do(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        box.call("unit_stop", unit=FIREWALL_UNIT)
        box.call("firewall_restore")
        told = box.call("install", move=context.plan.move, folder="", paths=[], remove=step.params["remove"])
        box.call("daemon_reload")
        return dict(told)

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box = context.box(step)
        box.call("uninstall", move=context.plan.move, paths=step.params["remove"])
        box.call("daemon_reload")
        if prior["active"]:
            box.call("unit_start", unit=FIREWALL_UNIT, wait=True)
        box.call("firewall_restore", script=prior["table"])
        return {}


@contextlib.contextmanager
def _trial(step: PlannedStep) -> Iterator[None]:
    """A connection that breaks meanwhile fails the step: a table that may have cut it is not tried again."""
    try:
        yield
    except ConnectionLost as lost:
        raise StepError(
            f"the connection to {lost.box} broke while the firewall of {step.box} was on trial: {lost.message}; "
            f"{step.box} takes it back within {seconds(step.params['limit'])}"
        ) from lost


def _folder(context: Context, step: PlannedStep) -> str:
    return context.generation_files(step.params["generation"])


def _active(context: Context, step: PlannedStep) -> bool:
    state = context.box(step).call("unit_states", units=[FIREWALL_UNIT])[FIREWALL_UNIT]
    return bool(state["active"] == "active")


def _callers(step: PlannedStep) -> list[str]:
    """Other boxes from which a proxy reaches the engines of this one."""
    return [box for box in step.params["callers"] if box != step.box]


def _connects(context: Context, step: PlannedStep, caller: str) -> list[Record]:
    return list(context.boxes[caller].call("connects", targets=step.params["engines"]))


def _reached(context: Context, step: PlannedStep, caller: str) -> list[list[object]]:
    """Address and port of the engines that a box reaches now."""
    return [[told["address"], told["port"]] for told in _connects(context, step, caller) if told["taken"]]
