"""The tool-use test against engines on boxes, and as a gate before traffic moves."""

from __future__ import annotations

import json
from typing import Any

from moving import Moving

TASKS = """\
{"id": "any", "prompt": "Say something.", "score": "regex", "expected": "[a-z]", "max_tokens": 64}
{"id": "wrong", "prompt": "Say xyzzy. My token=tk-1234567890", "score": "exact", "expected": "xyzzy", "max_tokens": 64}
"""


def gated(moving: Moving, **gate: Any) -> str:
    """fleet.yaml with an engine that calls tools, and the gate."""

    def change(document: dict[str, Any]) -> None:
        document["models"]["standin"]["arguments"] = ["--enable-auto-tool-choice", "--tool-call-parser=hermes"]
        document["gates"] = {"tools": gate}

    return moving.changed(change)


def test_a_score_is_noted_and_a_build_that_is_too_bad_gets_no_traffic(moving: Moving) -> None:
    moving.be_in("split")
    asked = moving.run("eval", "tools")
    assert asked.rc == 0, asked
    told = next(event for event in asked.events if event["type"] == "score")
    assert told["of"] == "split/standin" and len(told["categories"]) == 12
    # The stand-in calls the first tool that it is given, with made-up arguments.
    assert 0 < told["score"] < 60 and any("does not exist" not in one["why"] for one in told["failures"])

    before = moving.picture()
    with moving.steady_traffic() as traffic:
        refused = moving.run("cutover", "--to", "replicas", "--yes", text=gated(moving, at_least=95))
    assert (refused.rc, "failed the gate tools: it scored" in refused.said) == (6, True), refused
    assert traffic.failed == []
    moving.unscathed(before, "split")
    move = next(event["move"] for event in refused.events if event["type"] == "move")
    failures = [event for event in moving.run("history", move).events if event["type"] == "gate"]
    streamed = [
        one for failure in failures for one in failure["exchanges"] if '"stream": true' in one["request"]["text"]
    ]
    assert streamed and all("data: [DONE]" in one["response"]["text"] for one in streamed), failures

    gates = {"tools": {"no_worse_than": "current", "tolerance": 100}, "long_context": {"tokens": 20_000}}
    forgets = moving.changed(lambda d: d.update(gates=gates))
    refused = moving.run("cutover", "--to", "replicas", "--yes", text=forgets)
    assert (refused.rc, "failed the gate long_context: in a prompt of " in refused.said) == (6, True), refused
    gates["long_context"]["find"] = False
    good = moving.changed(lambda d: d.update(gates=gates))
    plan = moving.run("plan", "--to", "replicas", text=good).plan
    floors = [step["params"]["scores"]["tools"]["floor"] for step in plan["steps"] if step["kind"] == "gate"]
    assert floors == [0.0, 0.0]
    moved = moving.cutover("replicas", text=good)
    end = next(event for event in moved.events if event["type"] == "move" and event["state"] == "done")
    assert set(end["scores"]) == {"replicas/standin@box1", "replicas/standin@box2"}
    changed = next(event for event in moving.run("history").events if event["type"] == "change")
    assert len(changed["scores"]) == 2, changed
    assert all(told.startswith("tools ") and " → " in told for told in changed["scores"].values()), changed
    # What has passed is not asked again.
    again = moving.run("restart", "--yes", text=good)
    assert again.rc == 0 and all("scores" not in step["params"] for step in again.plan["steps"])


