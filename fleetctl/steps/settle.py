"""Last steps: what starts at boot, the proxy's file, and which generation is current."""

from __future__ import annotations

from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, register
from fleetctl.steps.prepare import reload_or_start

GENERATIONS_KEPT = 20


@register
class EnableUnits(Step):
    """Enablement for the next boot: the units of this layout and only those."""

    kind = "enable_units"

    def prior(self, context: Context, step: PlannedStep) -> Record:
        units = [*step.params["enable"], *step.params["disable"]]
        states = context.box(step).call("unit_states", units=units)
        return {"enabled": {unit: state["enabled"] for unit, state in states.items()}}

    def do(self, context: Context, step: PlannedStep) -> Record:
        context.box(step).call("unit_enable", enable=step.params["enable"], disable=step.params["disable"])
        return {}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        was = prior["enabled"]
        enable = [unit for unit, state in was.items() if state == "enabled"]
        disable = [unit for unit, state in was.items() if state != "enabled"]
        context.box(step).call("unit_enable", enable=enable, disable=disable)
        return {}


@register
class RemoveFiles(Step):
    """Files of the layout that was left are removed; they stay in its generation."""

    kind = "remove_files"

    def check(self, context: Context, step: PlannedStep) -> bool:
        told = context.box(step).call("installed", folder="", paths=[], absent=step.params["remove"])
        return not told["present"]

    def do(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        told = box.call("install", move=context.plan.move, folder="", paths=[], remove=step.params["remove"])
        box.call("daemon_reload")
        return dict(told)

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box = context.box(step)
        told = box.call("uninstall", move=context.plan.move, paths=step.params["remove"])
        box.call("daemon_reload")
        return dict(told)


@register
class SettleProxy(Step):
    """The proxy's own file says the new layout, so that it comes back right; reloaded only when it has to be."""

    kind = "settle_proxy"

    def prior(self, context: Context, step: PlannedStep) -> Record:
        state = context.box(step).call("unit_states", units=[context.proxy.unit])[context.proxy.unit]
        return {"enabled": state["enabled"], "active": state["active"]}

    def do(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        proxy = context.proxy
        if "leave" in step.params:
            box.call("unit_enable", enable=[], disable=[proxy.unit])
            box.call("unit_stop", unit=proxy.unit)
            box.call("install", move=context.plan.move, folder="", paths=[], remove=step.params["leave"])
            box.call("daemon_reload")
            return {"proxy": "removed"}
        told = box.call(
            "install",
            move=context.plan.move,
            folder=context.generation_files(step.params["generation"]),
            paths=step.params["install"],
            remove=[],
        )
        if proxy_unit_changed := any(path.endswith(".service") for path in told["changed"]):
            box.call("daemon_reload")
        seen = box.call("proxy_look", path=proxy.admin_socket)
        others = [path for path in told["changed"] if not path.endswith("/haproxy.cfg")]
        if seen is None or seen["description"] != step.params["description"] or others:
            reload_or_start(box, proxy)
            box.call("proxy_await", path=proxy.admin_socket, description=step.params["description"], limit=15)
        # Every server, not only those of this layout: a proxy that was restarted meanwhile has others up.
        up = {f"{engine.backend}/{engine.server}" for engine in context.plan.release.engines}
        up |= {f"{backend}/{server.name}" for backend, server in context.plan.release.gateways()}
        known = [f"{backend.name}/{server.name}" for backend in proxy.backends for server in backend.servers]
        states = {name: "ready" if name in up else "maint" for name in known}
        box.call("proxy_set", path=proxy.admin_socket, states=states, limit=15)
        # Only now does nothing use what the new configuration has no place for, such as keys.
        box.call("install", move=context.plan.move, folder="", paths=[], remove=step.params["remove"])
        return {"changed": told["changed"], "daemon_reload": proxy_unit_changed}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box = context.box(step)
        proxy = context.proxy
        paths = step.params.get("leave") or [*step.params["install"], *step.params["remove"]]
        box.call("uninstall", move=context.plan.move, paths=paths)
        if any(other.kind == "load_proxy" and other.box == step.box for other in context.plan.steps):
            # These are the files from before the move, which the running proxy gets when that step is undone: until
            # then it has to know the servers of both layouts.
            return {}
        box.call("daemon_reload")
        # Otherwise enablement is the matter of another step, which may have set it before this one looked.
        if "leave" in step.params and prior["enabled"] == "enabled":
            box.call("unit_enable", enable=[proxy.unit], disable=[])
        if prior["active"] == "active":
            reload_or_start(box, proxy)
        return {}


@register
class MakeCurrent(Step):
    """The box is in the new generation from here on."""

    kind = "make_current"

    def prior(self, context: Context, step: PlannedStep) -> Record:
        recorded = context.box(step).call("superseded_read")
        return {"generation": context.plan.from_generation, "superseded": recorded}

    def do(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        told = box.call("generation_current", number=step.params["generation"])
        kept = context.plan.release.superseded.get(step.box, ())
        # Undo needs the generation that is left, and the next rollback the one before: both stay whatever their age.
        plan = context.plan
        needed = [n for n in (plan.from_generation, plan.generation, plan.previous) if n is not None]
        box.call("generations_prune", keep=GENERATIONS_KEPT, protect=needed)
        if context.plan.release.programs or context.plan.source.programs:
            box.call("programs_prune")
        recorded = box.call("superseded_read")
        box.call("superseded_forget", units=[unit for unit in recorded if unit not in kept])
        return {"before": told["before"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box = context.box(step)
        box.call("generation_current", number=prior["generation"])
        box.call("superseded_record", states=prior["superseded"])
        return {}
