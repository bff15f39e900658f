#!/usr/bin/env python3
"""How much of 8 engines can be used while the p99 stays within a target: routers, HAProxy, and the pool.

``python3 bench/pool.py``, on Linux, with ``nats-server`` and ``haproxy`` installed, as any user. All contenders get
the same work: embeddings that take 2 to 200 ms alone (drawn evenly on a logarithmic scale, mean 43 ms), in an
open loop.

- *Pace*: everything takes 1.5 times as long as these times say, and rates are lower by that (``--pace``), so that
  what programs and a busy machine add counts for less. Nothing computes: the share of the cores that contender,
  engines and generator took together is in the table, that of everything on the machine, and how late batches ended.
- *Engines*: eight stand-ins in four processes ("boxes") that only wait. Each does one batch of at most 8 after the
  other; a batch takes as long as its longest member alone and a quarter of what each other member would
  (`_pool_engines.py`).
- *Target*: the p99 of the latency, from the moment at which a request should have been sent to its last byte, is at
  most twice the longest service time: 600 ms at pace 1.5. The same for all.
- *Arrival*: constant (requests at random times, of a constant rate) and bursty (groups of 1 to 15 at once, at random
  times, of the same rate). Every contender gets the same requests at the same times at a given rate.
- *Search*: rates are steps of 4 % of what the engines could do if every batch was full. From the rate of the contender
  before (the pool: from 90 %), 2 steps up or down until the answer changes, then bisection. One window of 4.5 s decides
  a rate; where its p99 is within 3 % of the target, two of three do. A window ends as soon as more than one request in
  a hundred is late.
- *Settings*: each router is tried with every policy that needs nothing else beside it and looks at more than a key of
  the client, and HAProxy's queue with two limits, at 70 % of what the engines could do; the one with the lowest p99 is
  taken. A window ends as soon as more than one request in a hundred is later than that of another one.
- *Cost*: the longer a request's text, the longer it takes (8 words for each millisecond), as with real models. The pool
  sees no more than that: its gateway estimates tokens from the size of the body, and its workers put requests of like
  size into one call. Nobody reads the milliseconds but the engine.
- *Utilization* is the share of the places of the engines' batches that are in use, over all of the time: at 100 % every
  engine always has a full batch. *Busy* is the share of the time in which an engine has a batch at all, be it of one
  request: what a GPU's own counter shows. "If every batch is full" means batches of requests as they come; like ones in
  one batch take less time, so rates may be above that, and the utilization may not.
- *One at a time*: engines that take one request at a time, where a limit in HAProxy makes one shared queue.
- *Faults*: see `_pool_faults.py`.

Progress goes to standard error; the last line of standard output has all figures. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from _common import BenchError, Figure, at_least, at_most, print_figures, say, say_load
from _pool_contenders import POLICIES, engines, haproxy, router, routers
from _pool_faults import faults
from _pool_load import BURSTY, CONSTANT, capacity
from _pool_programs import merged, pool, unmerged
from _pool_search import Found, Place, best, search_all, table

from fleetctl.errors import FleetError

BOXES, OF_EACH, BATCH = 4, 2, 8
MOST_CPU = 50.0  # per cent of all cores


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how much of 8 engines can be used at a p99 target.")
    parser.add_argument("--only", action="append", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--pace", type=float, default=1.5, help="times as long as requests say; default: 1.5")
    parser.add_argument("--routers", type=Path, help="a bin folder with vllm-router and sglang-router")
    options = parser.parse_args()
    figures: dict[str, Figure] = {}
    began = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # as Ctrl-C: nothing stays behind
    try:
        with tempfile.TemporaryDirectory(prefix="fleetctl-bench-pool") as name:
            say_load()
            for part in options.only or list(PARTS):
                folder = Path(name) / part
                folder.mkdir()
                figures |= PARTS[part](folder, options.pace, options.routers)
            say_load()
    except (BenchError, FleetError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    figures["seconds"] = at_most(time.monotonic() - began, 600)
    print_figures("pool", figures)
    return 0


def batches(folder: Path, pace: float, installed: Path | None) -> dict[str, Figure]:
    """Engines that take 8 at once: all contenders, both kinds of arrival."""
    with engines(folder, BOXES, OF_EACH, BATCH, pace) as (those, _):
        place = Place(those, folder, capacity(BOXES * OF_EACH, BATCH, pace))
        say(f"eight engines, {BATCH} at once: {place.capacity:.0f} requests/s if every batch is full")
        contenders = []
        for name, program in routers(folder, installed).items():
            contenders.append(best([router(name, program, one) for one in POLICIES[program.name]], place))
        contenders.append(haproxy("HAProxy leastconn", None))
        queues = [haproxy("HAProxy shared queue", most) for most in (BATCH, 2 * BATCH)]
        contenders.append(best(queues, place))
        contenders.append(pool("merged calls", merged(BATCH)))
        found = search_all(contenders, {CONSTANT: 0.6, BURSTY: 0.6}, place)
    say(table(found, place))
    return figures_of("batches", found) | goals(found)


def single(folder: Path, pace: float, installed: Path | None) -> dict[str, Figure]:
    """Engines that take one at a time, where HAProxy's limit is a shared queue as good as any."""
    with engines(folder, BOXES, OF_EACH, 1, pace) as (those, _):
        place = Place(those, folder, capacity(BOXES * OF_EACH, 1, pace))
        say(f"eight engines, one at a time: {place.capacity:.0f} requests/s if none ever waits")
        contenders = [haproxy("HAProxy leastconn", None), haproxy("HAProxy shared queue", 1)]
        contenders.append(pool("one call each", unmerged(1)))
        found = search_all(contenders, {CONSTANT: 0.9}, place)
    say(table(found, place))
    return figures_of("single", found)


def goals(found: Sequence[Found]) -> dict[str, Figure]:
    """The pool beside the better router."""
    figures = {}
    for traffic in (CONSTANT, BURSTY):
        of = {one.contender.key: one for one in found if one.traffic == traffic}
        push = max((of[name].mean("answered") for name in POLICIES if name in of), default=0.0)
        if push and "pool" in of:
            ratio = of["pool"].mean("answered") / push
            figures[f"{traffic.name}_pool_to_best_router"] = at_least(ratio, 2.0)
            figures[f"{traffic.name}_pool_busy"] = Figure(round(100 * of["pool"].mean("busy"), 1), "%")
            figures[f"{traffic.name}_pool_utilization"] = at_least(100 * of["pool"].mean("filled"), 85, "%")
    return figures


def figures_of(part: str, found: Sequence[Found]) -> dict[str, Figure]:
    """All figures of a table."""
    figures = {}
    for one in found:
        name = f"{part}_{one.traffic.name}_{one.contender.key}"
        figures[f"{name}_rate"] = Figure(round(one.mean("answered"), 1), "requests/s")
        figures[f"{name}_utilization"] = Figure(round(100 * one.mean("filled"), 1), "%")
        figures[f"{name}_cores"] = at_most(100 * one.mean("cpu"), MOST_CPU, "%")
    return figures


PARTS: dict[str, Callable[[Path, float, Path | None], dict[str, Figure]]] = {
    "batches": batches,
    "single": single,
    "faults": faults,
}


if __name__ == "__main__":
    sys.exit(main())
