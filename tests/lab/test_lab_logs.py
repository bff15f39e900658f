"""Logs of two boxes as one, through restarts and lost connections, and top against engines at work."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from moving import BOXES, COPY, FLEETCTL, PATIENCE, Moving, eventually

Event = dict[str, Any]
# Sends datagrams as systemd's native protocol has them: root may say which unit a message is about.
SAY = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect("/run/systemd/journal/socket")
text, count = sys.stdin.read(), int(sys.argv[2])
for number in range(count):
    s.send(("MESSAGE=%s\\nOBJECT_SYSTEMD_UNIT=%s\\n" % (text.replace("#", str(number)), sys.argv[1])).encode())
"""


@pytest.fixture
def replicas(moving: Moving) -> Moving:
    """A copy on each of two boxes."""
    moving.be_in("replicas")
    return moving


class Log:
    """``fleetctl logs WORDS --json`` under way."""

    def __init__(self, moving: Moving, *words: str, json: bool = True) -> None:
        argv = [FLEETCTL, "logs", *words, "--fleet", str(moving.file()), *(["--json"] if json else [])]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.events: list[Event] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        if json:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """Read on to an event like this."""
        deadline = time.monotonic() + PATIENCE
        while (line := self._lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            self.events.append(json.loads(line))
            if wanted(self.events[-1]):
                return self.events[-1]
        raise AssertionError(f"it ended: {self.events[-5:]}")

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)

    def rest(self) -> list[Event]:
        """All events, once it has ended."""
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            self.events.append(json.loads(line))
        return self.events

    def lines(self, box: str | None = None) -> list[Event]:
        return [e for e in self.events if e["type"] == "line" and box in (None, e["box"])]


def logs(moving: Moving, *words: str) -> list[Event]:
    """The events of ``fleetctl logs`` that ends by itself."""
    log = Log(moving, *words)
    events = log.rest()
    assert log.process.wait(PATIENCE) == 0, events
    return events


def say(moving: Moving, box: str, text: str, count: int = 1) -> None:
    """Something is written to the journal about the engine's unit; ``#`` becomes the number."""
    ran = moving.lab.exec(box, ["python3", "-c", SAY, COPY, str(count)], input=text)
    assert ran.returncode == 0, ran.stderr


def journal(moving: Moving, box: str) -> list[float]:
    """Times of all that the journal of a box has about the engine, as journalctl shows them."""
    told = moving.sh(box, f"journalctl --unit {COPY} -o json --output-fields=_PID --no-pager")
    return [int(json.loads(line)["__REALTIME_TIMESTAMP"]) / 1e6 for line in told.splitlines()]


def nobody_reads(moving: Moving) -> bool:
    return all(moving.sh(box, "pgrep -x journalctl") == "" for box in BOXES)


@pytest.fixture(autouse=True)
def none_left(moving: Moving) -> Iterator[None]:
    """However a log ends, no journalctl is left behind on a box."""
    yield
    eventually(lambda: nobody_reads(moving))


def test_lines_of_both_boxes_are_in_order_and_none_is_missing(replicas: Moving) -> None:
    moving = replicas
    for number in range(6):
        say(moving, BOXES[number % 2], f"planted {number}")
    begin = time.monotonic()
    events = logs(moving, "-n", "40")
    print(f"\nthe newest 40 lines of each box took {time.monotonic() - begin:.2f} s")
    times = [e["time"] for e in events]
    assert times == sorted(times) and {e["box"] for e in events} == set(BOXES)
    planted = [e for e in events if e["text"].startswith("planted")][-6:]
    assert [(e["box"], e["text"]) for e in planted] == [(BOXES[n % 2], f"planted {n}") for n in range(6)]
    assert not any('"GET /health' in e["text"] for e in events), "health checks are left out"
    assert {(e["engine"], e["unit"]) for e in events} == {(f"replicas/standin@{box}", COPY) for box in BOXES}
    # With --all since the beginning it is what journalctl shows, of each box to the last line.
    everything = logs(moving, COPY, "--all", "--since", "@0")
    for box in BOXES:
        told = list(dict.fromkeys(e["box_time"] for e in everything if e["box"] == box))
        assert told == list(dict.fromkeys(journal(moving, box)))[: len(told)] and len(told) > 20
    # Some of it.
    assert [e["text"] for e in logs(moving, "box2", "-n", "3", "--grep", "PLANTED|planted")] == [
        "planted 1",
        "planted 3",
        "planted 5",
    ]
    second = planted[1]["box_time"]
    some = logs(moving, "--since", f"@{second:.6f}", "--until", f"@{planted[3]['box_time']:.6f}", "--grep", "planted")
    assert {"planted 1", "planted 2"} <= {e["text"] for e in some} <= {f"planted {n}" for n in (1, 2, 3)}


def test_secrets_and_what_a_terminal_would_obey_do_not_get_out(replicas: Moving) -> None:
    moving = replicas
    say(moving, "box1", "args: --api-key sk-very-secret HF_TOKEN=hf_secret \x1b[31mred\x1b[0m \x07\x1b]0;title\x07end")
    told = [e["text"] for e in logs(moving, "box1", "-n", "5") if e["text"].startswith("args")]
    assert told == ["args: --api-key [hidden] HF_TOKEN=[hidden] red \\x07end"]