def test_a_file_of_tasks_is_a_gate_and_what_it_asked_and_got_is_kept(moving: Moving) -> None:
    moving.be_in("split")
    (moving.folder / "tasks.jsonl").write_text(TASKS)
    asked = moving.run("eval", str(moving.folder / "tasks.jsonl"))
    assert next(event for event in asked.events if event["type"] == "model")["quality"] == 0.5, asked
    before = moving.picture()

    def gates(**gate: Any) -> str:
        evaluation = {"file": "tasks.jsonl", "no_worse_than": "current", "within": "2m", **gate}
        return moving.changed(lambda d: d.update(gates={"evaluations": [evaluation]}))

    with moving.steady_traffic() as traffic:
        refused = moving.run("cutover", "--to", "replicas", "--yes", text=gates(at_least=80))
    assert refused.rc == 6 and traffic.failed == [], refused
    wanted = "failed the gate tasks.jsonl: it scored 50.0 of 100 and 80.0 is wanted (1 of 2 tasks are right)"
    assert wanted in refused.said
    assert "wrong: it said " in refused.said
    moving.unscathed(before, "split")

    move = next(event["move"] for event in refused.events if event["type"] == "move")
    assert f"/var/lib/fleetctl/moves/{move}/gates/" in refused.said and f"`fleetctl history {move}`" in refused.said
    kept = moving.sh("box1", f"cd /var/lib/fleetctl/moves/{move}/gates && stat -c '%a %U' . * && cat *")
    assert kept.splitlines()[:2] == ["700 root", "600 root"] and "tk-1234567890" not in kept
    failed = [event for event in moving.run("history", move).events if event["type"] == "gate"]
    (exchange,) = failed[0]["exchanges"]
    assert json.loads(exchange["request"]["text"])["max_tokens"] == 64 and "xyzzy" in exchange["request"]["text"]
    assert json.loads(exchange["response"]["text"])["choices"] and exchange["response"]["status"] == 200
    assert failed[0]["why"].startswith("it scored 50.0 of 100") and failed[0]["box"] == "box1"

    plan = moving.run("plan", "--to", "replicas", text=gates()).plan
    scores = [step["params"]["scores"] for step in plan["steps"] if step["kind"] == "gate"]
    assert [list(one.values()) for one in scores] == 2 * [[{"floor": 47.0, "before": 50.0}]]
    # The plan has the text in it: a file that is gone meanwhile keeps nobody from finishing.
    assert plan["release"]["tasks"] == {"tasks.jsonl": TASKS}
    moving.cutover("replicas", text=gates())
    changed = next(event for event in moving.run("history").events if event["type"] == "change")
    assert set(changed["scores"].values()) == {"tasks.jsonl 50 → 50"}, changed


def test_every_gate_that_fails_keeps_what_it_asked_and_got(moving: Moving) -> None:
    moving.be_in("split")
    faults: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
        ("model", {}, {"error_500": True}, "", "Internal"),
        ("completion", {}, {"die_at_first_request": True}, '"stream": true', ""),
        ("long_context", {"long_context": {"tokens": 20_000}}, {}, "Entry 000001", "prompt_tokens"),
    ]
    for gate, gates, control, asked, answered in faults:
        for box in ("box1", "box2"):
            moving.control(box, **control)
        text = moving.changed(lambda d, gates=gates: d.update(gates=gates))  # type: ignore[misc]
        refused = moving.run("cutover", "--to", "replicas", "--yes", text=text)
        assert (refused.rc, f"failed the gate {gate}: " in refused.said) == (6, True), refused
        move = next(event["move"] for event in refused.events if event["type"] == "move")
        failures = [event for event in moving.run("history", move).events if event["type"] == "gate"]
        exchanges = [one for failure in failures for one in failure["exchanges"]]
        assert {failure["gate"] for failure in failures} == {gate}, failures
        assert any(asked in one["request"]["text"] for one in exchanges)
        assert any(answered in one["response"]["text"] for one in exchanges), exchanges


def test_a_new_build_has_to_answer_as_the_one_that_serves(moving: Moving) -> None:
    moving.be_in("split")
    before = moving.picture()

    def short(document: dict[str, Any]) -> None:
        document.update(gates={"same_answers": {"at_least": 1.0}})
        document["models"]["standin"]["environment"]["STANDIN_ANSWER_TOKENS"] = "2"

    refused = moving.run("cutover", "--to", "replicas", "--yes", text=moving.changed(short))
    assert (refused.rc, "failed the gate same_answers: " in refused.said, ", now " in refused.said) == (6, True, True)
    moving.unscathed(before, "split")
    same = moving.changed(lambda d: d.update(gates={"same_answers": {"at_least": 1.0}}))
    told = [event for event in moving.cutover("replicas", text=same).events if event.get("state") == "done"]
    gates = [event["result"]["same_answers"] for event in told if ".gate." in event.get("step", "")]
    assert gates == 2 * [{"same": 1.0, "prompts": 10}], told


def test_what_cannot_be_asked_is_said_in_one_line(moving: Moving) -> None:
    assert moving.run("eval", "tools", "standing").said.startswith("no engine or model standing in ")
    nobody = moving.run("eval", "tools", "--against", "http://127.0.0.1:1")
    assert (nobody.rc, "was not answered" in nobody.said) == (1, True)
    assert moving.run("eval", "tools", "--against", "here").rc == 2
    assert moving.run("eval", "tools", "--at-least", "100").rc == 9
