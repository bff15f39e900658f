"""The scenarios of bench/traffic.py: each brings the fleet into a known state, and does one thing while clients ask."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _clients import Baseline, Clients, Record, percentile, tally
from _common import BenchError, Figure, at_most, say
from _fleet import MODEL, PROXY_PORT, Fleet, until
from _latency import waits
from _peers import Peer

OURS = "fleetctl"


class Bench:
    """The fleet, its clients, and what was measured so far."""

    def __init__(self, fleet: Fleet, python: Path, peers: list[Peer]) -> None:
        self.fleet, self.python, self.peers = fleet, python, peers
        self.baseline: Baseline = {}
        self.records: list[Record] = []
        self.figures: dict[str, Figure] = {}

    @contextmanager
    def traffic(self, scenario: str, through: str = OURS, url: str | None = None, **options: Any) -> Iterator[Under]:
        """The clients ask, in calm first; at the end of the block what they saw is printed as the scenario's line."""
        say(f"{scenario} through {through}")
        under = Under()
        with Clients(self.python, url or self.fleet.url, MODEL, **options) as clients:
            clients.calm()
            yield under
            settled = clients.settle()
        seen = asdict(tally(clients.requests, self.baseline))
        record = {
            "bench": "traffic",
            "scenario": scenario,
            "through": through,
            **seen,
            **under.more,
            "settled": settled,
        }
        self.told(record)
        self.note(scenario, through, "failed", record["failed_before_first_byte"], goal=under.failed_goal)
        self.note(scenario, through, "broken", record["broken_streams"], goal=under.broken_goal)

    def told(self, record: Record) -> None:
        """The line of a scenario."""
        self.records.append(record)
        print(json.dumps(record), flush=True)

    def note(self, scenario: str, through: str, what: str, value: float, goal: float | None, unit: str = "") -> None:
        """A figure. Goals are for fleetctl; what the others do stands beside it."""
        name = "_".join([*([] if through == OURS else [through.replace("-", "_")]), scenario, what])
        unit = unit or "requests"
        goal = goal if through == OURS else None
        self.figures[name] = Figure(round(value, 3), unit) if goal is None else at_most(value, goal, unit)


class Under:
    """What a scenario adds to its line, and which of its figures have the goal 0."""

    def __init__(self) -> None:
        self.more: Record = {}
        self.failed_goal: float | None = 0
        self.broken_goal: float | None = 0


def forced_gap(bench: Bench) -> None:
    """A move whose old and new engines do not fit together: requests are held meanwhile."""
    bench.fleet.be_in("split")
    if not bench.fleet.plan("--to", "replicas")["gap"]["expected"] != 0:
        raise BenchError("split to replicas was to have a gap")
    with bench.traffic("forced_gap"):
        bench.fleet.fleetctl("cutover", "--to", "replicas", "--yes")
    bench.note("forced_gap", OURS, "silence_s", bench.records[-1]["silence_s"], None, "s")


def make_before_break(bench: Bench) -> None:
    """A move between two layouts whose engines fit the boxes at the same time."""
    bench.fleet.be_in("replicas")
    expected = bench.fleet.plan("--to", "next")["gap"]["expected"]
    if expected != 0:
        say(f"make_before_break is left out: the plan expects a gap of {expected} s")
        return
    with bench.traffic("make_before_break") as under:
        bench.fleet.fleetctl("cutover", "--to", "next", "--yes")
        under.more["planned_gap_s"] = expected
    bench.note("make_before_break", OURS, "planned_gap_s", expected, 0, "s")
    bench.note("make_before_break", OURS, "silence_s", bench.records[-1]["silence_s"], None, "s")


def rolling_restart(bench: Bench) -> None:
    """Both copies are started anew, one after the other."""
    fleet = bench.fleet
    fleet.be_in("replicas")
    before = [fleet.pid(box.name) for box in fleet.boxes]
    with bench.traffic("rolling_restart"):
        fleet.fleetctl("restart", "--yes")
    if any(old == fleet.pid(box.name) for old, box in zip(before, fleet.boxes, strict=True)):
        raise BenchError("not both copies were started anew")


def memory_share(bench: Bench) -> None:
    """Another share of memory for the copy on the second box."""
    fleet = bench.fleet
    fleet.be_in("replicas")
    first, second = (box.name for box in fleet.boxes)
    before = {box: (fleet.pid(box), fleet.files(box)) for box in (first, second)}
    copies = fleet.document["layouts"]["replicas"][MODEL]["copies"]
    share = 0.3 if copies[second]["gpu_memory_utilization"] != 0.3 else 0.35
    fleet.changed(lambda it: it["layouts"]["replicas"][MODEL]["copies"][second].update(gpu_memory_utilization=share))
    with bench.traffic("memory_share") as under:
        fleet.fleetctl("apply", "--yes")
        touched = [box for box in (first, second) if (fleet.pid(box), fleet.files(box)) != before[box]]
        under.more["touched"] = touched
    if second not in touched:
        raise BenchError(f"the new memory share did not reach {second}")
    bench.note("memory_share", OURS, "other_boxes_touched", len(touched) - 1, 0, "boxes")


