"""What a finished move measured, from the results of its steps. Pure."""

from __future__ import annotations

from typing import Any

from fleetctl.plan.types import Plan

Record = dict[str, Any]


def measures(plan: Plan, results: dict[str, Record]) -> Record:
    """What a finished move measured, in seconds: ``gap`` without an engine, ``loads`` by engine, ``stops`` by unit."""
    by_kind: dict[str, dict[str, Record]] = {}
    for step in plan.steps:
        if step.id in results:
            by_kind.setdefault(step.kind, {})[step.id] = results[step.id]
    params = {step.id: step for step in plan.steps}
    held = [r["held_from"] for r in by_kind.get("hold", {}).values() if "held_from" in r]
    opened = [r["open_at"] for r in by_kind.get("open", {}).values() if "open_at" in r]
    started: dict[str, float] = {}
    for name, result in by_kind.get("start_engine", {}).items():
        if "at" in result:
            started[params[name].params["unit"] + "@" + params[name].box] = result["at"]
    loads = {}
    ready = {}
    for name, result in by_kind.get("await_ready", {}).items():
        step = params[name]
        begun = [started.get(f"{rank['unit']}@{rank['box']}") for rank in step.params["ranks"]]
        times = [at for at in begun if at is not None]
        if times and "ready_at" in result:
            loads[step.params["engine"]] = round(result["ready_at"] - min(times), 3)
            ready[step.params["engine"]] = result["ready_at"]
    stops = {
        f"{params[name].box}/{params[name].params['unit']}": result["took"]
        for name, result in by_kind.get("stop_engine", {}).items()
        if "took" in result
    }
    gap = round(min(opened) - max(held), 3) if held and opened else None
    return {"gap": gap, "held_from": max(held, default=None), "ready": ready, "loads": loads, "stops": stops}
