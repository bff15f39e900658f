"""A batch job on real boxes: across a cutover away from the pool, a box without power, and the operator's absence."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from moving import BOXES, PROXY, Moving, Ran, eventually
from test_lab_floating import address, has_address, holders
from test_lab_pool import PASSWORDS, with_pool

LINES = 240
RUNNER = "fleetctl-batch.service"


@pytest.fixture
def text(moving: Moving) -> str:
    """The lab's file with a pool."""
    return moving.changed(with_pool)


def questions(folder: Path, last: str = "other") -> Path:
    """A file of questions, the last of which asks for a model that is not loaded yet."""
    rows = []
    for number in range(1, LINES + 1):
        model = last if number == LINES else "standin"
        body = {"model": model, "messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 60}
        url = "/v1/chat/completions"
        rows.append(json.dumps({"custom_id": f"q{number}", "method": "POST", "url": url, "body": body}))
    path = folder / "questions.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


def answered(moving: Moving, text: str) -> int:
    """Lines of the job that have their answers; -1 while nobody can say."""
    ran = moving.run("batch", "list", text=text, env=PASSWORDS)
    found: list[dict[str, Any]] = next((e["jobs"] for e in ran.events if e["type"] == "jobs"), [])
    return int(found[0]["answered"]) if found else -1


def test_each_line_is_answered_once_whatever_becomes_of_the_fleet(moving: Moving, text: str, tmp_path: Path) -> None:
    moving.cutover("pool", text=text, env=PASSWORDS)
    for box in BOXES:
        moving.control(box, speed=0.2)  # the job outlasts what is done to the fleet
    words = ("batch", "run", str(questions(tmp_path)), "--out", str(tmp_path / "answers.jsonl"))
    first = moving.start(*words, text=text, env=PASSWORDS)
    job = first.until_event("job")["job"]
    eventually(lambda: answered(moving, text) >= 10)
    first.process.send_signal(signal.SIGINT)
    left = first.finish()
    assert left.rc == 130 and f"{job} goes on without this command" in left.err, left

    again = moving.start(*words, text=text, env=PASSWORDS)
    assert again.until_event("job")["job"] == job
    moving.cutover("replicas", text=text, env=PASSWORDS)  # lines go to the copies now, through the proxy
    before = answered(moving, text)
    eventually(lambda: answered(moving, text) > before or before == LINES - 1)
    moving.lab.power_off("box1")
    moving.lab.power_on("box1")
    for box in BOXES:
        moving.control(box, speed=20)
    eventually(lambda: answered(moving, text) >= LINES - 1)  # the last is for a model that is in the pool alone
    moving.cutover("pool", text=text, env=PASSWORDS)
    ran: Ran = again.finish()
    assert ran.rc == 0, ran

    rows = [json.loads(row) for row in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"q{number}" for number in range(1, LINES + 1)]
    assert all(row["response"]["body"]["choices"][0]["message"]["content"] for row in rows)
    assert not (tmp_path / "answers.errors.jsonl").exists()
    moving.run("batch", "remove", job, "--yes", text=text, env=PASSWORDS)
    assert answered(moving, text) == -1
    moving.rollback()
    moving.be_in("replicas")


def takes_lines(moving: Moving, box: str) -> bool:
    """Whether the runner on a box said last that it does."""
    said = moving.sh(box, f"journalctl -u {RUNNER} -o cat | grep 'the address' | tail -n 1")
    return "is here: lines are taken" in said


def test_lines_for_copies_are_taken_where_the_floating_address_is(moving: Moving, tmp_path: Path) -> None:
    moving.be_in("replicas")

    def of_two(document: dict[str, Any]) -> None:
        with_pool(document)
        document["proxy"].update(box=None, boxes=[*BOXES], floating={"address": address(moving)})

    text = moving.changed(of_two)
    moving.cutover("replicas", text=text, env=PASSWORDS)
    eventually(lambda: len(holders(moving)) == 1)
    assert [moving.unit(box, RUNNER) for box in BOXES] == [("active", "enabled")] * 2
    if holders(moving) == ["box1"]:  # which has the only NATS, and is to stay
        moving.sh("box1", f"systemctl kill -s KILL {PROXY}")
        eventually(lambda: holders(moving) == ["box2"])
    for box in BOXES:
        moving.control(box, speed=0.2)
    words = ("batch", "run", str(questions(tmp_path, "standin")), "--out", str(tmp_path / "answers.jsonl"))
    waits = moving.start(*words, text=text, env=PASSWORDS)
    eventually(lambda: answered(moving, text) >= 10)
    assert [takes_lines(moving, box) for box in BOXES] == [False, True]
    moving.lab.power_off("box2")
    eventually(lambda: has_address(moving, "box1"))
    moving.control("box1", speed=20)
    ran = waits.finish()
    moving.lab.power_on("box2")
    assert ran.rc == 0, ran
    rows = [json.loads(row) for row in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"q{number}" for number in range(1, LINES + 1)]
    assert takes_lines(moving, "box1")
