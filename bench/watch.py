#!/usr/bin/env python3
"""What watching a fleet costs, and whether its sums are those of the engines.

Run it alone, as root, on Debian or Ubuntu: ``python3 bench/watch.py``. It brings up two boxes of its own.

- ``status_s``: ``fleetctl status --json`` on the two boxes with a stand-in engine each, as a whole process.
- ``sum_error``: clients use the proxy while ``fleetctl exporter`` is scraped; both engines are restarted, one after the
  other, and one box loses its network for a while. At the end each counter of the exporter (tokens generated, prompt
  tokens, requests) is compared with what the engines themselves said, read by their own addresses: before each
  restart, when they had nothing to do and the exporter had been scraped once more, and at the end. The figure is the
  largest difference. ``steps_back`` is how often the exporter's sum was lower than before;
  ``steps_back_through_proxy`` the same of /metrics read through a plain proxy in front of both meanwhile, as a monitor
  does that does not know of the copies. (fleetctl's own answers 404 there.)
- ``scrape_s``: a scrape of the exporter with 32 copies, 16 on each box, all of them read for it.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from _common import (
    CHECKOUT,
    BenchError,
    Contender,
    Figure,
    at_least,
    at_most,
    environment,
    interleaved,
    make_venv,
    run,
    say,
    say_load,
)
from _fleet import until
from _lab import base_cache, boxes_of, measured

from fleetctl.lab.lab import Lab
from fleetctl.lab.state import Bind

if TYPE_CHECKING:
    from fleetctl.lab.state import LabBox

FOLDER = Path("/var/lib/fleetctl-bench-watch")
MANY = [f"m{number:02d}" for number in range(16)]  # models of the layout with many copies, each on both boxes
PORT, PROXY_PORT, PLAIN_PORT = 8000, 8080, 8090
PLAIN = """\
defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 60s
listen plain
    bind :%d
    balance leastconn
