"""Restarts, and boxes out of the proxy and back: what is planned, what is refused, and with which words."""

from __future__ import annotations

import hmac
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from planned import COPY, boxes_in, layout, office, playbook, unit

from fleetctl.errors import FleetError, RefusedError, SpecError
from fleetctl.facts.assess import assess
from fleetctl.facts.types import Observed
from fleetctl.onbox import state
from fleetctl.remote.boxes import Boxes
from fleetctl.render.release import File, Release
from fleetctl.run.planning import Look, Subject
from fleetctl.run.rolling import plan_drain, plan_restart, plan_undrain
from fleetctl.run.secrets import expected
from fleetctl.spec.secret import Secret

SUBJECT = Subject(office(), "", Boxes({}))
REPLICAS, SPLIT = layout("replicas"), layout("split")
NOWHERE = Look({}, boxes_in(REPLICAS, None))
NOTE = {"since": 0.0, "by": "ann@desk"}
books = playbook


def seen(release: Release = REPLICAS, **more: Any) -> Look:
    return Look({}, boxes_in(release, 1, **more))


def with_server(release: Release, server: str, status: str) -> dict[str, Any]:
    """Facts of box a in which the proxy has another status for a server."""
    proxy = boxes_in(release)["a"].proxy
    assert proxy is not None
    return {"proxy": {"description": proxy.description, "servers": {**proxy.servers, server: {"status": status}}}}


def drained(release: Release = REPLICAS, server: str = "qwen/replicas-b") -> Look:
    return seen(release, a=with_server(release, server, "DRAIN"), b={"drained": NOTE})


@pytest.mark.parametrize(
    ("release", "name", "starts", "book"),
    [
        (REPLICAS, None, ["replicas/qwen@a", "replicas/qwen@b"], "rolling"),
        (REPLICAS, "b", ["replicas/qwen@b"], "rolling"),
        (REPLICAS, "qwen", ["replicas/qwen@a", "replicas/qwen@b"], "rolling"),
        (SPLIT, "b", ["split/qwen"], "cutover"),
    ],
)
def test_a_restart_is_of_a_box_or_a_model_or_all(release: Release, name: Any, starts: list[str], book: str) -> None:
    made = plan_restart(SUBJECT, seen(release), books, name)
    assert [step.params["engine"] for step in made.steps if step.kind == "await_ready"] == starts
    assert (made.playbook, made.operation, made.generation) == (book, "restart", 1)
    assert made.diffs == ()


