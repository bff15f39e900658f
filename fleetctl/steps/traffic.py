"""Steps on the running proxy: hold new requests, let running ones finish, open an engine."""

from __future__ import annotations

from fleetctl.plan.types import PlannedStep
from fleetctl.spec.units import seconds
from fleetctl.steps.base import Context, Record, Step, register


def _servers_up(context: Context, step: PlannedStep) -> set[str]:
    seen = context.box(step).call("proxy_look", path=context.proxy.admin_socket) or {"servers": {}}
    return {
        name for name, server in seen["servers"].items() if server["status"].startswith("UP") and server["weight"] > 0
    }


@register
class Hold(Step):
    """Drain the old servers: with none left, new requests wait in the proxy."""

    kind = "hold"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return not _servers_up(context, step) & set(step.params["servers"])

    def do(self, context: Context, step: PlannedStep) -> Record:
        states = dict.fromkeys(step.params["servers"], "drain")
        told = context.box(step).call("proxy_set", path=context.proxy.admin_socket, states=states)
        return {"held_from": told["at"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        seen = context.box(step).call("proxy_look", path=context.proxy.admin_socket)
        # A server that the new configuration has no place for comes back when the earlier one is loaded again.
        names = [name for name in step.params["servers"] if seen is None or name in seen["servers"]]
        states = dict.fromkeys(names, "ready")
        return dict(context.box(step).call("proxy_set", path=context.proxy.admin_socket, states=states, limit=60))


@register
class Drain(Step):
    """Wait for the requests that run on the old servers, then take those servers out altogether."""

    kind = "drain"

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
            context.say(step, {"log": f"{told['left']} requests still run after {seconds(limit)} and will be cut"})
        states = dict.fromkeys(step.params["servers"], "maint")
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
        states = {name: "maint"}
        return dict(context.box(step).call("proxy_set", path=context.proxy.admin_socket, states=states))
