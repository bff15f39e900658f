#!/usr/bin/env python3
"""Whether doctor finds every planted fault, and nothing on a healthy fleet.

Run it alone, as root, on Debian or Ubuntu: ``python3 bench/doctor.py``. It brings up two boxes of its own that answer
as a GB10 does (nvidia-smi says N/A), closed by fleetctl's firewall, with splits over both and then with copies.

- ``found_on_healthy``: findings of `fleetctl doctor` on a pair of copies, many splits and many copies, each at rest and
  while clients use it.
- ``planted``, ``faults_found``: the faults of `_faults.py` and `_faults_of_copies.py`, symptoms that operators have
  reported, planted in one round for each layout, and how many brought the findings that they have to.
- ``found_unplanted``: what was found besides. That a unit is down that a fault keeps down is not counted.
- ``doctor_s``: `fleetctl doctor --json` on two healthy boxes with a copy each, as a whole process; connections are
  watched for 3 s of it.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import (
    CHECKOUT,
    BenchError,
    Figure,
    at_least,
    at_most,
    environment,
    make_venv,
    run,
    say,
    say_load,
)
from _faults import SAYS, SKEWED, SPLITS, UNIT_DOWN, Fault, in_split, master_port
from _faults_of_copies import COPIES, TOOLS, in_replicas, port_of
from _lab import base_cache, boxes_of, measured

from fleetctl.lab.lab import Lab
from fleetctl.lab.state import Bind

if TYPE_CHECKING:
    from fleetctl.lab.state import LabBox

FOLDER = Path("/var/lib/fleetctl-bench-doctor")
PROXY_PORT = 8080
LONGEST = 120.0  # seconds until all faults of a round are to be found: a head may wait for its follower for one minute
SMI = """#!/bin/sh
case "$1" in
--query-gpu=index,name*) echo "0, NVIDIA GB10, [N/A], [N/A], 580.95.05";;
--query-gpu=*) echo "0, Not Active, Not Active, Not Active";;
--query-compute-apps=*) ;;
*) exit 1;;
esac
"""
# The engine of a model: first what a fault lets it say or do.
ENGINE = f"""#!/bin/sh
name=$(basename "$(dirname "$(dirname "$0")")")
[ -e {SAYS}/$name ] && . {SAYS}/$name
exec /opt/standin/bin/vllm "$@"
"""
Found = dict[str, Any]
"""A finding as `fleetctl doctor --json` tells it."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Count what doctor finds of planted faults, and on a healthy fleet.")
    parser.add_argument("--looks", type=int, default=5, help="measured runs of doctor on the healthy fleet")
    options = parser.parse_args()
    lab = Lab(
        FOLDER / "lab",
        bridge="fleetbench9",
        subnet="10.77.219.0/24",
        link_subnet="10.78.219.0/24",
        base=base_cache(),
    )
    return measured("doctor", FOLDER, lab.down, lambda: Measured(lab).all(options.looks))


# The fleet ---------------------------------------------------------------------------------------------------


