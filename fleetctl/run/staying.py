"""A plan of steps that stay in the live generation and touch no layout."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.facts.types import lead_of
from fleetctl.plan.types import Gap, Plan, PlannedStep, Stage
from fleetctl.render.release import Release
from fleetctl.run.planning import Look, new_move_name


def staying(
    fleet: str,
    wanted_lead: str,
    seen: Look,
    operation: str,
    stages: tuple[Stage, ...],
    steps: Iterable[PlannedStep],
    warnings: Iterable[str] = (),
    why: str = "no engine that serves stops",
) -> Plan:
    """The plan of these steps. The layout stays what it is; ``why`` says why there is no gap."""
    lead = lead_of(seen.observed, wanted_lead)
    facts = seen.observed[lead]
    live = facts.release or Release(fleet=fleet, layout=None)
    meta = facts.generations.get(facts.generation or 0) or {}
    return Plan(
        move=new_move_name(),
        fleet=fleet,
        operation=operation,
        playbook=operation,
        from_layout=live.layout,
        from_generation=facts.generation,
        to_layout=live.layout,
        generation=facts.generation,
        previous=meta.get("previous"),
        lead=lead,
        boxes=tuple(seen.observed),
        source=live,
        release=live,
        stages=stages,
        steps=tuple(steps),
        gap=Gap(expected=0.0, why=why),
        warnings=tuple(warnings),
        questions=seen.asked,
        observed={box: facts.digest() for box, facts in seen.observed.items()},
    )
