"""tool-eval-bench: how it is called, and its results as a score. Seen with 3.0.0."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleetctl.evals.adapter import Adapter
from fleetctl.evals.judge import Called, Reply
from fleetctl.evals.score import Outcome, Score

RESULTS = "results.json"
FULL = 2  # points of a scenario that is solved
LEAST = 95.0  # percent of the scenarios that have to be graded: a score of part of a suite cannot be compared


def _command(what: str, model: str, url: str, folder: Path, concurrency: int, seed: int) -> list[str]:
    """Its arguments: the standard scenarios, in which it fixes temperature and date itself."""
    return [
        "run",
        f"--base-url={url}",
        f"--model={model}",
        f"--parallel={concurrency}",
        f"--seed={seed}",
        f"--json-file={folder / RESULTS}",
        "--no-probe-engine",
        "--no-warmup",
        "--no-live",
    ]


def _environment(url: str, key: str) -> Mapping[str, str]:
    """The key."""
    return {"TOOL_EVAL_API_KEY": key}


def _results(folder: Path) -> Score:
    """Its own score before rounding, per category. ValueError when too little of the suite was graded."""
    scores = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["scores"]
    rate = float(scores.get("completion_rate", 100.0))
    if rate < LEAST:
        left_out = scores.get("excluded_scenarios") or []
        raise ValueError(f"{rate:.0f} % of its scenarios were graded; left out: {', '.join(left_out)[:200]}")
    return Score(
        100 * float(scores["total_points"]) / float(scores["max_points"]),
        {str(one["label"]): 100 * one["earned"] / one["max"] for one in scores["category_scores"] if one["max"]},
        tuple(_outcome(one) for one in scores["scenario_results"]),
    )


def _outcome(told: dict[str, Any]) -> Outcome:
    made = [str(call).removesuffix(")").partition("(") for call in told.get("tool_calls_made") or ()]
    right = told["points"] >= FULL
    why = "" if right else f"{told['summary']} Expected: {told['expected_behavior']}"
    return Outcome(
        str(told["scenario_id"]),
        "",
        told["points"] / FULL,
        why,
        Reply(calls=tuple(Called(name, arguments) for name, _, arguments in made)),
    )


ADAPTER = Adapter("tool-eval-bench", "tool-eval-bench", _command, _environment, _results)
