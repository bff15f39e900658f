#!/usr/bin/env python3
"""Which models of a pool are loaded: fleetctl's policy beside LRU, LFU and GreedyDual-Size-Frequency.

``python3 bench/pool_residency.py``, anywhere, as any user. It is a simulation (bench/_residency.py): the machine does
not matter. 12 models from 1 to 12 GiB, memory for five of their mean size. The trace is made, not recorded
(bench/traces/README.md says of what), and played to all policies with the same times of loading.

- *Hit*: a request whose model is loaded when it comes. *Wait*: from its coming until an engine begins with it.
- The policies of caches load what waits at once, in the order of its requests, and evict only what is idle.
- ``--tune`` searches the policy's constants (``Rules``) on other seeds than those that are reported.
- The file is seed 8; other seeds show that it is no exception, and other boxes where the policy is worth more or less:
  memory for three and for eight models, and loads that take a fifth of the time.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from _common import CHECKOUT, BenchError, Figure, at_least, at_most, print_figures, say
from _pool_trace import MODELS, Request, make, read, write
from _residency import Box, Gdsf, Outcome, Policy, lfu, lru, ours

from fleetctl.pool.residency import RULES, Demand

TRACE = CHECKOUT / "bench/traces/pool.jsonl.gz"
SEED = 8
OTHERS = range(1, 7)
TUNED_ON = range(101, 109)
MEAN = statistics.fmean(model.memory for model in MODELS)
FOR_EVER = 1e12
NOTHING = 0.01  # seconds; less is no wait


@dataclass(frozen=True)
class Boxlike:
    """Memory, in models of the mean size, and how long loads take beside those of the usual box."""

    room: float
    pace: float

    def __str__(self) -> str:
        return f"room_for_{self.room:g}{'' if self.pace == 1 else '_quick_loads'}"


USUAL = Boxlike(5, 1)
OTHER_BOXES = (Boxlike(3, 1), Boxlike(3, 0.2), Boxlike(5, 0.2), Boxlike(8, 1), Boxlike(8, 0.2))
PAIR = ("ours", "lru")
OTHER_SEEDS = (11, 12, 13, 14)  # for those
POLICIES: dict[str, tuple[Callable[[], Policy], float]] = {
    "ours": (ours, Demand().half_life),
    "lru": (lru, FOR_EVER),
    "lfu": (lfu, FOR_EVER),
    "gdsf": (Gdsf, FOR_EVER),
}
"""Name → the policy, and after how many seconds a request counts half in ``demand``."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the policy of residency beside those of caches.")
    parser.add_argument("--make", action="store_true", help="write the trace anew, and end")
    parser.add_argument("--tune", type=int, metavar="N", help="try N choices of constants, and end")
    parser.add_argument("--trace", type=Path, default=TRACE, help="another trace")
    options = parser.parse_args()
    try:
        if options.make:
            TRACE.parent.mkdir(exist_ok=True)
            write(TRACE, SEED)
            say(f"{TRACE} is written")
        elif options.tune is not None:
            tune(options.tune)
        else:
            print_figures("pool_residency", figures(read(options.trace)))
    except (BenchError, OSError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


def played(requests: Sequence[Request], seed: int, policy: Policy, half_life: float, box: Boxlike = USUAL) -> Outcome:
    """The requests through one box."""
    models = [replace(one, start=one.start * box.pace, weights=one.weights * box.pace) for one in MODELS]
    outcome = Box(models, box.room * MEAN, policy, seed, half_life).run(requests)
    if len(outcome.waits) != len(requests):
        raise BenchError(f"{len(requests) - len(outcome.waits)} requests were never served")
    return outcome


def figures(trace: Sequence[Request]) -> dict[str, Figure]:
    """Of the trace every policy, and of other seeds how far ours is from LRU."""
    found: dict[str, Figure] = {}
    outcomes = {name: played(trace, SEED, make_policy(), half) for name, (make_policy, half) in POLICIES.items()}
    for name, one in outcomes.items():
        say(f"{name:5} {told(one)}")
        found |= {
            f"{name}_hit_rate": Figure(round(100 * one.hit_rate, 2), "%"),
            f"{name}_wait_p95": Figure(round(one.wait(0.95), 2), "s"),
            f"{name}_wait_p99": Figure(round(one.wait(0.99), 2), "s"),
            f"{name}_wait_mean": Figure(round(one.mean, 2), "s"),
            f"{name}_loads": Figure(one.loads, "loads"),
        }
    found |= beside(outcomes["ours"], outcomes["lru"])
    gains: list[dict[str, Figure]] = []
    for seed in OTHERS:
        requests = make(seed)
        of_seed = [played(requests, seed, POLICIES[name][0](), POLICIES[name][1]) for name in PAIR]
        say(f"seed {seed}: ours {told(of_seed[0])}; lru {told(of_seed[1])}")
        gains.append(beside(*of_seed))
    for key in gains[0]:
        values = [one[key].value for one in gains]
        found[f"other_seeds_{key}_mean"] = Figure(round(statistics.fmean(values), 3), gains[0][key].unit)
        worst = min(values) if key.startswith("hit") else max(values)
        found[f"other_seeds_{key}_worst"] = Figure(round(worst, 3), gains[0][key].unit)
    for box in OTHER_BOXES:
        found |= on_another(box)
    return found


def on_another(box: Boxlike) -> dict[str, Figure]:
    """Means of ours beside LRU, where memory or loads are other than usual."""
    gains: list[dict[str, Figure]] = []
    for seed in OTHER_SEEDS:
        requests = make(seed)
        gains.append(beside(*(played(requests, seed, POLICIES[name][0](), POLICIES[name][1], box) for name in PAIR)))
    means = {
        key: Figure(round(statistics.fmean(one[key].value for one in gains), 3), gains[0][key].unit) for key in gains[0]
    }
    say(f"{box}: " + ", ".join(f"{key} {figure.value}" for key, figure in means.items()))
    return {f"{box}_{key}": figure for key, figure in means.items()}


def beside(mine: Outcome, other: Outcome) -> dict[str, Figure]:
    """Ours beside LRU: better hit rate and no longer waits are the goals."""
    return {
        "hit_rate_beside_lru": at_least(100 * (mine.hit_rate - other.hit_rate), 0, "points"),
        "wait_p95_beside_lru": at_most(mine.wait(0.95) / max(other.wait(0.95), NOTHING), 1, "x"),
        "wait_p99_beside_lru": at_most(mine.wait(0.99) / max(other.wait(0.99), NOTHING), 1, "x"),
        "wait_mean_beside_lru": at_most(mine.mean / other.mean, 1, "x"),
        "loads_beside_lru": Figure(round(mine.loads / other.loads, 3), "x"),
    }


def told(one: Outcome) -> str:
    """An outcome in words."""
    waits = f"waits {one.wait(0.95):.1f} s (p95), {one.wait(0.99):.1f} s (p99), {one.mean:.2f} s (mean)"
    return f"hit rate {one.hit_rate:.2%}, {waits}, {max(one.waits):.0f} s (longest), {one.loads} loads"


# Tuning --------------------------------------------------------------------------------------------------------------

HALF_LIFE = "half_life"  # of Demand; the others are Rules
CHOICES: dict[str, Sequence[float]] = {
    "loads_at_once": (1, 2, 3, 4),
    "stay": (0.0, 1.0, 2.0, 5.0),
    "stay_loads": (0.0, 0.1, 0.25, 0.5),
    "horizon": (1.0, 3.0, 10.0, 30.0, 60.0),
    "recent": (1.0, 3.0, 5.0, 10.0, 20.0),
    "busy": (5.0, 10.0, 20.0, 40.0),
    "starving": (20.0, 40.0, 60.0),
    "eager": (0.0, 2.0, 5.0, 10.0, 20.0, 40.0),
    HALF_LIFE: (900.0, 1800.0, 3600.0, 7200.0),
}


def tune(tries: int) -> None:
    """Try constants at random, then around the best; the score is the mean of three ratios to LRU, less is better."""
    rng = random.Random(1)
    traces = {seed: make(seed) for seed in TUNED_ON}
    plain = {seed: played(trace, seed, lru(), FOR_EVER) for seed, trace in traces.items()}
    say("lru: " + "; ".join(told(one) for one in plain.values()))

    def score(chosen: dict[str, float]) -> float:
        rules = replace(RULES, **{key: value for key, value in chosen.items() if key != HALF_LIFE})
        ratios = []
        for seed, trace in traces.items():
            mine, other = played(trace, seed, ours(rules), chosen[HALF_LIFE]), plain[seed]
            ratios.append((1 - mine.hit_rate) / (1 - other.hit_rate))
            ratios += [mine.wait(share) / other.wait(share) for share in (0.95, 0.99)]
        return statistics.fmean(ratios)

    best = {key: Demand().half_life if key == HALF_LIFE else getattr(RULES, key) for key in CHOICES}
    lowest = score(best)
    say(f"as it is: {lowest:.4f}")
    for number in range(tries):
        keys = list(CHOICES) if number < tries // 3 else rng.sample(list(CHOICES), 2)
        chosen = {**best, **{key: rng.choice(CHOICES[key]) for key in keys}}
        found = score(chosen)
        if found < lowest:
            best, lowest = chosen, found
            say(f"{number}: {found:.4f} {best}")
    print(f"{lowest:.4f} {best}")


if __name__ == "__main__":
    sys.exit(main())