def test_following_goes_on_through_a_restart_a_lost_connection_and_a_rotation(replicas: Moving) -> None:
    moving = replicas
    log = Log(moving, "-f", "--all", COPY, "-n", "1")
    for box in BOXES:
        log.until(lambda e, box=box: e["type"] == "line" and e["box"] == box)  # type: ignore[misc]
    moving.sh("box1", f"systemctl restart --no-block {COPY}")
    log.until(lambda e: e["type"] == "line" and e["identifier"] == "systemd" and e["text"].startswith("Started"))
    # The connection breaks, the engine starts anew meanwhile, and journald begins a new file.
    moving.sh("box2", f"pkill -KILL -u fleet sshd; systemctl restart --no-block {COPY}; journalctl --rotate --quiet")
    lost = log.until(lambda e: e["type"] == "note")
    assert lost["box"] == "box2" and "trying again" in lost["text"]
    begin = time.monotonic()
    log.until(lambda e: e["type"] == "note" and e["text"] == "is back")
    print(f"\nthe box was back {time.monotonic() - begin:.1f} s after its loss was noticed")
    eventually(moving.answers)
    for box in BOXES:
        say(moving, box, "the last of it")
        log.until(lambda e, box=box: e.get("text") == "the last of it" and e["box"] == box)  # type: ignore[misc]
    assert log.interrupt() == 130
    log.rest()
    for box in BOXES:
        told, kept = [e["box_time"] for e in log.lines(box)], journal(moving, box)
        start = kept.index(told[0])
        end = len(kept) - 1 - kept[::-1].index(told[-1])
        assert told == kept[start : end + 1], "nothing is missing, nothing is there twice"
    assert not [e for e in log.events if e["type"] == "error"], "it ends quietly"


def told_by_journalctl(moving: Moving, box: str) -> int:
    """Bytes that the journalctl on a box has written so far."""
    return int(moving.sh(box, "awk '/^wchar/ {print $2}' /proc/$(pgrep -x journalctl)/io"))


def test_a_flood_is_read_no_faster_than_it_is_taken_and_a_reader_that_leaves_ends_it(replicas: Moving) -> None:
    moving = replicas
    begin = time.time()
    say(moving, "box1", "flood # " + 400 * "x", count=20_000)
    log = Log(moving, "-f", "box1", "--since", f"@{begin:.3f}", json=False)
    assert log.process.stdout is not None
    first = log.process.stdout.readline()
    written = 0
    while written < (now := told_by_journalctl(moving, "box1")):  # until it writes no more
        written = now
        time.sleep(2)
    with open(f"/proc/{log.process.pid}/status") as status:
        memory = int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024
    print(f"\n{memory:.0f} MiB, and journalctl stopped after {written / 1e6:.1f} MB, with 20,000 lines unread")
    assert 0 < written < 20_000 * 400, "journalctl waits for the reader"
    assert "flood" in first
    log.process.stdout.close()
    assert log.process.wait(PATIENCE) == 141


def test_a_box_that_cannot_be_reached_is_said_and_the_other_is_shown(replicas: Moving) -> None:
    moving = replicas
    text = moving.changed(lambda d: d["boxes"]["box2"]["ssh"].update(port=9))
    argv = [FLEETCTL, "logs", "-n", "5", "--fleet", str(moving.file(text)), "--json"]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert (ran.returncode, {e["box"] for e in events if e["type"] == "line"}) == (3, {"box1"}), ran
    assert [e["box"] for e in events if e["type"] == "note"] == ["box2"]


def top(moving: Moving, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [FLEETCTL, "top", "--once", "--interval", "2", "--fleet", str(moving.file()), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ}, check=False)


def test_top_once_tells_what_each_copy_does_under_traffic_and_what_is_not_known(replicas: Moving) -> None:
    moving = replicas
    eventually(lambda: moving.status()["exit"] == 0, moving.status)
    with moving.steady_traffic(6):
        ran = top(moving, "--json")
    (seen,) = [json.loads(line) for line in ran.stdout.splitlines()]
    assert (ran.returncode, seen["type"], seen["layout"]) == (0, "sample", "replicas"), ran
    rates = [copy["figures"]["generation_rate"] for copy in seen["copies"]]
    assert all(rate > 0 for rate in rates) and seen["total"]["generation_rate"] == pytest.approx(sum(rates))
    assert all(seen["total"][name] is not None for name in ("running", "request_rate", "first_token", "cache_usage"))
    assert all(box["available"] > 0 for box in seen["boxes"].values())
    moving.sh("box2", f"systemctl stop {COPY}")
    ran = top(moving)
    row = next(line for line in ran.stdout.splitlines() if "standin@box2" in line)
    assert row.split()[1] == "inactive" and not any(letter.isdigit() for letter in row.replace("box2", "")), row
    assert "1 of 2" in ran.stdout
    moving.sh("box2", f"systemctl start {COPY}")
    eventually(lambda: moving.status()["exit"] == 0, moving.status)
