"""Samples of a fleet from what its boxes tell: what is known, what is not, and what nobody waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, cast

import pytest
from planned import GIB, TWO_PROXIES, layout, office

from fleetctl.errors import BoxError
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.render.release import Release
from fleetctl.watch.sample import Sample
from fleetctl.watch.watcher import Watcher

REPLICAS = layout("replicas")
SPLIT = layout("split")


class Box:
    """One end of a conversation: answers as a box does, from what the test sets."""

    def __init__(self, name: str, release: Release | None = REPLICAS, number: int | None = 1) -> None:
        self.name, self.release, self.number = name, release, number
        self.tokens, self.process, self.now = 100.0, "1.0", 10.0
        self.fails: Exception | None = None
        self.hangs = threading.Event()
        self.hangs.set()
        self.broken_pages: dict[str, str] = {}
        self.active = "active"
        self.servers: dict[str, dict[str, Any]] | None = None
        self.reconnected = 0

    def call_with(self, op: str, args: dict[str, Any], *, timeout: float | None = None) -> Any:
        assert op == "watch" and args["box"] == self.name
        self.hangs.wait(timeout)
        if not self.hangs.is_set():
            raise OpFailed(self.name, op, "Timeout", "watch did not answer")
        if self.fails is not None:
            raise self.fails
        engines = [e for e in self.release.engines if e.head.box == self.name] if self.release else []
        ranks = self.release.ranks_on(self.name) if self.release else []
        lines = f"vllm:generation_tokens_total {self.tokens}\nprocess_start_time_seconds {self.process}\n"
        lines += "vllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5"
        pages = {e.id: {"lines": lines, "run": "r", "at": self.now} for e in engines}
        pages |= {name: {"why": why} for name, why in self.broken_pages.items()}
        told = None if self.release is None else self.release.model_dump(mode="json", exclude={"files", "spec"})
        return {
            "boot": "b",
            "time": 0.0,
            "generation": self.number,
            "changed": 5.0,
            "release": told if args["known"] != self.number else None,
            "engines": pages,
            "units": {rank.unit: {"active": self.active} for _, rank in ranks},
            "proxy": None if self.servers is None else {"servers": self.servers, "waiting": 3, "running": 2, "rate": 1},
            "drained": False,
            "memory": {"total": 128 * GIB, "available": 40 * GIB, "swap_used": 0, "pressure": None},
        }

    def reconnect(self) -> None:
        self.reconnected += 1
        self.fails = None

    def close(self) -> None:
        return None


def watching(*boxes: Box, limit: float = 0.2, **more: Any) -> Watcher:
    """A watch on the office through these ends."""
    ends = cast(Mapping[str, BoxConnection], {box.name: box for box in boxes})
    return Watcher(ends, office(), limit=limit, **more)


def why(sample: Sample) -> dict[str, str]:
    return {copy.id: copy.why or "" for copy in sample.copies if not copy.known}


def test_rates_are_over_the_time_by_the_clock_of_the_box() -> None:
    a, b = Box("a"), Box("b")
    watcher = watching(a, b)
    first = watcher.sample()
    assert (first.total.generation_rate, first.total.running, first.counts.generation_tokens) == (None, 4, 200)
    a.tokens, a.now = 130, 12  # 15 tokens/s
    b.tokens, b.now = 140, 20  # 4 tokens/s
    second = watcher.sample()
    assert [copy.figures.generation_rate for copy in second.copies] == [15, 4]
    assert second.total.generation_rate == 19
    assert (second.layout, second.generation, second.fleet) == ("replicas", 1, "office")
    assert second.models["qwen"].generation_tokens == second.counts.generation_tokens == 270


def test_a_restart_is_counted_on_from_and_gives_no_negative_rate() -> None:
    a, b = Box("a"), Box("b")
    watcher = watching(a, b)
    watcher.sample()
    a.tokens, a.process, a.now = 7, "2.0", 11
    sample = watcher.sample()
    assert sample.copies[0].figures.generation_rate == 7
    assert (sample.copies[0].restarts, sample.counts.generation_tokens) == (1, 207)


def test_a_box_that_hangs_delays_one_sample_by_the_limit_and_the_next_ones_not_at_all() -> None:
    a, b = Box("a"), Box("b")
    watcher = watching(a, b)
    watcher.sample()
    b.hangs.clear()
    began = time.monotonic()
    assert why(watcher.sample()) == {"replicas/qwen@b": "b: no answer within 0.7 s"}
    first = time.monotonic() - began
    began = time.monotonic()
    sample = watcher.sample()
    assert time.monotonic() - began < first
    assert sample.unknown == ("replicas/qwen@b",)
    assert sample.boxes["b"].why == "no answer within 0.7 s" and sample.boxes["b"].available is None
    assert (sample.copies[1].figures.running, sample.copies[1].counts.generation_tokens) == (None, 100)
    assert (sample.total.running, sample.counts.generation_tokens) == (2, 200)
    b.hangs.set()
    b.tokens = 150
    time.sleep(0.05)
    assert watcher.sample().counts.generation_tokens == 250


@pytest.mark.parametrize("active", ["inactive", "failed"])
def test_what_answers_at_the_port_of_an_engine_whose_unit_is_down_is_not_that_engine(active: str) -> None:
    a, b = Box("a"), Box("b")
    watcher = watching(a, b)
    watcher.sample()
    b.active, b.tokens, b.process = active, 5000, "2.0"
    sample = watcher.sample()
    assert why(sample) == {"replicas/qwen@b": f"fleetctl-replicas-qwen.service is {active} on b"}
    assert (sample.total.running, sample.counts.generation_tokens) == (2, 200)


def test_a_connection_that_is_lost_is_made_anew_in_the_background() -> None:
    a, b = Box("a"), Box("b")
    watcher = watching(a, b)
    watcher.sample()
    b.fails = ConnectionLost("b", "no sign of life for 15 s")
    assert why(watcher.sample()) == {"replicas/qwen@b": "b: no sign of life for 15 s"}
    deadline = time.monotonic() + 20
    while watcher.sample().unknown:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert b.reconnected == 1


def test_a_box_that_was_away_from_the_beginning_is_tried_again() -> None:
    a, b = Box("a"), Box("b")
    answers = iter([BoxError("b", "no route to host"), b])

    def connect(name: str) -> BoxConnection:
        answer = next(answers)
        if isinstance(answer, BoxError):
            raise answer
        return cast(BoxConnection, answer)

    with watching(a, away={"b": BoxError("b", "timed out")}, connect=connect) as watcher:
        assert why(watcher.sample())["replicas/qwen@b"] in ("b: timed out", "b: no route to host")
        deadline = time.monotonic() + 20
        while watcher.sample().unknown:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert watcher.sample().counts.generation_tokens == 200


def test_nothing_is_known_where_no_box_answers_and_nothing_is_raised() -> None:
    watcher = watching(away={"a": BoxError("a", "off"), "b": BoxError("b", "off")})
    sample = watcher.sample()
    assert (sample.layout, sample.copies, sample.total.running, sample.proxy.waiting) == (None, (), None, None)
    assert {name: box.why for name, box in sample.boxes.items()} == {"a": "off", "b": "off"}


def test_of_an_engine_that_does_not_answer_the_reason_is_told_and_the_box_is_known() -> None:
    a, b = Box("a"), Box("b")
    b.broken_pages = {"replicas/qwen@b": "nothing to read at 10.0.0.2:8000: Connection refused"}
    sample = watching(a, b).sample()
    assert why(sample) == b.broken_pages
    assert sample.boxes["b"].why is None


def test_a_page_without_figures_is_no_zero() -> None:
    a, b = Box("a"), Box("b")
    watcher = watching(a, b)
    sample = watcher.sample()
    assert sample.copies[0].counts.requests is None
    assert sample.counts.requests is None


def test_sums_go_on_when_the_layout_changes() -> None:
    a, b = Box("a"), Box("b")
    watcher = watching(a, b)
    assert watcher.sample().counts.generation_tokens == 200
    a.release = b.release = SPLIT
    a.number = b.number = 2
    a.tokens, a.process = 11, "3.0"
    sample = watcher.sample()
    assert ([copy.id for copy in sample.copies], sample.layout, sample.generation) == (["split/qwen"], "split", 2)
    assert (sample.counts.generation_tokens, sample.copies[0].counts.generation_tokens) == (211, 11)
    assert sample.copies[0].boxes == ("a", "b")


def test_a_box_that_is_in_another_generation_has_no_figures_of_this_one() -> None:
    a, b = Box("a", number=2), Box("b", release=SPLIT, number=1)
    assert why(watching(a, b).sample()) == {"replicas/qwen@b": "b is not in this layout yet, or not any more"}


@pytest.mark.parametrize(
    ("of_a", "of_b", "word"),
    [
        ({"status": "UP", "weight": 1}, None, "UP"),
        ({"status": "DOWN 1/2", "weight": 1}, None, "DOWN"),
        ({"status": "UP", "weight": 0}, None, "HUNG"),
        ({"status": "UP", "weight": 1}, {"status": "MAINT", "weight": 1}, "UP/MAINT"),
        (None, None, "unknown"),
    ],
)
def test_what_the_proxies_say_of_a_copy(of_a: Any, of_b: Any, word: str) -> None:
    release = layout("replicas", proxy=TWO_PROXIES)
    server = f"{release.engines[0].backend}/{release.engines[0].server}"
    a, b = Box("a", release), Box("b", release)
    a.servers = None if of_a is None else {server: of_a}
    b.servers = None if of_b is None else {server: of_b}
    sample = watching(a, b).sample()
    assert sample.copies[0].server == word
    known = sum(one is not None for one in (of_a, of_b))
    assert sample.proxy.waiting == (3 * known if known else None)
