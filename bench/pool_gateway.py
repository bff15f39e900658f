#!/usr/bin/env python3
"""What a gateway of the pool costs, beside litellm's proxy; and what uploads of 32 MB do to short requests.

``python3 bench/pool_gateway.py``, on Linux with two cores or more, with nats-server installed, as any user. Run it
with the Python of fleetctl's environment.

- *Rate per core*: requests (an embedding of one sentence) per second of processor time that the proxy takes, with 32
  clients, on a core of its own. litellm asks a stand-in over HTTP; the gateway's requests go through NATS to a
  responder that gives the same answer at once. nats-server's time is a figure of its own.
- *Added latency*: the median of one client through the proxy, less that of one client at the stand-in itself.
- *Uploads*: short requests at a steady rate, alone and while another client uploads 32 MB again and again. Both
  take turns of a few seconds in each round, the other one first each time, so that whatever else the machine does is in
  both; a round's figure is the p99 of all requests beside uploads by that of all without. The median of those counts.
  What is uploaded is removed from the store after each round; in a further one at once, as workers do, which costs
  nats-server 20 to 40 ms of a core in one go. On two cores that is felt too, though no gateway has a part in it.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from _common import BenchError, Figure, at_least, at_most, print_figures, say, say_load, version_of
from _gateways import (
    KEPT,
    REMOVED,
    UPLOAD,
    Load,
    Proxy,
    closed,
    empty_store,
    gateway,
    install_litellm,
    litellm,
    paced,
    queue,
    ready,
    responder,
    standin,
    uploads,
)

from fleetctl.errors import FleetError

CLIENTS = 32
RATE = 200.0  # short requests per second beside uploads
TURNS = 4  # of each kind in a round


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure a gateway of the pool beside litellm's proxy.")
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--litellm", type=Path, help="bin folder of a litellm that is installed; default: installed")
    parser.add_argument("--only", choices=("rate", "uploads"))
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        say("error: it takes two cores: one for the proxy, one for all else")
        return 1
    figures: dict[str, Figure] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="fleetctl-bench-gateway") as name, ExitStack() as stack:
            folder = Path(name)
            say_load()
            url, nats = stack.enter_context(queue(folder))
            for model in (["embed"], ["kept", "keep"], ["removed"]):
                stack.enter_context(responder(url, cores[-1], *model))
            ours = stack.enter_context(gateway(folder, url, cores[0]))
            os.sched_setaffinity(0, {cores[-1]})  # this process makes the load
            ready(ours.port)
            if options.only != "uploads":
                figures |= rates(folder, options.litellm, ours, nats, cores, options.rounds, options.seconds)
            if options.only != "rate":
                figures |= beside_uploads(ours, url, cores[-1], options.rounds, options.seconds)
            os.sched_setaffinity(0, set(cores))
            say_load()
    except (BenchError, FleetError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    print_figures("pool_gateway", figures)
    return 0


def rates(
    folder: Path, installed: Path | None, ours: Proxy, nats: int, cores: Sequence[int], rounds: int, seconds: float
) -> dict[str, Figure]:
    """Both proxies in turn."""
    binaries = installed or install_litellm(folder)
    say(f"litellm {version_of(binaries, 'litellm')}")
    per_core: dict[str, list[float]] = {"gateway": [], "litellm": [], "gateway and nats-server": []}
    added: dict[str, list[float]] = {"gateway": [], "litellm": []}
    with standin(cores[-1]) as port, litellm(folder, binaries, port, cores[0]) as theirs:
        ready(theirs.port)
        server = Proxy("nats-server", 0, (nats,))
        for proxy in (ours, theirs):
            closed(proxy.port, CLIENTS, 2.0)  # warm
        for number in range(1, rounds + 1):
            direct = closed(port, 1, seconds / 2).at(0.5)
            for proxy in (ours, theirs):
                before, queued = proxy.cpu, server.cpu
                load = closed(proxy.port, CLIENTS, seconds)
                took, queued = proxy.cpu - before, server.cpu - queued
                per_core[proxy.name].append(len(load.latencies) / took)
                if proxy is ours:
                    per_core["gateway and nats-server"].append(len(load.latencies) / (took + queued))
                middle = closed(proxy.port, 1, seconds / 2).at(0.5)
                added[proxy.name].append(middle - direct)
                told = f"round {number}, {proxy.name}: {load.rate:.0f} requests/s with {took / load.seconds:.0%} of a "
                say(told + f"core; one client: {middle:.2f} ms, {direct:.2f} ms without it")
    rate = {name: statistics.median(found) for name, found in per_core.items()}
    more = {name: statistics.median(found) for name, found in added.items()}
    return {
        "gateway_rate_per_core": Figure(round(rate["gateway"]), "requests/s"),
        "gateway_and_nats_rate_per_core": Figure(round(rate["gateway and nats-server"]), "requests/s"),
        "litellm_rate_per_core": Figure(round(rate["litellm"]), "requests/s"),
        "gateway_rate_beside_litellm": at_least(rate["gateway"] / rate["litellm"], 5),
        "gateway_and_nats_rate_beside_litellm": Figure(
            round(rate["gateway and nats-server"] / rate["litellm"], 2), "x"
        ),
        "gateway_added_p50": Figure(round(more["gateway"], 3), "ms"),
        "litellm_added_p50": Figure(round(more["litellm"], 3), "ms"),
    }


def beside_uploads(ours: Proxy, url: str, core: int, rounds: int, seconds: float) -> dict[str, Figure]:
    """Short requests alone and beside uploads, in turn."""
    found: dict[str, list[Beside]] = {KEPT: [], REMOVED: []}
    paced(ours.port, RATE, 2.0)  # warm
    for number in range(1, rounds + 1):
        for model, all_rounds in found.items():
            one = in_turns(ours, core, model, seconds / 2)
            all_rounds.append(one)
            empty_store(url)
            told = f"round {number}, {model}: p99 {one.alone:.2f} ms alone, {one.beside:.2f} ms beside uploads of "
            say(told + f"{one.moved:.0f} MB/s: {one.more:+.0f} %")
    kept = found[KEPT]
    return {
        "short_p99_alone": Figure(round(statistics.median(one.alone for one in kept), 2), "ms"),
        "short_p99_beside_uploads": Figure(round(statistics.median(one.beside for one in kept), 2), "ms"),
        "short_p99_moved_by_uploads": at_most(round(statistics.median(one.more for one in kept), 1), 20, "%"),
        "short_p99_moved_by_uploads_and_removal": Figure(
            round(statistics.median(one.more for one in found[REMOVED]), 1), "%"
        ),
        "uploads": Figure(round(statistics.median(one.moved for one in kept), 1), "MB/s"),
    }


@dataclass(frozen=True)
class Beside:
    """A round: p99 of short requests in milliseconds without and with uploads, and MB/s of these."""

    alone: float
    beside: float
    moved: float

    @property
    def more(self) -> float:
        """By how many percent the p99 is longer beside uploads."""
        return 100 * (self.beside / self.alone - 1)


def in_turns(ours: Proxy, core: int, model: str, seconds: float) -> Beside:
    """One round of turns of so many seconds each."""
    alone: list[Load] = []
    beside: list[Load] = []
    with uploads(ours.port, core, model) as client:
        for turn in range(TURNS):
            for sends in (False, True) if turn % 2 else (True, False):
                if sends:
                    client.go_on()
                    beside.append(paced(ours.port, RATE, seconds))
                    client.hold()
                else:
                    alone.append(paced(ours.port, RATE, seconds))
    without, with_uploads = (
        Load([one for load in loads for one in load.latencies], sum(load.seconds for load in loads))
        for loads in (alone, beside)
    )
    return Beside(without.at(0.99), with_uploads.at(0.99), client.done * UPLOAD / 1e6 / with_uploads.seconds)


if __name__ == "__main__":
    sys.exit(main())
