"""Requests for the models of a pool through one day, made from what others have published of theirs. Reproducible.

No such trace of many small models on one box is public, so this one is *made*; what it is made from:

- *Popularity* is Zipf's with exponent 1 over the models, and how many requests a model gets goes up and down with the
  hour, for each model at another hour. M. Shahrad et al., "Serverless in the Wild", USENIX ATC 2020 (Azure Functions):
  few functions get nearly all invocations, with a daily pattern.
- *Bursts*: requests come in sessions of heavy-tailed length; gaps within one are Gamma with a coefficient of variation
  of 2. Y. Wang et al., "BurstGPT", arXiv:2401.17644 (Azure OpenAI): gaps fit Gamma, far burstier than Poisson.
- *Timers*: one model gets a batch every quarter of an hour. Shahrad et al. again: 16 % of functions have a timer.
- *Work*: lognormal around a median of the model's own, from 2 to 200 ms, as embedding or a short answer takes.

The exponent, the lengths of sessions and the median times are chosen, not measured.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DAY = 86_400.0
REQUESTS = 20_000
SESSION_GAP = 4.0  # seconds between the requests of a session, on average
SESSION_LENGTH = 12.0  # requests
SWING = 0.8  # of the daily up and down


@dataclass(frozen=True)
class Model:
    """One model of the pool: GiB that it takes, GiB of weights, seconds to start without them, seconds of a request."""

    name: str
    memory: float
    weights: float
    start: float
    work: float


MODELS = (
    Model("embed-s", 1.0, 0.1, 3.0, 0.004),
    Model("embed-m", 2.0, 1.1, 4.0, 0.012),
    Model("embed-l", 6.0, 2.3, 18.0, 0.020),
    Model("rerank-s", 1.5, 0.6, 4.0, 0.010),
    Model("rerank-l", 6.0, 2.3, 18.0, 0.040),
    Model("extract-s", 2.0, 0.8, 5.0, 0.015),
    Model("extract-m", 3.0, 1.8, 6.0, 0.030),
    Model("generate-06", 4.0, 1.5, 20.0, 0.080),
    Model("generate-1", 6.0, 2.5, 22.0, 0.100),
    Model("generate-2", 8.0, 4.1, 24.0, 0.120),
    Model("generate-4", 12.0, 8.0, 28.0, 0.160),
    Model("generate-8", 10.0, 5.7, 35.0, 0.200),  # of 4 bits
)


@dataclass(frozen=True, slots=True)
class Request:
    """When it comes, in seconds of the day; its model; seconds that an engine works on it."""

    at: float
    model: str
    work: float


def make(seed: int, requests: int = REQUESTS) -> list[Request]:
    """The requests of a day, in the order of time."""
    rng = random.Random(f"pool {seed}")
    order = list(MODELS)
    rng.shuffle(order)
    weights = [1 / rank for rank in range(1, len(order) + 1)]
    made: list[Request] = []
    for rank, model in enumerate(order):
        count = requests * weights[rank] / sum(weights)
        times = _timer(rng, count) if rank == len(order) // 2 else _sessions(rng, count)
        made += [Request(round(at, 3), model.name, _work(rng, model)) for at in times]
    return sorted(made, key=lambda one: one.at)


def _sessions(rng: random.Random, count: float) -> Iterator[float]:
    """Times of about ``count`` requests, in sessions that begin more often in some hours than in others."""
    peak = rng.uniform(0, DAY)
    at = 0.0
    rate = count / SESSION_LENGTH / DAY * (1 + SWING)
    while (at := at + rng.expovariate(rate)) < DAY:
        if rng.random() > (1 + SWING * math.cos(2 * math.pi * (at - peak) / DAY)) / (1 + SWING):
            continue
        # Pareto with shape 1.5 has a mean of three times its least; the tail is cut so that no session is the day's.
        length = min(400, round(SESSION_LENGTH / 2.6 * rng.paretovariate(1.5)))
        moment = at
        for _ in range(max(1, length)):
            if moment >= DAY:
                break
            yield moment
            moment += rng.gammavariate(0.25, SESSION_GAP / 0.25)  # shape 1/4: coefficient of variation 2


def _timer(rng: random.Random, count: float) -> Iterator[float]:
    """A batch every quarter of an hour."""
    batches = int(DAY / 900)
    for number in range(batches):
        moment = 900.0 * number + rng.uniform(0, 5)
        for _ in range(max(1, round(count / batches))):
            yield moment
            moment += rng.expovariate(4.0)


def _work(rng: random.Random, model: Model) -> float:
    return round(min(1.0, max(0.002, rng.lognormvariate(math.log(model.work), 0.5))), 4)


def about(seed: int, requests: Sequence[Request]) -> dict[str, object]:
    """The first line of the file."""
    return {
        "about": "made, not recorded: shaped like public observations of other services; see README.md beside it",
        "seed": seed,
        "seconds": DAY,
        "requests": len(requests),
        "fields": {"at": "seconds", "model": "name", "work": "seconds of an engine"},
    }


def write(path: Path, seed: int) -> None:
    """The file: the same for the same seed."""
    requests = make(seed)
    text = io.StringIO()
    print(json.dumps(about(seed, requests)), file=text)
    for one in requests:
        print(json.dumps({"at": one.at, "model": one.model, "work": one.work}), file=text)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def read(path: Path) -> list[Request]:
    """The requests of a file."""
    with gzip.open(path, "rt") as file:
        lines = [json.loads(line) for line in file]
    return [Request(one["at"], one["model"], one["work"]) for one in lines if "about" not in one]