@pytest.mark.parametrize(
    ("plan", "error", "says"),
    [
        (lambda: plan_restart(SUBJECT, seen(), books, "qwenn"), SpecError, "did you mean qwen?"),
        (lambda: plan_restart(SUBJECT, drained(), books, "a"), RefusedError, "fleetctl undrain b first"),
        (
            lambda: plan_restart(SUBJECT, Look({}, boxes_in(REPLICAS, None)), books, None),
            RefusedError,
            "no layout is live",
        ),
        (partial(plan_drain, SUBJECT, seen(), playbook("drain"), "c", limit=None, hold=False), SpecError, "no box c"),
        (
            partial(plan_drain, SUBJECT, seen(SPLIT), playbook("drain"), "b", limit=None, hold=False),
            RefusedError,
            "without b no engine serves qwen",
        ),
        (
            partial(plan_drain, SUBJECT, drained(), playbook("drain"), "a", limit=None, hold=False),
            RefusedError,
            "use --hold",
        ),
        (
            partial(
                plan_undrain,
                SUBJECT,
                seen(
                    a=with_server(REPLICAS, "qwen/replicas-b", "DRAIN"),
                    b={"drained": NOTE, "units": {COPY: unit("inactive")}},
                ),
                playbook("undrain"),
                "b",
            ),
            RefusedError,
            "fleetctl restart b",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(plan: Any, error: type[FleetError], says: str) -> None:
    with pytest.raises(error) as refused:
        plan()
    assert says in str(refused.value)


def test_a_box_is_drained_with_the_limit_that_is_asked_for_and_its_server_stays_in_drain() -> None:
    made = plan_drain(SUBJECT, seen(), playbook("drain"), "b", limit=7.0, hold=False)
    assert [step.kind for step in made.steps] == ["preflight", "preflight", "mark_drained", "hold", "drain"]
    assert made.steps[-1].params == {"servers": ["qwen/replicas-b"], "limit": 7.0, "then": "drain"}


@pytest.mark.parametrize("status", ["DOWN", "DOWN (agent)", "UP 1/2", "MAINT (resolution)"])
def test_a_server_that_is_down_is_drained_too_for_its_engine_may_come_up(status: str) -> None:
    down = with_server(REPLICAS, "qwen/replicas-b", status)
    made = plan_drain(SUBJECT, seen(a=down), playbook("drain"), "b", limit=None, hold=False)
    assert [step.params["servers"] for step in made.steps if step.kind == "hold"] == [["qwen/replicas-b"]]
    again = seen(a=down, b={"drained": NOTE})
    assert plan_drain(SUBJECT, again, playbook("drain"), "b", limit=None, hold=False).nothing_to_do()


def test_draining_a_box_again_is_nothing_to_do_and_its_return_is_gated() -> None:
    assert plan_drain(SUBJECT, drained(), playbook("drain"), "b", limit=None, hold=False).nothing_to_do()
    back = plan_undrain(SUBJECT, drained(), playbook("undrain"), "b")
    kinds = [step.kind for step in back.steps if step.kind != "preflight"]
    assert kinds == ["await_ready", "gate", "open", "forget_drained"]
    assert plan_undrain(SUBJECT, seen(), playbook("undrain"), "b").nothing_to_do()


def test_a_split_with_both_boxes_drained_comes_back_with_the_second() -> None:
    both = seen(SPLIT, a={**with_server(SPLIT, "qwen/split-a", "DRAIN"), "drained": NOTE}, b={"drained": NOTE})
    first = plan_undrain(SUBJECT, both, playbook("undrain"), "a")
    assert [step.kind for step in first.steps if step.kind != "preflight"] == ["forget_drained"]
    one = drained(SPLIT, "qwen/split-a")
    assert "open" in [step.kind for step in plan_undrain(SUBJECT, one, playbook("undrain"), "b").steps]


def told(observed: Observed) -> tuple[list[str], list[str], list[str]]:
    found = assess(observed, "a", "office")
    return found.notes, found.problems, [engine.server for engine in found.engines]


def test_status_shows_a_drained_box_as_such_and_not_as_a_fault() -> None:
    notes, problems, servers = told(drained().observed)
    assert len(notes) == 1 and notes[0].startswith("b is drained (since ")
    assert notes[0].endswith("by ann@desk); `fleetctl undrain b` puts it back")
    assert (problems, servers) == ([], ["up", "drained"])


def test_status_tells_when_a_box_that_is_drained_gets_requests() -> None:
    _, problems, _ = told(seen(b={"drained": NOTE}).observed)
    assert problems == ["the proxy sends requests to replicas/qwen@b, although its box is drained: drain it again"]


# Secrets


def test_a_file_is_stale_when_it_or_what_is_kept_of_it_has_another_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetctl.onbox.kept.GENERATIONS", str(tmp_path / "generations"))
    live = tmp_path / "keys"
    kept = Path(f"{tmp_path}/generations/1/files{live}")
    kept.parent.mkdir(parents=True)

    def stale(now: str) -> bool:
        mac = hmac.new(b"salt", now.encode(), "sha256").hexdigest()
        return state.stale(1, {str(live): {"salt": "salt", "mac": mac}}) == [str(live)]

    assert not stale("new")  # not there at all: that is another matter
    for text_live, text_kept, expect in [("old", "old", True), ("new", "old", True), ("new", "new", False)]:
        live.write_text(text_live)
        kept.write_text(text_kept)
        assert stale("new") is expect


def test_the_question_to_a_box_has_digests_with_a_new_salt_each_time_and_no_secret() -> None:
    file = File(path="/keys", content="@secret:me@ me\n", secrets={"me": Secret(env="KEY")})
    release = Release(fleet="office", layout="x", files={"a": (file, File(path="/plain", content=""))})
    one, two = (expected([release], lambda file: "s3cret me\n").digests for _ in range(2))
    assert list(one["a"]) == ["/keys"] and one != two
    assert "s3cret" not in repr(one)


def test_a_secret_that_cannot_be_read_here_is_said_and_not_compared() -> None:
    def fill(file: File) -> str:
        raise SpecError("no KEY in the environment")

    file = File(path="/keys", content="@secret:me@", secrets={"me": Secret(env="KEY")})
    found = expected([Release(fleet="office", layout="x", files={"a": (file,)})], fill)
    assert (found.digests, found.unread) == ({}, ("no KEY in the environment",))


def test_facts_without_the_new_keys_are_understood() -> None:
    facts = boxes_in(REPLICAS)["a"]
    assert (facts.stale, facts.drained) == ((), None)
    assert facts.digest() == facts.model_copy(update={"stale": ("/x",)}).digest()
