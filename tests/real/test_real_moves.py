"""Split, replicas and back with real vLLM on two boxes, and what a split does when it breaks."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from traffic import Traffic, ask, until

from fleetctl.lab.lab import Lab

FLEETCTL = str(Path(sys.executable).with_name("fleetctl"))
MODEL = "tiny"
SPLIT, COPY = "fleetctl-split-tiny.service", "fleetctl-replicas-tiny.service"
BOXES = ("box1", "box2")
PATIENCE = 300.0  # seconds; only ever spent by a test that fails
BEFORE, AFTER = 3.0, 3.0  # seconds of traffic around what happens

Figures = list[tuple[str, ...]]


def proxy(lab: Lab) -> str:
    return f"http://{lab.box('box1').address}:8080"


def fleetctl(lab: Lab, *words: str) -> list[dict[str, Any]]:
    """Run a command; its events. Fails the test with all that it said when it does not succeed."""
    ran = subprocess.run(
        [FLEETCTL, *words, "-f", str(lab.fleet_file), "--json"], capture_output=True, text=True, check=False
    )
    quiet = [line for line in ran.stdout.splitlines() if '"state": "progress"' not in line]
    assert ran.returncode == 0, f"{words}: status {ran.returncode}\n" + "\n".join(quiet[-12:]) + ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def move(lab: Lab, *words: str) -> dict[str, Any]:
    """Move the fleet; the last event, with what was measured."""
    return fleetctl(lab, *words, "--yes")[-1]


def in_split(lab: Lab) -> None:
    move(lab, "cutover", "--to", "split")


def layout(lab: Lab) -> str:
    """The layout that is live; `fleetctl status` fails when anything is wrong with it."""
    return str(fleetctl(lab, "status")[-1]["layout"])


def assert_answers(lab: Lab) -> None:
    """The proxy serves the model under its name, and three completions have text."""
    for _ in range(3):
        assert ask(proxy(lab), MODEL).failure is None


def state(lab: Lab, box: str, unit: str) -> str:
    return lab.exec(box, ["systemctl", "is-active", unit]).stdout.strip()


def epoch(lab: Lab, box: str) -> str:
    """The epoch in which the engine on a box was last started."""
    log = lab.exec(box, ["journalctl", "-q", "-o", "cat", "-u", SPLIT, "--grep=engine started"]).stdout
    return log.splitlines()[-1].partition("epoch ")[2].partition(":")[0]


def log(lab: Lab) -> str:
    """What the units of the split last said, without the proxy's health checks."""
    command = f"journalctl -q -o cat -n 400 -u {SPLIT} | grep -v 'GET /health' | tail -n 25"
    return "\n".join(f"--- {box}\n{lab.exec(box, ['sh', '-c', command]).stdout}" for box in BOXES)


def row(name: str, traffic: Traffic, end: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table: figures of the move itself, and what the clients saw of it."""
    stop, load, ready = (values(end[key]) for key in ("stops", "loads", "ready"))
    first = traffic.first_answer(min(ready))
    assert first is not None, "no answer after the engine was ready"
    asked = traffic.asked
    return (
        name,
        f"{end['gap']:.1f}",
        f"{max(stop):.1f}",
        " / ".join(f"{one:.1f}" for one in load),
        f"{end['gap'] - max(stop) - min(load):.2f}",
        f"{first.answered - min(ready):.2f}",
        str(len(asked)),
        str(len(traffic.failed)),
        str(sum(1 for one in asked if one.sent >= end["held_from"] - 1 and one.waited > 1)),
    )


def values(measured: dict[str, float]) -> list[float]:
    return [measured[name] for name in sorted(measured)]


def test_split_to_replicas_and_back_with_every_request_answered(lab: Lab, figures: Figures) -> None:
    began = move(lab, "cutover", "--to", "split")
    load = f"{began['loads']['split/tiny']:.1f}"
    figures.append(("nothing → split", "-", "-", load, "-", "-", "-", "-", "-"))
    assert layout(lab) == "split"
    assert_answers(lab)

    with Traffic(proxy(lab), MODEL) as there:
        time.sleep(BEFORE)
        end = move(lab, "cutover", "--to", "replicas")
        time.sleep(AFTER)
    figures.append(row("split → replicas", there, end))
    assert there.failed == []
    assert layout(lab) == "replicas"
    assert [state(lab, box, COPY) for box in BOXES] == ["active", "active"]
    assert_answers(lab)

    with Traffic(proxy(lab), MODEL) as back:
        time.sleep(BEFORE)
        end = move(lab, "rollback")
        time.sleep(AFTER)
    figures.append(row("rollback to split", back, end))
    assert back.failed == []
    assert layout(lab) == "split"
    assert [state(lab, box, COPY) for box in BOXES] == ["inactive", "inactive"]
    assert_answers(lab)


def test_a_split_that_lost_its_follower_ends_as_one_and_comes_back_as_one(lab: Lab, figures: Figures) -> None:
    in_split(lab)
    before = {epoch(lab, box) for box in BOXES}
    with Traffic(proxy(lab), MODEL) as traffic:
        time.sleep(BEFORE)
        # rank.py is the unit's main process, and the engine is its child.
        lab.exec("box2", ["sh", "-c", f"kill -9 $(pgrep -P $(systemctl show -P MainPID {SPLIT}))"])
        killed = time.time()
        until(lambda: refused(lab), lambda: "the head goes on without its follower\n" + log(lab), PATIENCE)
        down = time.time()
        until(lambda: traffic.first_answer(down), lambda: "the split does not come back\n" + log(lab), PATIENCE)
        time.sleep(AFTER)
    # A request that was on the engine, or reached it before its port was closed, is lost; every later one waited.
    assert [one for one in traffic.failed if one.sent > down] == []
    after = {epoch(lab, box) for box in BOXES}
    assert len(before) == len(after) == 1 and before != after
    assert layout(lab) == "split"
    first = traffic.first_answer(down)
    assert first is not None
    held = sum(1 for one in traffic.asked if one.sent >= killed and one.waited > 1 and one.failure is None)
    counts = (str(len(traffic.asked)), str(len(traffic.failed)), str(held))
    figures.append(("follower killed", f"{first.answered - killed:.1f}", f"{down - killed:.1f}", *4 * ("-",), *counts))


def refused(lab: Lab) -> bool:
    """Whether nothing listens on the head's port any more."""
    try:
        socket.create_connection((lab.box("box1").address, 8000), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_split_comes_back_by_itself_when_both_boxes_are_rebooted(lab: Lab, figures: Figures) -> None:
    in_split(lab)
    before = epoch(lab, "box1")
    asked = time.time()
    with ThreadPoolExecutor(len(BOXES)) as pool:
        list(pool.map(lab.reboot, BOXES))
    booted = time.time()
    until(lambda: ask(proxy(lab), MODEL).failure is None, lambda: "no answer after the reboot\n" + log(lab), PATIENCE)
    answered = time.time()
    assert {epoch(lab, box) for box in BOXES}.isdisjoint({before})
    assert layout(lab) == "split"
    assert [state(lab, box, SPLIT) for box in BOXES] == ["active", "active"]
    figures.append(("both rebooted", f"{answered - asked:.1f}", f"{booted - asked:.1f}", *7 * ("-",)))
