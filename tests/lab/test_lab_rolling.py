"""Work on the live layout while 20 clients, half of them streaming, go on asking: nothing is lost, nothing breaks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moving import BOXES, COPY, SPLIT, Moving, eventually

from fleetctl.lab.traffic import Crowd, Traffic

SERVERS = {box: f"standin/replicas-{box}" for box in BOXES}
ARGUMENT = ["--seed", "7"]


class Watch:
    """What was seen of the proxy's servers while something went on."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []

    def always_one_up(self) -> bool:
        return all(any(seen[server] == "UP" for server in SERVERS.values()) for seen in self.seen)

    def was_out(self, box: str) -> bool:
        return any(seen[SERVERS[box]] != "UP" for seen in self.seen)


@contextmanager
def under_traffic(moving: Moving) -> Iterator[Watch]:
    """Traffic and a watch on the proxy; at the end every request has been answered in full."""
    watch, over = Watch(), threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            watch.seen.append(moving.servers())

    thread = threading.Thread(target=look, daemon=True)
    with Crowd(moving.proxy, "standin", clients=20, period=1.5) as traffic:
        thread.start()
        try:
            yield watch
        finally:
            over.set()
            thread.join()
    requests = traffic.requests()
    assert [request for request in requests if not request.answered] == []
    assert len(requests) >= 20 and any(request.streamed for request in requests)


def pids(moving: Moving) -> dict[str, str]:
    return {box: moving.pid(box, COPY) for box in BOXES}


def with_arguments(moving: Moving, *more: str) -> str:
    return moving.changed(lambda d: d["models"]["standin"].update(arguments=[*ARGUMENT, *more]))


def healthy(moving: Moving, text: str | None = None) -> bool:
    seen = moving.status(text)
    assert (seen["exit"], seen["problems"]) == (0, []), seen
    return moving.answers()


def test_both_copies_restart_one_at_a_time(moving: Moving) -> None:
    moving.be_in("replicas")
    before, files = pids(moving), moving.picture()
    with under_traffic(moving) as watch:
        ran = moving.run("restart", "--yes")
    assert ran.rc == 0, ran
    after = pids(moving)
    assert all(before[box] != after[box] for box in BOXES)
    assert watch.always_one_up() and all(watch.was_out(box) for box in BOXES)
    assert ran.plan["gap"]["expected"] == 0.0
    done = ran.steps()
    assert done.index("roll.open.replicas/standin@box1") < done.index("roll.hold.replicas/standin@box2")
    assert moving.same_as(files)
    assert healthy(moving)


def test_a_restart_of_one_box_leaves_the_other_alone_and_a_wrong_name_is_refused(moving: Moving) -> None:
    moving.be_in("replicas")
    before = pids(moving)
    assert moving.run("restart", "box2", "--yes").rc == 0
    assert (pids(moving)["box1"], pids(moving)["box2"] != before["box2"]) == (before["box1"], True)
    wrong = moving.run("restart", "bix2", "--yes")
    assert (wrong.rc, "did you mean box2?" in wrong.said) == (2, True), wrong
    model = moving.run("restart", "standin", "--yes")
    assert len([step for step in model.steps() if ".start_engine." in step]) == 2, model


def test_a_changed_memory_share_of_one_box_touches_that_box_only(moving: Moving) -> None:
    moving.be_in("replicas")
    before = pids(moving)
    text = moving.changed(lambda d: d["boxes"]["box2"].update(reserve="1536MiB"))
    shown = moving.run("plan", text=text)
    assert (shown.rc, shown.plan["playbook"], shown.plan["gap"]["expected"]) == (0, "rolling", 0.0), shown
    with under_traffic(moving) as watch:
        ran = moving.run("apply", "--yes", text=text)
    assert ran.rc == 0, ran
    assert pids(moving)["box1"] == before["box1"] and pids(moving)["box2"] != before["box2"]
    assert not watch.was_out("box1") and watch.was_out("box2")
    assert [step for step in ran.steps() if ".install_files." in step] == ["roll.install_files.replicas/standin@box2"]
    assert healthy(moving, text)
    assert moving.run("apply", "--yes", text=text).nothing
    moving.rollback()
    assert healthy(moving)