"""
UNIT = "fleetctl-replicas-one.service"
CLIENTS, TOKENS = 4, 24
AWAY = 6.0  # seconds that a box is without its network
# Engine's name of a counter → the exporter's.
COUNTERS = {
    "vllm:generation_tokens_total": "fleetctl_generation_tokens_total",
    "vllm:prompt_tokens_total": "fleetctl_prompt_tokens_total",
    "vllm:request_success_total": "fleetctl_requests_total",
}
TOKENS_MADE = "vllm:generation_tokens_total"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the watch on a fleet.")
    parser.add_argument("--rounds", type=int, default=9, help="runs of status after the warm-up")
    parser.add_argument("--scrapes", type=int, default=30, help="scrapes with 32 copies after the warm-up")
    options = parser.parse_args()
    lab = Lab(
        FOLDER / "lab",
        bridge="fleetbench8",
        subnet="10.77.218.0/24",
        link_subnet="10.78.218.0/24",
        base=base_cache(),
    )
    return measured("watch", FOLDER, lab.down, lambda: measure(lab, options.rounds, options.scrapes))


def measure(lab: Lab, rounds: int, scrapes: int) -> dict[str, Figure]:
    """Set everything up, measure, and return the figures."""
    fleetctl = make_venv(FOLDER / "fleetctl", str(CHECKOUT)) / "fleetctl"
    boxes = lab.up(2, say, binds=[Bind(CHECKOUT / "fleetctl/lab/standin", Path("/opt/standin"))])
    fleet = write_fleet(boxes, ["one"])
    program = Program(fleetctl, fleet)
    say("one copy on each box")
    program.cutover("replicas")
    say_load()
    status = Contender("fleetctl status", [str(fleetctl), "status", "-f", str(fleet), "--json"], expect_healthy, FOLDER)
    interleaved([status], rounds)
    say(status.told())
    say("sums through two restarts and the loss of a box's network")
    figures = sums(lab, program, boxes)
    say(f"{len(MANY)} copies on each box")
    program = Program(fleetctl, write_fleet(boxes, ["one", *MANY]))
    program.cutover("many")
    say_load()
    seconds = scrape(program, scrapes)
    say_load()
    return {"status_s": at_most(statistics.median(status.seconds), 1.0), **figures, **seconds}


# The fleet ---------------------------------------------------------------------------------------------------


def write_fleet(boxes: Sequence[LabBox], models: Sequence[str]) -> Path:
    """fleet.yaml: a layout with a copy of the first model on each box, and one with a copy of each of the others.

    The first is alone in its layout.
    """
    names = [box.name for box in boxes]
    first, *others = models
    layouts = {"replicas": {first: {"copies": copies(names, 0.5), "concurrency": 12, "port": PORT}}}
    if others:
        layouts["many"] = {
            model: {"copies": copies(names, 0.05), "concurrency": 4, "port": PORT + number}
            for number, model in enumerate(others, 1)
        }
    document = {
        "fleet": "bench",
        "boxes": boxes_of(boxes, "16GiB", "1GiB"),
        "models": {
            model: {
                "weights": "lab/standin",
                "weights_size": "64MiB",
                "served_as": [model],
                "context": 8192,
                "launch": {"venv": "/opt/standin"},
                "environment": {
                    "STANDIN_LOAD_SECONDS": "0.5",
                    "STANDIN_SPEED": "10",
                    "STANDIN_MEMORY_BYTES": "1048576",
                },
                "load_limit": "5m",
                "stop_limit": "20s",
            }
            for model in models
        },
        "layouts": layouts,
        "proxy": {"box": names[0], "port": PROXY_PORT},
    }
    path = FOLDER / f"fleet-{len(models)}.yaml"
    path.write_text(json.dumps(document, indent=1) + "\n")  # JSON is YAML
    return path


def copies(names: Sequence[str], share: float) -> dict[str, dict[str, float]]:
    """A copy on each box with that share of its memory."""
    return {name: {"gpu_memory_utilization": share} for name in names}


def expect_healthy(output: str) -> None:
    """status said that all is well."""
    told = [json.loads(line) for line in output.splitlines()]
    if not any(event["type"] == "status" and event["healthy"] for event in told):
        raise BenchError(f"status was to find a healthy fleet, and said: {output[:1000]}")


class Program:
    """fleetctl on this fleet."""

    def __init__(self, fleetctl: Path, fleet: Path) -> None:
        self._argv = [str(fleetctl)]
        self._end = ["-f", str(fleet), "--json"]

    def cutover(self, layout: str) -> None:
        run([*self._argv, "cutover", "--to", layout, "--yes", *self._end], doing=f"the cutover to {layout}")

    @contextmanager
    def exporter(self) -> Iterator[str]:
        """A running exporter; the URL of its metrics."""
        argv = [*self._argv, "exporter", "--listen", "127.0.0.1:0", *self._end]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment())
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise BenchError("fleetctl exporter ended before it listened")
            yield str(json.loads(line)["url"])
        finally:
            process.terminate()
            process.wait(30)


# Sums --------------------------------------------------------------------------------------------------------


def get(url: str, timeout: float = 10) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout) as answer:
        return str(answer.read().decode())


def value(page: str, name: str, label: str = "") -> float | None:
    """The sum of a metric's samples with a label, in Prometheus text; None when there are none."""
    found = re.findall(rf"^{name}(?:\{{[^}}\n]*{re.escape(label)}[^}}\n]*\}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, found)) if found else None


class Reader:
    """Reads a page again and again in a thread; ``seen`` has what a metric was, in order."""

    def __init__(self, url: str, name: str, pause: float) -> None:
        self.url, self.name, self._pause = url, name, pause
        self.seen: list[float] = []
        self.pages: list[str] = []
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over.wait(self._pause):
            began = time.monotonic()
            with contextlib.suppress(OSError, http.client.HTTPException):
                page = get(self.url)
                self.longest = max(self.longest, time.monotonic() - began)
                self.pages.append(page)
                now = value(page, self.name)
                if now is not None:
                    self.seen.append(now)

    @property
    def steps_back(self) -> int:
        return sum(later < sooner for sooner, later in pairwise(self.seen))


@contextmanager
def traffic(proxy: str) -> Iterator[None]:
    """Clients that ask again and again through the proxy, each to the end of its last answer."""
    stop = threading.Event()
    body = {"model": "one", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": TOKENS}

    def client() -> None:
        while not stop.is_set():
            request = urllib.request.Request(
                f"{proxy}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with contextlib.suppress(OSError, http.client.HTTPException):
                urllib.request.urlopen(request, timeout=60).read()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


class Truth:
    """What the engines themselves said that they had counted, over all their processes."""

    def __init__(self, boxes: Sequence[LabBox]) -> None:
        self._urls = {box.name: f"http://{box.address}:{PORT}/metrics" for box in boxes}
        self._past = dict.fromkeys(COUNTERS, 0.0)

    def page(self, box: str) -> str:
        return get(self._urls[box])

    def idle(self, box: str) -> bool:
        """The engine has no requests; what it has ended is counted."""
        with contextlib.suppress(OSError):
            page = self.page(box)
            return value(page, "vllm:num_requests_running") == 0 == value(page, "vllm:num_requests_waiting")
        return False

    def await_idle(self) -> None:
        for box in self._urls:
            until(lambda box=box: self.idle(box), f"the engine on {box} is not idle")
        time.sleep(0.5)

    def ends(self, box: str) -> None:
        """The process on a box is about to end."""
        page = self.page(box)
        for name in COUNTERS:
            self._past[name] += value(page, name) or 0.0

    def all(self) -> dict[str, float]:
        pages = [self.page(box) for box in self._urls]
        return {name: past + sum(value(page, name) or 0.0 for page in pages) for name, past in self._past.items()}


def plain_proxy(lab: Lab, boxes: Sequence[LabBox]) -> str:
    """An HAProxy on the first box that passes everything on to either engine; the URL of /metrics there."""
    servers = "".join(f"    server {box.name} {box.address}:{PORT} check\n" for box in boxes)
    config, home = "/run/plain.cfg", boxes[0]
    lab.exec(home.name, ["sh", "-c", f"cat > {config}"], PLAIN % PLAIN_PORT + servers)
    lab.exec(home.name, ["systemd-run", "--unit=plain-proxy", "haproxy", "-db", "-f", config])
    url = f"http://{home.address}:{PLAIN_PORT}/metrics"

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return value(get(url), TOKENS_MADE) is not None
        return False

    until(answers, "the plain proxy does not answer")
    return url


def sums(lab: Lab, program: Program, boxes: Sequence[LabBox]) -> dict[str, Figure]:
    """Two restarts and a box that is away, under traffic."""
    proxy = f"http://{boxes[0].address}:{PROXY_PORT}"
    truth = Truth(boxes)
    one, two = (box.name for box in boxes)
    with (
        program.exporter() as url,
        Reader(url, "fleetctl_generation_tokens_total", 0.5) as ours,
        Reader(plain_proxy(lab, boxes), TOKENS_MADE, 0.1) as theirs,
    ):
        for box in (one, two):
            with traffic(proxy):
                time.sleep(4)
            truth.await_idle()
            get(url)
            truth.ends(box)
            say(f"restart of the engine on {box}")
            lab.exec(box, ["systemctl", "restart", UNIT])
            until(lambda box=box: truth.idle(box), f"the engine on {box} does not come back")
        with traffic(proxy):
            time.sleep(2)
            say(f"{two} loses its network")
            lab.vanish(two)
            time.sleep(AWAY)
            lab.reappear(two)
            away = sum(value(page, "fleetctl_copy_up", f"@{two}") == 0 for page in ours.pages)
            until(lambda: value(get(url), "fleetctl_copy_up", f"@{two}") == 1, f"{two} does not come back")
            time.sleep(2)
        truth.await_idle()
        until(lambda: value(get(url), "fleetctl_copies_known") == 2, "the exporter does not know both copies")
        page, counted = get(url), truth.all()
    if not away:
        raise BenchError(f"the exporter never told that the copy on {two} was not known")
    differences = {name: (value(page, told) or 0.0) - counted[name] for name, told in COUNTERS.items()}
    restarts = value(page, "fleetctl_copy_restarts_total")
    for name, told in COUNTERS.items():
        say(f"{told} {value(page, told):g}, the engines' own {name}: {counted[name]:g}")
    say(f"restarts seen: {restarts:g}; scrapes {len(ours.pages)}, of them without the copy on {two}: {away}")
    say(f"through the proxy: {len(theirs.seen)} reads, {theirs.steps_back} of them lower than the one before")
    return {
        "counted_tokens": Figure(counted[TOKENS_MADE], "tokens"),
        "sum_error": at_most(max(abs(difference) for difference in differences.values()), 0, "units"),
        "restarts_seen": Figure(restarts or 0, "restarts", "2", restarts == 2),
        "steps_back": at_most(ours.steps_back, 0, "reads"),
        "steps_back_through_proxy": at_least(theirs.steps_back, 1, "reads"),
        "longest_scrape_with_a_box_away_s": Figure(round(ours.longest, 3), "s"),
    }


# Many copies -------------------------------------------------------------------------------------------------


def scrape(program: Program, times: int) -> dict[str, Figure]:
    """Scrapes with all copies up, one after the other."""
    took: list[float] = []
    with program.exporter() as url:
        get(url)  # the first brings the release and starts the threads
        for _ in range(times):
            began = time.perf_counter()
            page = get(url)
            took.append(time.perf_counter() - began)
            up = value(page, "fleetctl_copy_up")
            if up != 2 * len(MANY):
                raise BenchError(f"{up:g} copies could be read, not {2 * len(MANY)}")
    say(f"scrape: median {statistics.median(took):.3f} s ({min(took):.3f} to {max(took):.3f}, n={len(took)})")
    return {
        "copies": Figure(2 * len(MANY), "copies"),
        "scrape_s": at_most(statistics.median(took), 0.2),
        "slowest_scrape_s": Figure(round(max(took), 3), "s"),
    }


if __name__ == "__main__":
    sys.exit(main())
