"""inspect-ai: how one of its tasks is run, and its log as a score. Seen with 0.3.285."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleetctl.evals.adapter import Adapter
from fleetctl.evals.judge import Reply
from fleetctl.evals.score import Outcome, Score

LOGS = "logs"
SERVICE = "fleetctl"  # by which it finds address and key in its environment
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def _command(what: str, model: str, url: str, folder: Path, concurrency: int, seed: int) -> list[str]:
    """Its arguments. A task is one of an installed package, or a file (FILE.py or FILE.py@NAME) where it runs."""
    return [
        "eval",
        what.rpartition("/")[2] if file_of(what) else what,
        f"--model=openai-api/{SERVICE}/{model}",
        f"--max-connections={concurrency}",
        f"--seed={seed}",
        "--temperature=0",
        "--max-retries=2",
        "--log-format=json",
        f"--log-dir={folder / LOGS}",
        "--display=plain",  # without any display it says nothing of what is wrong either
        "--ctl-server=false",
    ]


def file_of(what: str) -> Path | None:
    """The file that has the task, where it is one. It runs beside that, for it takes no path from elsewhere."""
    file = Path(what.partition("@")[0])
    return file if file.is_file() else None


def _environment(url: str, key: str) -> Mapping[str, str]:
    """Address and key, as its provider for OpenAI-compatible servers looks for them."""
    return {f"{SERVICE.upper()}_BASE_URL": f"{url}/v1", f"{SERVICE.upper()}_API_KEY": key}


def _results(folder: Path) -> Score:
    """The metric that the task has for its headline, per scorer. ValueError for a run that failed."""
    logs = sorted((folder / LOGS).glob("*.json"))
    if not logs:
        raise ValueError("it wrote no log")
    log = json.loads(logs[-1].read_text(encoding="utf-8"))
    if log["status"] != "success":
        raise ValueError(str((log.get("error") or {}).get("message") or log["status"])[:300])
    scores = log["results"]["scores"]
    if not scores:
        raise ValueError("the task has no scorer")
    scorers = {str(one["name"]): _metric(one["metrics"]) for one in scores}
    first = (log["results"].get("headline") or {}).get("score") or next(iter(scorers))
    total = scorers[first if first in scorers else next(iter(scorers))]
    wrong = [name for name, value in scorers.items() if not 0 <= value <= 1]
    if wrong:
        raise ValueError(f"what {wrong[0]} measures is not between 0 and 1")
    categories = {name: 100 * value for name, value in scorers.items()} if len(scorers) > 1 else {}
    return Score(100 * total, categories, tuple(_outcome(one, first) for one in log.get("samples") or ()))


def _metric(metrics: dict[str, Any]) -> float:
    """Its accuracy, or its mean, or the first."""
    chosen = next((metrics[name] for name in ("accuracy", "mean") if name in metrics), None)
    return float((chosen or next(iter(metrics.values())))["value"])


def _outcome(sample: dict[str, Any], scorer: str) -> Outcome:
    scores = sample.get("scores") or {}
    told: dict[str, Any] = scores.get(scorer) or next(iter(scores.values()), {})
    value = told.get("value")
    points = (
        _LETTERS.get(value, 0.0) if isinstance(value, str) else float(value) if isinstance(value, int | float) else 0.0
    )
    target = sample.get("target")
    why = "" if points >= 1 else f"scored {value}; wanted {str(target)[:120]}"
    return Outcome(str(sample.get("id")), "", points, why, Reply(text=str(told.get("answer") or "")))


ADAPTER = Adapter("inspect", "inspect-ai openai", _command, _environment, _results, file_of)
