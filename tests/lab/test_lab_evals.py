"""The tool-use test against engines on boxes, and as a gate before traffic moves."""

from __future__ import annotations

from typing import Any

from moving import Moving


def gated(moving: Moving, **gate: Any) -> str:
    return moving.changed(lambda d: d.update(gates={"tools": gate}))


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

    gates = {"tools": {"no_worse_than": "current", "tolerance": 100}, "long_context": {"tokens": 20_000}}
    forgets = moving.changed(lambda d: d.update(gates=gates))
    refused = moving.run("cutover", "--to", "replicas", "--yes", text=forgets)
    assert (refused.rc, "failed the gate long_context: in a prompt of " in refused.said) == (6, True), refused
    gates["long_context"]["find"] = False
    good = moving.changed(lambda d: d.update(gates=gates))
    plan = moving.run("plan", "--to", "replicas", text=good).plan
    assert [step["params"]["tools"] for step in plan["steps"] if step["kind"] == "gate"] == [0.0, 0.0]
    moved = moving.cutover("replicas", text=good)
    end = next(event for event in moved.events if event["type"] == "move" and event["state"] == "done")
    assert set(end["scores"]) == {"replicas/standin@box1", "replicas/standin@box2"}
    changed = next(event for event in moving.run("history").events if event["type"] == "change")
    assert all(" → " in told for told in changed["scores"].values()) and len(changed["scores"]) == 2, changed
    # What has passed is not asked again.
    again = moving.run("restart", "--yes", text=good)
    assert again.rc == 0 and all("tools" not in step["params"] for step in again.plan["steps"])


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
