"""What a finished move measured, from the results of its steps. Pure."""

from __future__ import annotations

from typing import Any

from fleetctl.capacity.logs import parse_log
from fleetctl.plan.types import Plan

Record = dict[str, Any]


def measures(plan: Plan, results: dict[str, Record]) -> Record:
    """What a finished move measured, in seconds: ``gap`` without an engine, ``loads`` by engine, ``stops`` by unit.

    ``cut`` counts requests that still ran when their time was over. ``caches`` has by engine the tokens of cache that
    it logged, and those that were expected (None: not known); ``scores`` what it scored in each suite (of 100), and
    what the build ``before`` it did. ``trials`` has what was seen of engines that started to be measured, and ``tuned``
    by engine what was measured of it under load, where some were.
    """
    by_kind: dict[str, dict[str, Record]] = {}
    for step in plan.steps:
        if step.id in results:
            by_kind.setdefault(step.kind, {})[step.id] = results[step.id]
    params = {step.id: step for step in plan.steps}
    held = [
        r["held_from"] for name, r in by_kind.get("hold", {}).items() if "held_from" in r and params[name].turn is None
    ]
    opened = [r["open_at"] for r in by_kind.get("open", {}).values() if "open_at" in r]
    started: dict[str, float] = {}
    for name, result in by_kind.get("start_engine", {}).items():
        if "at" in result:
            started[params[name].params["unit"] + "@" + params[name].box] = result["at"]
    loads = {}
    ready = {}
    for name, result in by_kind.get("await_ready", {}).items():
        step = params[name]
        for head in step.params["ranks"][:1]:  # its start and its being ready are told by the same clock
            begun = started.get(f"{head['unit']}@{head['box']}")
            if begun is None or "ready_at" not in result:
                continue
            loads[step.params["engine"]] = round(result["ready_at"] - begun, 3)
            ready[step.params["engine"]] = result["ready_at"]
    expected = {sizing.engine: sizing.tokens for sizing in plan.sizings}
    caches = {}
    for name, result in by_kind.get("await_ready", {}).items():
        engine, tokens = params[name].params["engine"], parse_log("\n".join(result.get("said", []))).tokens
        if tokens is not None:
            caches[engine] = {"tokens": tokens, "expected": expected.get(engine)}
    scores = {}
    for name, result in by_kind.get("gate", {}).items():
        before = params[name].params.get("scores", {})
        if result.get("scores"):
            scores[params[name].params["engine"]] = {
                suite: {"score": told["score"], "before": before.get(suite, {}).get("before")}
                for suite, told in result["scores"].items()
            }
    stops = {
        f"{params[name].box}/{params[name].params['unit']}": result["took"]
        for name, result in by_kind.get("stop_engine", {}).items()
        if "took" in result
    }
    # New engines that were open before the old ones were held leave no gap.
    gap = max(0.0, round(min(opened) - max(held), 3)) if held and opened else None
    if any(step.turn is not None for step in plan.steps) and not held:
        gap = 0.0
    trials = {params[name].params["engine"]: result["trial"] for name, result in by_kind.get("trial", {}).items()}
    tuned = {
        params[name].params["engine"]: result
        for kind in ("measure_knee", "try_settings")
        for name, result in by_kind.get(kind, {}).items()
    }
    if (trials or tuned) and plan.gap.expected == 0.0:  # another copy served
        gap = 0.0
    drains = [*by_kind.get("drain", {}).values(), *by_kind.get("drain_worker", {}).values()]
    cut = sum(r.get("cut", 0) for r in drains)
    return {
        "gap": gap,
        "cut": cut,
        "held_from": max(held, default=None),
        "ready": ready,
        "loads": loads,
        "stops": stops,
        "caches": caches,
        "scores": scores,
        **({"trials": trials} if trials else {}),
        **({"tuned": tuned} if tuned else {}),
    }
