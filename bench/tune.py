#!/usr/bin/env python3
"""What `fleetctl tune` finds beside what is true, and what `fleetctl bench` measures beside guidellm.

``python3 bench/tune.py``, on Linux, as any user. Engines are the stand-in, which makes tokens at the rate of a curve.

- *Knee*: two engines with the curves of an operator's notes (short prompts rise to 16 at once; long ones have their top
  at 8 and fall to 87 tokens/s at 16) and five with generated ones. Before every measurement the engine's speed is
  changed by 5 % (standard deviation), as noise. The best concurrency of a curve is the smallest that gives all of its
  most (99.5 %). A full sweep measures each concurrency that the search could have measured, three times, as noise of
  5 % needs; its requests are those of the same time at each.
- *guidellm*: the same stand-in, the same concurrency, lengths and time, in turn.
- *Generator*: streamed answers of four tokens, from a server that does nothing else, on one core.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _common import (
    CHECKOUT,
    BenchError,
    Figure,
    at_least,
    at_most,
    environment,
    make_venv,
    print_figures,
    run,
    say,
    say_load,
)
from _engines import MODEL, Engine, free_port, standin
from _serving import answers, serving

from fleetctl.bench.endpoint import parse_endpoint
from fleetctl.bench.knee import Answer, Point, Probe, Range, ladder, steps_apart
from fleetctl.bench.mix import Lengths, Mix
from fleetctl.bench.target import Bench
from fleetctl.bench.tune import search, warm_up_for
from fleetctl.errors import FleetError

SPEED = 20.0  # times the curves' tokens per second: 40 s of an engine in two seconds
NOISE = 0.05
MOST = 64
REPEATS = 3  # of a full sweep
SHORT = Mix(name="short", prompt=Lengths(median=80, mean=100, most=600), answer=Lengths(median=40, mean=50, most=200))
LONG = Mix(
    name="long",
    prompt=Lengths(median=2800, mean=2900, least=2300, most=6000),
    answer=Lengths(median=40, mean=50, most=200),
)
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Case:
    """A curve that is true."""

    name: str
    mix: Mix
    curve: Curve

    def at(self, concurrency: int) -> float:
        """Tokens per second at a concurrency: linear between the points, flat after the last."""
        before = (0.0, 0.0)
        for point in self.curve:
            if concurrency <= point[0]:
                share = (concurrency - before[0]) / (point[0] - before[0])
                return before[1] + share * (point[1] - before[1])
            before = point
        return before[1]

    @property
    def best(self) -> int:
        """The smallest concurrency that gives all of the most."""
        most = max(self.at(n) for n in range(1, MOST + 1))
        return next(n for n in range(1, MOST + 1) if self.at(n) >= 0.995 * most)


def cases(seed: int) -> list[Case]:
    """The two curves of the notes, and five generated ones: each rises, and then is flat or falls."""
    found = [
        Case("short prompts", SHORT, [(1, 36), (4, 82), (8, 109), (16, 150)]),
        Case("long prompts", LONG, [(1, 36), (4, 81), (8, 113), (16, 87)]),
    ]
    rng = random.Random(seed)
    for number in range(1, 6):
        knee = rng.choice([4, 6, 8, 10, 12, 14, 16, 20, 24])
        top, bend = rng.uniform(80, 150), rng.uniform(0.55, 0.9)
        curve = [(n, top * (n / knee) ** bend) for n in ladder(knee)]
        fall = rng.choice([0.0, rng.uniform(0.1, 0.4)])
        curve += [(2 * knee, top * (1 - fall))]
        shape = f"falls {fall:.0%} at {2 * knee}" if fall else "is flat"
        found.append(Case(f"generated {number}: rises to {knee}, then {shape}", SHORT, curve))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the search for the knee, and the load generator.")
    parser.add_argument("--seed", type=int, default=6, help="of the generated curves and of the noise")
    parser.add_argument("--duration", type=float, default=2.0, help="seconds of each measurement of a search")
    parser.add_argument("--rounds", type=int, default=3, help="rounds beside guidellm")
    parser.add_argument("--guidellm", type=Path, help="a guidellm that is installed; default: installed for this")
    parser.add_argument("--only", action="append", choices=("knee", "guidellm", "generator"))
    options = parser.parse_args()
    parts = options.only or ["knee", "guidellm", "generator"]
    figures: dict[str, Figure] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="fleetctl-bench-tune") as name:
            folder = Path(name)
            say_load()
            if "generator" in parts:
                figures |= generator(folder)
            if "knee" in parts:
                figures |= knees(folder, options.seed, options.duration)
            if "guidellm" in parts:
                binary = options.guidellm or make_venv(folder / "guidellm", "guidellm") / "guidellm"
                figures |= beside_guidellm(folder, binary, options.rounds)
            say_load()
    except (BenchError, FleetError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    print_figures("tune", figures)
    return 0


# The knee -----------------------------------------------------------------------------------------------------------


def knees(folder: Path, seed: int, duration: float) -> dict[str, Figure]:
    """Search each curve's knee."""
    steps, losses, shares, probes = [], [], [], []
    for number, case in enumerate(cases(seed)):
        points, answer = find(folder, case, random.Random(f"{seed} {number}"), duration)
        chosen = answer.concurrency
        away, loss = steps_apart(chosen, case.best), 1 - case.at(chosen) / case.at(case.best)
        sent = sum(point.requests for point in points)
        full = REPEATS * sum(requests_at(case, rung, points) for rung in ladder(MOST))
        steps.append(away)
        losses.append(loss)
        shares.append(sent / full)
        probes.append(len(points))
        told = f"{case.name}: {chosen} ({answer.kind.value}), best is {case.best}: {away} steps off, {loss:.1%} less; "
        say(told + f"{len(points)} measurements, {sent} requests, {sent / full:.0%} of a full sweep")
    return {
        "steps_off_worst": at_most(max(steps), 1, "steps"),
        "throughput_lost_worst": at_most(100 * max(losses), 3, "%"),
        "requests_of_a_sweep_worst": at_most(100 * max(shares), 50, "%"),
        "measurements_median": Figure(statistics.median(probes), "measurements"),
        "measurements_of_a_sweep": Figure(REPEATS * len(ladder(MOST)), "measurements"),
    }