def kill(bench: Bench) -> None:
    """``kill -9`` of everything in one copy's unit; systemd starts it anew."""
    fleet, box = bench.fleet, bench.fleet.boxes[1].name
    fleet.be_in("replicas")
    with bench.traffic("kill") as under:
        under.broken_goal = None
        began, since = time.time(), time.monotonic()
        fleet.kill(box)
        under.more["out_s"] = round(fleet.out_after(box, since), 2)
        fleet.await_rotation([box])
    elsewhere = sum(number for server, number in fleet.cut(began).items() if not server.endswith(box))
    bench.note("kill", OURS, "broken_elsewhere", elsewhere, 0)
    bench.note("kill", OURS, "out_s", bench.records[-1]["out_s"], None, "s")


def vanished_box(bench: Bench) -> None:
    """A box says nothing any more: its cable is pulled, and put back after a while."""
    fleet, box = bench.fleet, bench.fleet.boxes[1].name
    fleet.be_in("replicas")
    with bench.traffic("vanished_box") as under:
        under.broken_goal = None
        since = time.monotonic()
        fleet.lab.vanish(box)
        try:
            under.more["out_s"] = round(fleet.out_after(box, since), 2)
            time.sleep(6)
        finally:
            fleet.lab.reappear(box)
        fleet.await_rotation([box])
    bench.note("vanished_box", OURS, "out_s", bench.records[-1]["out_s"], 3, "s")


def proxy_reboot(bench: Bench) -> None:
    """The box that has the floating address of two proxies is rebooted; clients ask once more when they are cut off."""
    fleet = bench.fleet
    if not fleet.knows("floating"):
        say("proxy_reboot is left out: this fleetctl has no floating address")
        return
    before, address = fleet.document, f"{fleet.boxes[0].address.rpartition('.')[0]}.200"
    both = {"boxes": [box.name for box in fleet.boxes], "floating": {"address": address}}
    fleet.changed(lambda it: it.update(proxy={**it["proxy"], **both}) or it["proxy"].pop("box"))
    fleet.be_in("replicas")
    until(lambda: fleet.holder(address) is not None, f"{address} is on no box")
    with bench.traffic("proxy_reboot", url=f"http://{address}:{PROXY_PORT}", retry=True) as under:
        under.broken_goal = None
        box = str(fleet.holder(address))
        fleet.lab.reboot(box)
        fleet.await_rotation([box])
    # The whole wait for a first byte, the usual one and the client's own pause before it asks again included.
    bench.note("proxy_reboot", OURS, "max_wait_s", bench.records[-1]["max_wait_s"], 2, "s")
    bench.note("proxy_reboot", OURS, "added_wait_s", bench.records[-1]["added_max_ms"] / 1000, None, "s")
    fleet.document = before
    fleet.be_in("replicas")


def peers(bench: Bench) -> None:
    """The killed copy and the rolling restart, by hand, behind each of the others."""
    fleet = bench.fleet
    fleet.be_in("replicas")
    for peer in bench.peers:
        with peer.before(fleet, fleet.engines) as url, bench.traffic("kill", peer.name, url):
            fleet.kill(fleet.boxes[1].name)
            time.sleep(1)
            fleet.await_engine(fleet.boxes[1].name)
        with peer.before(fleet, fleet.engines) as url, bench.traffic("rolling_restart", peer.name, url):
            for box in fleet.boxes:
                fleet.restart(box.name)


def latency(bench: Bench) -> None:
    """The wait for the first byte through a proxy less the one of a direct call, same engine, in turns."""
    fleet, box = bench.fleet, bench.fleet.boxes[1]
    fleet.be_in("replicas")
    fleet.fleetctl("drain", fleet.boxes[0].name, "--yes")  # one engine, and not on the proxy's own box
    try:
        seen = waits(fleet, box, bench.peers)
    finally:
        fleet.fleetctl("undrain", fleet.boxes[0].name, "--yes")
    direct = seen.pop("direct")
    for through, took in seen.items():
        added = [1000 * (slow - fast) for fast, slow in zip(direct, took, strict=True)]
        p50, p99 = (round(percentile(added, share), 3) for share in (0.5, 0.99))
        record = {"bench": "traffic", "scenario": "latency", "through": through, "requests": len(took)}
        record |= {"failed_before_first_byte": 0, "broken_streams": 0, "max_wait_s": round(max(took), 3)}
        bench.told({**record, "added_p50_ms": p50, "added_p99_ms": p99})
        bench.note("latency", through, "added_p50_ms", p50, 1, "ms")
        bench.note("latency", through, "added_p99_ms", p99, None, "ms")


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        forced_gap,
        rolling_restart,
        memory_share,
        kill,
        vanished_box,
        latency,
        peers,
        make_before_break,
        proxy_reboot,
    )
}
