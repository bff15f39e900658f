"""What an act of somebody else does to the live layout, and how bad that is. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleetctl.doctor.finding import Severity
from fleetctl.doctor.settled import Settled, engine_units
from fleetctl.doctor.units.told import Act

# Directives and verbs by what they do to the unit that they name.
STOPS = {"stop", "kill", "disable", "mask", "rm", "pause", "pkill", "killall", "skill", "Conflicts", "PropagatesStopTo"}
RESTARTS = {"restart", "try-restart", "reload-or-restart", "PropagatesReloadTo"}
STARTS = {"start", "enable", "run", "unpause", "Unit", "Service", "Upholds"}
# They start a unit when their own is started. One of the live layout should run anyway.
PULLS = {"Requires", "BindsTo", "Wants", "OnFailure", "OnSuccess"}

_WORDS = {
    "Conflicts": "cannot run beside {on}: its start stops it (Conflicts=)",
    "PropagatesStopTo": "stops {on} when it stops (PropagatesStopTo=)",
    "PropagatesReloadTo": "reloads {on} when it is reloaded (PropagatesReloadTo=)",
    "Unit": "starts {on} (Unit=)",
    "Service": "starts {on} (Service=)",
    "Upholds": "starts {on} again whenever it is stopped (Upholds=)",
    "run": "starts {on} (run)",
    "rm": "removes {on}",
}


@dataclass(frozen=True)
class Harm:
    """One act, in words, and how bad it is."""

    act: Act
    says: str
    severity: Severity


def _words(act: Act) -> str:
    if act.verb in _WORDS:
        return _WORDS[act.verb].format(on=act.on)
    if act.verb in PULLS:
        when = {"OnFailure": "when it fails", "OnSuccess": "when it ends well"}.get(act.verb, "when it is started")
        return f"starts {act.on} {when} ({act.verb}=)"
    if act.on == "engines":
        return f"ends engines by the name of their program ({act.verb})"
    if act.on.startswith("port "):
        return f"ends whatever listens on {act.on}"
    return f"{act.verb}s {act.on}"


def harms(view: Settled, box: str, acts: Iterable[Act]) -> list[Harm]:
    """The acts that hurt the live layout now or after the next move, the worst first, each said once."""
    found: dict[str, Harm] = {}
    live, engines = set(view.ranks(box)) | set(view.unseen), set(engine_units(view.scene, box))
    superseded = set(view.scene.live.superseded.get(box, ()))
    for act in acts:
        severity = _severity(act, live, engines, superseded)
        if severity is not None:
            harm = Harm(act, _words(act), severity)
            found.setdefault(harm.says, harm)
    order = [Severity.ERROR, Severity.WARNING, Severity.NOTE]
    return sorted(found.values(), key=lambda harm: order.index(harm.severity))


def _severity(act: Act, live: set[str], engines: set[str], superseded: set[str]) -> Severity | None:
    # A container of ours has the name of its unit.
    on = act.on if act.on.endswith((".service", ".timer", ".socket", ".path", ".target")) else f"{act.on}.service"
    starts, stops = act.verb in STARTS | PULLS | RESTARTS, act.verb in STOPS | RESTARTS
    if act.on == "engines" or act.on.startswith("port "):
        return Severity.ERROR if live else None
    if on in superseded:
        return Severity.ERROR if starts else None
    if on in live:
        if act.verb in STOPS:
            return Severity.ERROR
        return Severity.NOTE if act.verb in PULLS else Severity.WARNING
    if on in engines:  # of another layout
        return Severity.ERROR if starts else Severity.WARNING
    # Proxy, guard and the like: to be started with them is what other services may well want.
    return Severity.WARNING if stops else None
