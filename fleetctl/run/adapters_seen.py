"""Which LoRA adapters the fleet has, and which of them every copy has."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetctl.facts.adapters import AdapterFacts, AdaptersFacts, LoadedTold
from fleetctl.facts.gather import gather, questions
from fleetctl.facts.types import lead_of
from fleetctl.plan.adapters import behind, engines_asked, newest
from fleetctl.render.release import Release
from fleetctl.run.subject import Subject

LIMIT = 60.0  # seconds that a box has for its answer


@dataclass
class AdaptersSeen:
    """The adapters by model and name; engine id → names it has (None: it does not serve); what is wrong."""

    adapters: dict[str, dict[str, AdapterFacts]]
    engines: dict[str, tuple[str, list[str] | None]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def adapters_seen(subject: Subject) -> AdaptersSeen:
    """Ask boxes and engines. Raises FleetError where a box does not answer."""
    observed = gather(subject.boxes, questions(subject.fleet))
    lead = lead_of(observed, subject.fleet.proxy.lead)
    live = observed[lead].release or Release(fleet=subject.fleet.fleet, layout=None)
    latest = newest(observed)
    found = AdaptersSeen({model: dict(entries) for model, entries in latest.adapters.items()})
    found.problems += [
        f"{box} lacks adapters, or has some that were removed: `fleetctl apply` mends it" for box in behind(observed)
    ]
    told = subject.boxes.each(
        lambda box: LoadedTold.model_validate(
            box.call("adapters_look", engines=engines_asked(live, box.name), timeout=LIMIT)
        )
    )
    for engine in live.all_engines:
        if engine.max_lora_rank is not None:
            loaded = told[engine.head.box].loaded.get(engine.head.unit)
            found.engines[engine.id] = (engine.model, None if loaded is None else sorted(loaded))
            again = (
                f"fleetctl restart {engine.model}"
                if engine in live.engines
                else f"systemctl restart {engine.head.unit}"
            )
            found.problems += _lacks(engine.id, loaded, latest, engine.model, again)
    for box, one in told.items():
        found.problems += [f"{box}: {file} of {name} is not what was sent" for name, file in one.changed.items()]
    return found


def _lacks(engine: str, loaded: dict[str, str] | None, latest: AdaptersFacts, model: str, again: str) -> list[str]:
    if loaded is None:
        return []
    without = [name for name in latest.adapters.get(model, {}) if name not in loaded]
    return [f"{engine} is without {', '.join(sorted(without))}: `{again}` loads them"] if without else []
