"""What status, history and the web page say of a real fleet: while it moves, when a move fails, when a box goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moving import COPY, FLEETCTL, Moving, eventually

from fleetctl.lab.browser import browser

ENGINES = ("replicas/standin@box1", "replicas/standin@box2")


def history(moving: Moving, *words: str) -> list[dict[str, Any]]:
    """The changes that `fleetctl history` tells, the newest first."""
    ran = moving.run("history", *words)
    assert ran.rc == 0, ran
    return [event for event in ran.events if event["type"] == "change"]


def test_history_has_every_change_with_who_did_it_and_how_it_ended(fresh: Moving) -> None:
    moving = fresh
    moving.cutover("split")
    moving.cutover("replicas")
    slow = moving.changed(lambda d: d["models"]["standin"].update(load_limit="2s"))
    assert moving.run("apply", "--yes", text=slow.replace("'0.5'", "'600'")).rc == 6
    moving.rollback()
    assert moving.run("drain", "box2", "--hold", "--yes").rc == 0
    assert moving.run("undrain", "box2", "--yes").rc == 0

    found = history(moving)
    told = [(one["operation"], one["from_layout"], one["to_layout"], one["result"]) for one in reversed(found)]
    assert told == [
        ("cutover", None, "split", "done"),
        ("cutover", "split", "replicas", "done"),
        ("apply", "replicas", "replicas", "failed"),
        ("rollback", "replicas", "split", "done"),
        ("drain", "split", "split", "done"),
        ("undrain", "split", "split", "done"),
    ]
    there = found[-2]
    assert (there["from_generation"], there["generation"], there["generation_kept"]) == (1, 2, True)
    assert there["who"].startswith("root@") and "cutover --to replicas" in there["command"]
    assert there["gap"] > 0 and there["took"] >= there["gap"]
    failed = found[-3]
    assert "is not ready after 2 s" in failed["why"] and not failed["generation_kept"]

    # One move with its steps, named by how it ends.
    ran = moving.run("history", failed["move"][-4:])
    steps = [event for event in ran.events if event["type"] == "step"]
    assert {"undone", "waiting"} <= {step["state"] for step in steps}
    assert all(step["took"] >= 0 for step in steps if step["state"] == "done")
    generations = next(event for event in moving.run("history", "-n", "1").events if event["type"] == "generations")
    assert (generations["current"], generations["kept"]) == (1, {"1": "split", "2": "replicas"})
    assert len(history(moving, "-n", "2")) == 2


def test_what_guards_did_is_in_the_history_of_the_fleet(moving: Moving) -> None:
    event = {"at": time.time(), "kind": "stop", "unit": COPY, "why": "0.40 GiB available"}
    moving.put("box2", "/var/lib/fleetctl/guard/events.jsonl", json.dumps(event) + "\n")
    newest = history(moving, "-n", "1")[0]
    assert (newest["who"], newest["operation"], newest["unit"], newest["boxes"]) == ("guard", "stop", COPY, ["box2"])
    moving.sh("box2", "rm /var/lib/fleetctl/guard/events.jsonl")


def test_a_move_of_which_the_folder_was_removed_is_still_told(moving: Moving) -> None:
    moving.be_in("replicas")
    before = [one["move"] for one in history(moving, "-n", "100")]
    moving.sh("box1", "cd /var/lib/fleetctl/moves; for i in $(seq 60); do mkdir x$i; touch -d 2030-01-01 x$i; done")
    try:
        moving.run("drain", "box2", "--yes")
        moving.run("undrain", "box2", "--yes")
        assert moving.sh("box1", "ls /var/lib/fleetctl/moves | grep -vc ^x").strip() == "0"
        assert [one["move"] for one in history(moving, "-n", "100")][2:] == before
    finally:
        moving.sh("box1", "rm -r /var/lib/fleetctl/moves/x*")


def test_status_shows_traffic_memory_and_a_file_that_is_not_live_yet(moving: Moving) -> None:
    moving.be_in("replicas")
    moving.complete()
    took = []
    for _ in range(5):
        began = time.monotonic()
        told = moving.status()
        took.append(time.monotonic() - began)
    print(f"\nstatus --json of two boxes: {sorted(round(one, 2) for one in took)} s")
    assert (told["exit"], told["problems"], told["notes"]) == (0, [], [])
    assert [copy["why"] for copy in told["sample"]["copies"]] == [None, None]
    assert told["sample"]["counts"]["requests"] >= 1
    assert told["sample"]["total"]["generation_rate"] is not None
    assert set(told["memory"]) == {"box1", "box2"} and told["memory"]["box1"]["engines"] == 3 << 30
    edited = moving.with_environment(STANDIN_ANSWER_TOKENS="33")
    told = moving.status(edited)
    assert told["exit"] == 0 and "`fleetctl apply`" in told["notes"][0]
    assert moving.status(edited + "\n# a comment\n".replace("33", "32"))["exit"] == 0


def test_a_box_that_is_off_is_named_once_and_waited_for_briefly(moving: Moving) -> None:
    moving.be_in("replicas")
    began = time.monotonic()
    moving.status()
    alone = time.monotonic() - began
    moving.lab.vanish("box2")
    try:
        began = time.monotonic()
        told = moving.status()
        took = time.monotonic() - began
        print(f"\nstatus with a box off: {took:.1f} s, and {alone:.1f} s without")
        assert told["exit"] == 3
        assert [problem for problem in told["problems"] if "box2 cannot be reached: no answer from" in problem]
        assert sum(problem.count("box2") for problem in told["problems"]) == 1
        copies = {copy["id"]: copy for copy in told["sample"]["copies"]}
        assert copies[ENGINES[0]]["why"] is None
        assert copies[ENGINES[1]]["why"] and copies[ENGINES[1]]["figures"]["running"] is None
        assert took < alone + 8  # other commands give a connection that gets no answer up after 10 s
        assert moving.run("history").rc == 3
    finally:
        moving.lab.reappear("box2")
    eventually(lambda: moving.status()["exit"] == 0)


@contextmanager
def page(moving: Moving) -> Iterator[str]:
    """`fleetctl web` on a port of its own; it ends in order."""
    argv = [FLEETCTL, "web", "--listen", "127.0.0.1:0", "-f", str(moving.file()), "--json"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert told["type"] == "web" and told["loopback"]
    try:
        yield str(told["url"])
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_the_page_shows_both_copies_then_one_unknown_when_its_box_goes_and_both_again(moving: Moving) -> None:
    moving.be_in("replicas")
    shown = "[...document.querySelectorAll('#copies tr')].map(row => row.dataset.copy + ' ' + row.dataset.known).join()"
    both = f"{shown} == '{ENGINES[0]} true,{ENGINES[1]} true'"
    one = f"{shown} == '{ENGINES[0]} true,{ENGINES[1]} false'"
    with page(moving) as url, browser() as tab, moving.steady_traffic():
        tab.go(url)
        tab.until(f"{both} && document.querySelector('#wrong .good')")
        tab.until("document.querySelector('#tiles .value').textContent != 'unknown'")
        moving.lab.vanish("box2")
        try:
            tab.until(one)
            assert "of 2 copies" in tab.evaluate("document.getElementById('tiles').innerText")
            tab.until("document.getElementById('wrong').innerText.includes('box2 cannot be reached')")
        finally:
            moving.lab.reappear("box2")
        tab.until(both, limit=120)
        tab.until("document.querySelector('#wrong .good')", limit=120)
        assert tab.errors == []
