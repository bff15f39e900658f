"""The step that tries settings: what of a start counts, what is skipped and why, and that it can be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_measuring import step, tried

from fleetctl.bench.asked import Asked
from fleetctl.bench.knee import Point
from fleetctl.bench.load import LoadError
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.steps import KINDS
from fleetctl.steps.base import Context

GIB = 1024**3
PLAN = tried({"batched_tokens": (2048.0, 8192.0)})
STEP = step(PLAN, "try_settings")


class Box:
    """A box on which a trial's unit serves at a rate that depends on its batched tokens, or does not."""

    def __init__(self, **faults: Any) -> None:
        self.name, self.faults = "b", faults
        self.asked: list[str] = []
        self.batched = 0

    def call(self, op: str, **args: Any) -> Any:
        self.asked.append(op)
        if op == "trial_run":
            words = args["content"].replace('"', "").split()
            self.batched = int(words[words.index("--max-num-batched-tokens") + 1])
            if self.batched == self.faults.get("no_start"):
                raise OpFailed("b", op, "OpError", "it ended (exit-code, exit status 1)")
            return {"before": 120 * GIB, "least": 30 * GIB, "ready": 40 * GIB, "seconds": 3.0}
        if op == "memory_left":
            return {"available": 5 * GIB if self.batched == self.faults.get("large") else 30 * GIB, "total": 128 * GIB}
        if op == "logs":
            return ["INFO fine", "ValueError: no", "INFO end"]
        if op == "ping" and self.faults.get("lost"):
            raise ConnectionLost("b", "gone")
        return {}

    @contextmanager
    def tunnel(self, host: str, port: int) -> Iterator[Path]:
        assert (host, port) == ("127.0.0.2", 8000)
        yield Path("/nowhere")


def did(box: Box, monkeypatch: pytest.MonkeyPatch, *, stopped: bool = False) -> dict[str, Any]:
    """The step's result on this box, with 8192 batched tokens 30 % better than 4096."""

    def closed(many: int, **how: Any) -> Any:
        assert many == 12
        if box.batched == box.faults.get("silent"):
            raise LoadError("every request failed")
        rate = {2048: 80.0, 4096: 100.0, 8192: 130.0}[box.batched]
        return SimpleNamespace(point=lambda n: Point(n, rate + len(box.asked) % 3, ttft=0.5))

    monkeypatch.setattr(Asked, "bench", lambda self, endpoint: SimpleNamespace(closed=closed))
    boxes = cast(Any, {"b": box, "a": box})
    context = Context(PLAN, boxes, lambda file: "", lambda step, said: None, lambda: stopped)
    return dict(KINDS["try_settings"].do(context, STEP)["settings"])


def verdicts(told: dict[str, Any]) -> dict[float, tuple[str, str]]:
    return {one["value"]: (one["says"], one["why"]) for one in told["verdicts"]}


def test_every_start_is_ended_before_the_next_one_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box()
    told = did(box, monkeypatch)
    assert told["chosen"] == {"batched_tokens": 8192.0}
    ops = [op for op in box.asked if op.startswith("trial_")]
    assert ops == ["trial_end", "trial_run"] * told["starts"] + ["trial_end"]
    assert len(told["measured"]) == told["starts"] == 5


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        ({"no_start": 8192}, "it did not start: b: it ended (exit-code, exit status 1); ValueError: no"),
        ({"silent": 8192}, "it does not answer: every request failed; ValueError: no"),
    ],
)
def test_one_that_does_not_start_or_does_not_answer_is_named_with_its_last_word(
    faults: dict[str, int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = did(Box(**faults), monkeypatch)
    assert told["chosen"] == {"batched_tokens": 4096}
    assert verdicts(told)[8192.0] == ("not measured", why)


def test_one_that_leaves_less_than_the_reserve_is_not_taken_however_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    told = did(Box(large=8192), monkeypatch)
    assert told["chosen"] == {"batched_tokens": 4096}
    said = "it took 115.0 GiB of the box, and the reserve leaves 112.0 GiB"
    assert verdicts(told)[8192.0] == ("not measured", said)


def test_a_move_that_is_being_undone_ends_it_and_a_lost_box_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OpFailed) as stopped:
        did(Box(), monkeypatch, stopped=True)
    assert stopped.value.kind == "Cancelled"
    with pytest.raises(ConnectionLost):
        did(Box(silent=8192, lost=True), monkeypatch)