def test_when_the_second_copy_fails_both_are_brought_back_one_at_a_time(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.picture()

    def change(document: dict[str, Any]) -> None:
        copies = {"box1": {"arguments": ARGUMENT}, "box2": {"environment": {"STANDIN_HEALTH_LIES": "true"}}}
        document["layouts"]["replicas"]["standin"]["copies"] = copies

    with under_traffic(moving) as watch:
        ran = moving.run("apply", "--yes", text=moving.changed(change))
    assert (ran.rc, "replicas/standin@box2 failed the gate" in ran.said) == (6, True), ran
    assert "roll.open.replicas/standin@box1" in ran.steps()
    undone = ran.steps("undone")
    first, second = "roll.open.replicas/standin@box1", "roll.hold.replicas/standin@box2"
    assert undone.index(second) < undone.index(first)
    assert watch.always_one_up()
    moving.unscathed(before, "replicas")


def test_an_apply_that_was_cut_off_goes_on_without_draining_the_copy_that_is_done(moving: Moving) -> None:
    moving.be_in("replicas")
    text = with_arguments(moving)
    with under_traffic(moving) as watch:
        move = moving.start("apply", "--yes", text=text)
        move.until("roll.start_engine.replicas/standin@box2", "done")
        move.process.kill()
        move.finish()
        first = moving.pid("box1", COPY)
        refused = moving.run("cutover", "--to", "split", "--yes", text=text)
        assert (refused.rc, "`fleetctl apply` finishes it" in refused.said) == (8, True), refused
        ran = moving.run("apply", "--yes", text=text)
    assert ran.rc == 0, ran
    assert moving.pid("box1", COPY) == first
    assert watch.always_one_up()
    assert healthy(moving, text)
    moving.rollback()


def test_a_split_restarts_as_a_whole_while_requests_are_held(moving: Moving) -> None:
    moving.be_in("split")
    before = {box: moving.pid(box, SPLIT) for box in BOXES}
    with Traffic(moving.proxy, "standin", rate=10.0) as traffic:
        ran = moving.run("restart", "box2", "--yes")
    assert ran.rc == 0, ran
    assert [request for request in traffic.requests() if not request.answered] == []
    assert all(moving.pid(box, SPLIT) != before[box] for box in BOXES)
    assert "not one at a time: split/standin is a split" in ran.plan["gap"]["why"]
    assert healthy(moving)


def test_a_drained_box_gets_no_requests_and_comes_back(moving: Moving) -> None:
    moving.be_in("replicas")
    with under_traffic(moving) as watch:
        ran = moving.run("drain", "box2", "--yes")
        assert ran.rc == 0, ran
        assert moving.servers()[SERVERS["box2"]] == "DRAIN"
        seen = moving.status()
        assert (seen["exit"], seen["problems"]) == (0, []), seen
        assert [note for note in seen["notes"] if note.startswith("box2 is drained (since ")], seen
        assert [engine["server"] for engine in seen["engines"]] == ["up", "drained"]
        # The other one is all that is left.
        last = moving.run("drain", "box1", "--yes")
        assert (last.rc, "without box1 no engine serves standin" in last.said) == (5, True), last
        other = moving.run("restart", "box1", "--yes")
        assert (other.rc, "fleetctl undrain box2 first" in other.said) == (5, True), other
        assert moving.run("drain", "box2", "--yes").nothing
        # Somebody works on the box.
        moving.sh("box2", f"systemctl stop {COPY}")
        stopped = moving.run("undrain", "box2", "--yes")
        assert (stopped.rc, "fleetctl restart box2" in stopped.said) == (5, True), stopped
        moving.sh("box2", f"systemctl start --no-block {COPY}")
        eventually(lambda: moving.unit("box2", COPY)[0] in ("activating", "active"))
        back = moving.run("undrain", "box2", "--yes")
        assert back.rc == 0, back
    assert "prove.gate.replicas/standin@box2" in back.steps()
    assert watch.always_one_up() and not watch.was_out("box1")
    assert moving.servers()[SERVERS["box2"]] == "UP"
    assert [note for note in moving.status()["notes"] if "drained" in note] == []
    wrong = moving.run("drain", "box3", "--yes")
    assert wrong.rc == 2, wrong


def test_a_move_says_that_a_box_is_drained_and_puts_it_back(moving: Moving) -> None:
    moving.be_in("replicas")
    assert moving.run("drain", "box2", "--yes").rc == 0
    ran = moving.cutover("replicas")
    assert any("box2 is drained (since" in warning for warning in ran.plan["warnings"])
    assert moving.servers()[SERVERS["box2"]] == "UP"
    assert healthy(moving)


def test_the_last_copy_is_drained_only_with_hold_and_requests_wait(moving: Moving) -> None:
    moving.be_in("split")
    assert moving.run("drain", "box2", "--yes").rc == 5
    ran = moving.run("drain", "box2", "--hold", "--yes")
    assert ran.rc == 0, ran
    with Traffic(moving.proxy, "standin", rate=10.0) as traffic:
        eventually(lambda: traffic.counts().waiting > 5)
        back = moving.run("undrain", "box2", "--yes")
        assert back.rc == 0, back
    assert [request for request in traffic.requests() if not request.answered] == []
    assert healthy(moving)


def test_a_secret_with_a_new_value_reaches_the_boxes_and_a_rollback_brings_the_old_one_back(moving: Moving) -> None:
    moving.be_in("replicas")

    def secrets(document: dict[str, Any]) -> None:
        document["models"]["standin"]["environment"]["HF_TOKEN"] = {"env": "TEST_TOKEN"}

    def runs_with(box: str) -> str:
        command = f"tr '\\0' '\\n' < /proc/{moving.pid(box, COPY)}/environ | grep ^HF_TOKEN="
        return moving.sh(box, command).strip().removeprefix("HF_TOKEN=")

    text = moving.changed(secrets)
    old, new = {"TEST_TOKEN": "hf_the_old_one"}, {"TEST_TOKEN": "hf_the_new_one"}
    assert moving.run("apply", "--yes", text=text, env=old).rc == 0
    assert moving.run("apply", "--yes", text=text, env=old).nothing
    assert {runs_with(box) for box in BOXES} == {"hf_the_old_one"}
    with under_traffic(moving) as watch:
        ran = moving.run("apply", "--yes", text=text, env=new)
    assert ran.rc == 0, ran
    assert watch.always_one_up()
    assert {runs_with(box) for box in BOXES} == {"hf_the_new_one"}
    told = json.dumps(ran.events) + ran.err + moving.journal()
    assert not any(word in told for word in ("hf_the_new_one", "hf_the_old_one", '"salt"', '"mac"'))
    assert moving.run("apply", "--yes", text=text, env=new).nothing
    moving.rollback()
    assert {runs_with(box) for box in BOXES} == {"hf_the_old_one"}
    moving.cutover("replicas")


def test_a_new_key_of_the_proxy_needs_no_restart(moving: Moving) -> None:
    moving.be_in("replicas")
    text = moving.changed(lambda d: d["proxy"].update(api_keys={"office": {"env": "TEST_KEY"}}))

    def key(value: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {value}"}

    assert moving.run("apply", "--yes", text=text, env={"TEST_KEY": "sk-old"}).rc == 0
    before = pids(moving)
    ran = moving.run("apply", "--yes", text=text, env={"TEST_KEY": "sk-new"})
    assert ran.rc == 0, ran
    assert pids(moving) == before
    assert moving.complete(headers=key("sk-old")).status_code == 401
    assert moving.complete(headers=key("sk-new")).status_code == 200
    moving.cutover("replicas")
    assert healthy(moving)