def memory() -> int:
    """MiB of memory that a box finds: that of this machine."""
    rows = dict(row.split(":", 1) for row in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemTotal"].split()[0]) // 1024


def document(boxes: Sequence[LabBox]) -> dict[str, Any]:
    """fleet.yaml: a layout of splits and one of copies, an engine for each fault."""
    names, size = [box.name for box in boxes], memory()
    share = round(0.8 / max(len(SPLITS), 1 + len(COPIES) // 2), 3)

    def shares(of: Sequence[str]) -> dict[str, dict[str, float]]:
        return {name: {"gpu_memory_utilization": share} for name in of}

    models = {
        name: {
            "weights": "lab/standin",
            "weights_size": "64MiB",
            "served_as": [name],
            "context": 8192,
            "launch": {"venv": f"/opt/bench/{name}"},
            "environment": {
                "STANDIN_CONTROL": f"/etc/standin-{name}.json",
                "STANDIN_LOAD_SECONDS": "0.3",
                "STANDIN_SPEED": "20",
                "STANDIN_MEMORY_BYTES": "1048576",
            },
            "load_limit": "10m",
            "stop_limit": "20s",
        }
        for name in dict.fromkeys([*SPLITS, *COPIES])
    }
    models["drafts"]["speculative"] = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    models["astext"]["arguments"] = ["--enable-auto-tool-choice", "--tool-call-parser", "mistral"]
    return {
        "fleet": "bench",
        "boxes": boxes_of(boxes, f"{size}MiB", "2GiB"),
        "models": models,
        "layouts": {
            "split": {
                name: {
                    "split": shares(names),
                    "concurrency": 4,
                    "port": port_of("chat") if name == "chat" else 8200 + index,
                    "master_port": master_port(name),
                }
                for index, name in enumerate(SPLITS)
            },
            "plain": {"chat": {"copies": shares(names), "concurrency": 4, "port": port_of("chat")}},
            "replicas": {
                name: {"copies": shares(where), "concurrency": 4, "port": port_of(name)}
                for name, where in COPIES.items()
            },
        },
        "proxy": {"box": names[0], "port": PROXY_PORT},
        "firewall": {},
    }


def ask(url: str, model: str, timeout: float = 30, **more: Any) -> int | None:
    """Status of one chat completion; None: there was no answer."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 32, **more}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return None


@contextmanager
def clients(url: str, models: Sequence[str]) -> Iterator[None]:
    """A client of each model that asks again and again through the proxy."""
    stop = threading.Event()

    def client(model: str) -> None:
        while not stop.is_set():
            ask(url, model)
            stop.wait(0.2)

    threads = [threading.Thread(target=client, args=(model,), daemon=True) for model in models]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


# Looking ------------------------------------------------------------------------------------------------------


@dataclass
class Look:
    """One run of doctor: what it found, and how long it took as a whole process."""

    findings: list[Found]
    seconds: float


@dataclass
class Measured:
    """The fleet and what was counted of it."""

    lab: Lab
    planted: int = 0
    found: int = 0
    healthy: int = 0
    unplanted: int = 0
    seconds: list[float] = field(default_factory=list)

    def all(self, looks: int) -> dict[str, Figure]:
        """Set everything up, measure, and return the figures."""
        began = time.monotonic()
        self.fleetctl = make_venv(FOLDER / "fleetctl", str(CHECKOUT)) / "fleetctl"
        self.boxes = self.lab.up(2, say, binds=[Bind(CHECKOUT / "fleetctl/lab/standin", Path("/opt/standin"))])
        self.file = FOLDER / "fleet.yaml"
        self.file.write_text(json.dumps(document(self.boxes), indent=1))  # JSON is YAML
        self.url = f"http://{self.boxes[0].address}:{PROXY_PORT}"
        addresses = {box.name: box.address for box in self.boxes}
        for box in self.boxes:
            self.put(box.name, "/usr/local/bin/nvidia-smi", SMI, "755")
            for model in dict.fromkeys([*SPLITS, *COPIES]):
                self.put(box.name, f"/opt/bench/{model}/bin/vllm", ENGINE, "755")
            self.put(box.name, f"{SKEWED}/RECORD", "")
        self.be_in("plain")
        self.well("pair of copies", ["chat"])
        self.seconds = [self.look().seconds for _ in range(looks)]
        self.be_in("split")
        self.well("splits", SPLITS)
        self.faulty("splits", in_split(self.boxes[0].link_address), ())
        self.take_back()
        self.be_in("replicas")
        self.well("copies", tuple(COPIES))
        self.faulty("copies", in_replicas(addresses), ("hung", "refused", "drafts"))
        say_load()
        say(f"all of it took {time.monotonic() - began:.0f} s")
        return {
            "found_on_healthy": at_most(self.healthy, 0, "findings"),
            "planted": Figure(self.planted, "faults"),
            "faults_found": at_least(self.found, self.planted, "faults"),
            "found_unplanted": at_most(self.unplanted, 0, "findings"),
            "doctor_s": Figure(round(statistics.median(self.seconds), 3), "s"),
            "whole_s": at_most(time.monotonic() - began, 300),
        }

    # The boxes

    def sh(self, box: str, command: str, text: str | None = None) -> str:
        """Standard output of a shell command as root on a box. Raises BenchError when it fails."""
        done = self.lab.exec(box, ["bash", "-c", command], text)
        if done.returncode != 0:
            raise BenchError(f"{box}: `{command}` ended with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def put(self, box: str, path: str, text: str, mode: str = "644") -> None:
        self.sh(box, f"mkdir -p $(dirname {path}) && cat > {path} && chmod {mode} {path}", text)

    def be_in(self, layout: str) -> None:
        say(f"putting {layout}")
        argv = [str(self.fleetctl), "cutover", "--to", layout, "--yes", "-f", str(self.file), "--json"]
        run(argv, doing=f"the cutover to {layout}")

    def look(self) -> Look:
        """One run of doctor. Raises BenchError when it could not look at everything."""
        argv = [str(self.fleetctl), "doctor", "-f", str(self.file), "--json"]
        began = time.perf_counter()
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
        took = time.perf_counter() - began
        events = [json.loads(row) for row in done.stdout.splitlines()]
        if done.returncode not in (0, 9):
            raise BenchError(f"doctor ended with {done.returncode}: {events[-1:]} {done.stderr[-1000:]}")
        return Look([event for event in events if event["type"] == "finding"], took)

    # What is counted

    def well(self, what: str, models: Sequence[str]) -> None:
        """Nothing is to be found at rest and under traffic."""
        looks = {"at rest": self.look()}
        with clients(self.url, models):
            time.sleep(3)
            looks["under traffic"] = self.look()
        for when, look in looks.items():
            self.healthy += len(look.findings)
            say(f"healthy {what} {when}: {len(look.findings)} findings, {look.seconds:.2f} s")
            for one in look.findings:
                say(f"  not planted: {one['code']} {one['box']} {one['where']}: {one['says']} {one['evidence']}")

    def faulty(self, what: str, faults: Sequence[Fault], asked: Sequence[str]) -> None:
        """Plant all of them, and look until all are found."""
        for fault in faults:
            self.plant(fault)
        with clients(self.url, [model for model in asked if model != "refused"] * 3):
            if "refused" in asked and (status := ask(self.url, "refused", tools=[TOOLS])) != 400:
                raise BenchError(f"an engine without a parser answered {status} to a request with tools")
            end = time.monotonic() + LONGEST
            while True:
                time.sleep(5)
                look = self.look()
                missing = [fault for fault in faults if not found(fault, look.findings)]
                settled = all(self.settled(fault) for fault in faults)
                if (not missing and settled) or time.monotonic() > end:
                    break
        beside = [one for one in look.findings if not expected(one, faults)]
        for fault in faults:
            codes = ", ".join(code for code, _ in fault.found)
            say(f"{'missed' if fault in missing else 'found'}: {fault.symptom} ({fault.how}; {fault.box}; {codes})")
        for one in beside:
            say(f"  not planted: {one['code']} {one['box']} {one['where']}: {one['says']} {one['evidence']}")
        say(f"{what}: {len(faults) - len(missing)} of {len(faults)} faults found, {len(beside)} findings beside them")
        self.planted += len(faults)
        self.found += len(faults) - len(missing)
        self.unplanted += len(beside)

    def plant(self, fault: Fault) -> None:
        for path, text in fault.files.items():
            self.put(fault.box, path, text)
        for name, text in fault.programs.items():
            self.put(fault.box, f"/usr/local/bin/{name}", text, "755")
        for model, text in fault.says.items():
            self.put(fault.box, f"{SAYS}/{model}", text)
        for model, settings in fault.control.items():
            self.put(fault.box, f"/etc/standin-{model}.json", json.dumps(settings))
        if fault.run:
            self.sh(fault.box, fault.run)
        if fault.restart:
            self.sh(fault.box, f"systemctl restart --no-block {' '.join(fault.restart)}")

    def settled(self, fault: Fault) -> bool:
        """Its unit has come to where the fault lets it: it does not wait for its next start."""
        if fault.unit is None or fault.unit.endswith("looping.service"):
            return True
        return "auto-restart" not in self.sh(fault.box, f"systemctl show -P SubState {fault.unit}")

    def take_back(self) -> None:
        """Take away what the faults of splits left; the next move stops their units."""
        for box in self.boxes:
            self.sh(box.name, f"rm -rf {SAYS} /opt/bench/skew/lib; systemctl stop squatter 2>/dev/null; true")


def found(fault: Fault, findings: Sequence[Found]) -> bool:
    """All that it has to bring is there."""
    return all(any(brings(fault, one, code, where) for one in findings) for code, where in fault.found)


def brings(fault: Fault, one: Found, code: str, where: str) -> bool:
    """It is the finding that a fault brings."""
    place = (one["code"], one["box"]) == (code, fault.box if fault.seen_on == "" else fault.seen_on) and one[
        "where"
    ].startswith(where)
    return place and fault.evidence in "\n".join(one["evidence"])


def expected(one: Found, faults: Sequence[Fault]) -> bool:
    """A fault brings this finding, or keeps the unit down of which it tells."""
    return any(
        any(brings(fault, one, code, where) for code, where in fault.found)
        or (one["code"] in UNIT_DOWN and one["where"] == fault.unit)
        for fault in faults
    )


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
