#!/usr/bin/env python3
"""What clients notice of restarts, failures and moves: fleetctl, and beside it nginx and vllm-router.

Run it alone, as root, on Debian or Ubuntu: ``python3 bench/traffic.py``. It brings up two boxes of its own with a
stand-in engine each, and 20 clients, half of them streaming, that ask through the proxy while something happens. Each
scenario prints one line of JSON on standard output when it is over: how many requests there were, how many failed
before the first byte of an answer, how many answers broke off after it, the longest wait, and what was added to the
wait for the first byte compared with calling the copies directly when nothing happens.

The killed copy and the rolling restart are repeated with the same clients and engines behind nginx (max_fails=3
fail_timeout=30s, round robin, proxy_buffering on, the rest by default) and behind vllm-router (by default). There a
rolling restart is what an operator does by hand: ``systemctl restart`` of one engine, and of the other as soon as
the first one's /health is back.

Progress goes to standard error; the last line of standard output has all figures. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from _clients import Baseline, Clients, Record
from _common import CHECKOUT, BenchError, make_venv, print_figures, say, say_load, workspace
from _fleet import MODEL, Fleet
from _lab import base_cache
from _peers import install
from _scenarios import SCENARIOS, Bench

from fleetctl.errors import FleetError
from fleetctl.lab.lab import Lab

FOLDER = Path("/var/lib/fleetctl-bench-traffic")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what clients notice of restarts, failures and moves.")
    parser.add_argument("--only", action="append", choices=SCENARIOS, metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--without-peers", action="store_true", help="leave nginx and vllm-router out")
    options = parser.parse_args()
    lab = Lab(
        FOLDER / "lab",
        bridge="fleetbench1",
        subnet="10.77.206.0/24",
        link_subnet="10.78.206.0/24",
        base=base_cache(),
    )
    try:
        with workspace(FOLDER, lab.down):
            bench = measure(lab, options.only or list(SCENARIOS), with_peers=not options.without_peers)
    except (BenchError, FleetError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the boxes are gone")
        return 130
    say(table(bench.records))
    print_figures("traffic", bench.figures)
    return 0


def measure(lab: Lab, names: list[str], *, with_peers: bool) -> Bench:
    """Set everything up and run the scenarios."""
    binaries = make_venv(FOLDER / "fleetctl", str(CHECKOUT))
    found = install(FOLDER / "peers") if with_peers and {"peers", "latency"} & set(names) else []
    bench = Bench(Fleet(lab, FOLDER, binaries / "fleetctl"), binaries / "python", found)
    say("putting the first layout")
    bench.fleet.be_in("replicas")
    say_load()
    bench.baseline = called_directly(bench)
    for name in names:
        SCENARIOS[name](bench)
    say_load()
    return bench


def called_directly(bench: Bench) -> Baseline:
    """Half of the clients at either copy, without a proxy."""
    requests: list[Record] = []
    with ExitStack() as running:
        both = [
            running.enter_context(Clients(bench.python, f"http://{engine}", MODEL, clients=10))
            for engine in bench.fleet.engines
        ]
        time.sleep(4)
    for clients in both:
        requests += clients.requests
    waits_of = {
        streamed: [
            one["first_byte"] - one["start"] for one in requests if one["streamed"] == streamed and not one["error"]
        ]
        for streamed in (True, False)
    }
    baseline = {streamed: statistics.median(found) for streamed, found in waits_of.items()}
    say(f"called directly: first byte after {baseline[True]:.3f} s streamed, {baseline[False]:.3f} s whole (medians)")
    return baseline


def table(records: list[Record]) -> str:
    """The records side by side, those of a scenario below each other."""
    columns = {
        "scenario": "scenario",
        "through": "through",
        "requests": "requests",
        "failed_before_first_byte": "failed",
        "broken_streams": "broken",
        "max_wait_s": "max wait s",
        "silence_s": "silence s",
        "added_p50_ms": "added p50 ms",
        "added_p99_ms": "p99 ms",
    }
    order = list(dict.fromkeys(record["scenario"] for record in records))
    rows = [list(columns.values())]
    for record in sorted(records, key=lambda record: order.index(record["scenario"])):
        rows.append(["-" if record.get(key) is None else str(record[key]) for key in columns])
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
