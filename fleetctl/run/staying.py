"""A plan of steps that stay in the live generation and touch no layout."""

from __future__ import annotations

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
    steps: tuple[PlannedStep, ...],
    warnings: tuple[str, ...] = (),
) -> Plan:
    """The plan of these steps. The layout stays what it is, and no engine that serves stops."""
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
        steps=steps,
        gap=Gap(expected=0.0, why="no engine that serves stops"),
        warnings=warnings,
        questions=seen.asked,
        observed={box: facts.digest() for box, facts in seen.observed.items()},
    )