def find(folder: Path, case: Case, rng: random.Random, duration: float) -> tuple[list[Point], Answer]:
    """Search the knee of one engine that is faster or slower each time."""
    arguments = ["--max-num-seqs", "256", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    settings = {"load_seconds": 0.1, "memory_bytes": 1 << 20, "prefill_seconds_per_token": 0, "speed": SPEED}
    curves = {"curve": case.curve, "long_curve": case.curve}
    with standin(folder, *arguments, **settings, **curves) as engine:
        bench = Bench(parse_endpoint(engine.url), case.mix)

        def measure(step: Probe, points: list[Point]) -> Point:
            engine.set(speed=SPEED * rng.gauss(1.0, NOISE))
            warm_up = warm_up_for(step.concurrency, points, duration)
            return bench.closed(step.concurrency, warm_up=warm_up, duration=duration).point(step.concurrency)

        return search(measure, Range(MOST))


def requests_at(case: Case, rung: int, points: Sequence[Point]) -> float:
    """Requests of one measurement at a rung: what was counted there, else what the curve says from what was counted."""
    there = [point.requests for point in points if point.concurrency == rung]
    if there:
        return statistics.fmean(there)
    each = sum(point.requests for point in points) / sum(case.at(point.concurrency) for point in points)
    return each * case.at(rung)


# guidellm -----------------------------------------------------------------------------------------------------------


def beside_guidellm(folder: Path, binary: Path, rounds: int) -> dict[str, Figure]:
    """Output tokens per second and requests per second of both, on one stand-in, in turn."""
    prompts = folder / "prompts.jsonl"
    rng = random.Random(1)
    answer = Lengths(median=50, mean=50)  # all alike: other draws would make other rates
    mix = SHORT.model_copy(update={"answer": answer})
    with prompts.open("w") as file:
        for number in range(20_000):
            text = f"{number} " + " ".join(rng.choice(["one", "two", "three", "four", "five"]) for _ in range(80))
            file.write(json.dumps({"prompt": text, "output_tokens_count": answer.draw(rng)}) + "\n")
    arguments = ["--max-num-seqs", "256", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    settings = {"load_seconds": 0.1, "memory_bytes": 1 << 20, "prefill_seconds_per_token": 0, "speed": 8.0}
    ratios: dict[str, list[float]] = {"tokens": [], "requests": []}
    with standin(folder, *arguments, **settings) as engine:
        bench = Bench(parse_endpoint(engine.url), mix)
        for number in range(1, rounds + 1):
            for clients in (4, 8, 16):
                ours = bench.closed(clients, warm_up=3, duration=12).summary
                tokens, requests = guidellm(binary, engine, prompts, clients, folder / "report.json")
                rate = ours.requests_per_minute / 60
                ratios["tokens"].append(ours.tokens_out_rate / tokens)
                ratios["requests"].append(rate / requests)
                told = (
                    f"round {number}, {clients} at once: {ours.tokens_out_rate:.1f} tokens/s and {rate:.2f} requests/s"
                )
                say(f"{told}; guidellm {tokens:.1f} and {requests:.2f}")
    apart = {name: [100 * abs(one - 1) for one in found] for name, found in ratios.items()}
    return {f"{name}_rate_beside_guidellm_off_worst": at_most(max(found), 5, "%") for name, found in apart.items()}


def guidellm(binary: Path, engine: Engine, prompts: Path, clients: int, report: Path) -> tuple[float, float]:
    """Output tokens and requests per second, as guidellm reports them; tokens of unfinished answers included."""
    argv = [str(binary), "run", "--backend", f"kind=openai_http,target={engine.url},model={MODEL}"]
    argv += ["--profile", f"kind=concurrent,streams={clients},warmup=3", "--constraint", "kind=max_duration,seconds=15"]
    argv += ["--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={report}", "--disable-console"]
    run(argv, doing="guidellm", env=environment(HF_HUB_OFFLINE="1"))
    metrics = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    return (
        metrics["output_tokens_per_second"]["total"]["mean"],
        metrics["requests_per_second"]["successful"]["mean"],
    )


# The generator ------------------------------------------------------------------------------------------------------


def generator(folder: Path) -> dict[str, Figure]:
    """Streamed requests per second of a generator that has one core to itself."""
    port = free_port()
    cores = sorted(os.sched_getaffinity(0))
    server = ["taskset", "-c", str(cores[-1]), sys.executable, str(CHECKOUT / "bench/_answers.py"), str(port)]
    with serving(server, answers(f"http://127.0.0.1:{port}/health")):
        told = [sustained(cores[0], port) for _ in range(3)]
    best = max(told, key=lambda one: one["rate"])
    for one in told:
        say(f"{one['rate']:.0f} requests/s with {one['cpu']:.0%} of a core; saturated: {one['why'] or 'no'}")
    return {
        "generator_rate": at_least(best["rate"], 2000, "requests/s"),
        "generator_cpu": Figure(round(100 * best["cpu"], 1), "% of a core"),
        "generator_said_saturated": Figure(float(bool(best["why"])), "yes"),
    }


SUSTAIN = """
import json, sys
from fleetctl.bench.endpoint import parse_endpoint
from fleetctl.bench.mix import load_mix
from fleetctl.bench.target import Bench
bench = Bench(parse_endpoint(sys.argv[1]), load_mix("agent"), gauges=False)
summary = bench.closed(64, warm_up=1, duration=5).summary
told = summary.generator
print(json.dumps({"rate": summary.answered / summary.seconds, "cpu": told.cpu, "why": told.why}))
"""


def sustained(core: int, port: int) -> dict[str, object]:
    """One run of the generator on one core."""
    argv = ["taskset", "-c", str(core), sys.executable, "-c", SUSTAIN, f"http://127.0.0.1:{port}"]
    told = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
    if told.returncode != 0:
        raise BenchError(f"the generator failed: {told.stderr[-2000:]}")
    return dict(json.loads(told.stdout))


if __name__ == "__main__":
    sys.exit(main())
