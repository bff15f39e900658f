"""Watching a fleet: each engine is read on its own box, and the sums are those of the engines."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import httpx
import pytest
from moving import BOXES, COPY, Moving, eventually

from fleetctl.remote.boxes import Boxes
from fleetctl.spec.load import load_fleet
from fleetctl.watch.names import wanted
from fleetctl.watch.sample import Sample
from fleetctl.watch.watcher import LIMIT, Watcher


@pytest.fixture
def replicas(moving: Moving) -> Moving:
    """A copy on each of two boxes, with nothing going on."""
    moving.be_in("replicas")
    for box in BOXES:
        eventually(lambda box=box: moving.unit(box, COPY)[0] == "active")
    return moving


@pytest.fixture
def watcher(replicas: Moving) -> Iterator[Watcher]:
    fleet = load_fleet(replicas.file()).fleet
    with Boxes.open(fleet) as boxes, Watcher(boxes, fleet) as watcher:
        yield watcher


def told_by(page: str, name: str) -> float:
    """The sum of a counter's samples in Prometheus text."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE))


def own(moving: Moving, box: str) -> float:
    """Tokens that the engine on a box says it made."""
    return told_by(httpx.get(url(moving, box), trust_env=False).text, "vllm:generation_tokens_total")


def url(moving: Moving, box: str) -> str:
    return f"http://{moving.lab.box(box).address}:8000/metrics"


def ask_for(moving: Moving, box: str, tokens: int) -> None:
    """Have one engine make tokens, asked directly."""
    body = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens}
    place = url(moving, box).replace("/metrics", "/v1/chat/completions")
    answer = httpx.post(place, json=body, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text


def unknown(sample: Sample) -> dict[str, str]:
    return {copy.id: copy.why or "" for copy in sample.copies if not copy.known}


def test_the_sum_is_that_of_the_engines_own_counters_and_the_proxy_does_not_tell_those_of_one_copy(
    replicas: Moving, watcher: Watcher
) -> None:
    ask_for(replicas, "box1", 48)
    ask_for(replicas, "box2", 8)
    first = watcher.sample()
    begun = sum(own(replicas, box) for box in BOXES)
    assert unknown(first) == {}
    assert first.counts.generation_tokens == begun
    assert (first.layout, [copy.server for copy in first.copies]) == ("replicas", ["UP", "UP"])
    assert [copy.unit for copy in first.copies] == ["active", "active"]
    refused = httpx.get(f"{replicas.proxy}/metrics", trust_env=False)
    assert (refused.status_code, "vllm:" in refused.text) == (404, False)

    counted = begun
    for box, tokens in (("box1", 40), ("box2", 24)):
        ask_for(replicas, box, tokens)
        counted += tokens
        assert watcher.sample().counts.generation_tokens == counted
        replicas.sh(box, f"systemctl reset-failed {COPY}; systemctl restart {COPY}")
        eventually(lambda: unknown(watcher.sample()) == {})
        ask_for(replicas, box, 5)
        counted += 5
        assert own(replicas, box) == 5
    last = watcher.sample()
    assert last.counts.generation_tokens == counted
    assert [copy.restarts for copy in last.copies] == [1, 1]
    assert all(box.memory and box.available and box.why is None for box in last.boxes.values())


def test_a_box_that_is_away_delays_nobody_is_unknown_and_counts_again_when_it_is_back(
    replicas: Moving, watcher: Watcher
) -> None:
    before = watcher.sample()
    replicas.lab.vanish("box2")
    try:
        began = time.monotonic()
        away = watcher.sample()
        took = time.monotonic() - began
        again = watcher.sample()
    finally:
        replicas.lab.reappear("box2")
    assert took < LIMIT + 5
    assert list(unknown(away)) == list(unknown(again)) == ["replicas/standin@box2"]
    assert "box2: no answer within" in unknown(away)["replicas/standin@box2"]
    assert away.boxes["box2"].why and away.boxes["box2"].available is None
    assert away.counts == before.counts
    assert away.copies[1].figures.running is None
    assert away.total.running == 0
    eventually(lambda: unknown(watcher.sample()) == {})
    # The connection itself breaks: it is made anew in the background.
    replicas.sh("box2", "pkill -f 'fleetctl.onbox|sshd: fleet' || true")
    eventually(lambda: unknown(watcher.sample()) != {})
    eventually(lambda: unknown(watcher.sample()) == {})
    ask_for(replicas, "box2", 3)
    assert watcher.sample().counts.generation_tokens == (before.counts.generation_tokens or 0) + 3


def test_the_box_says_which_start_of_the_unit_a_page_is_from(replicas: Moving) -> None:
    """Pages of several API servers, and of llama.cpp, name no process."""
    fleet = load_fleet(replicas.file()).fleet
    with Boxes.open(fleet, ["box2"]) as boxes:
        told = boxes["box2"].call_with("watch", {"box": "box2", "names": wanted()})
    run = replicas.sh("box2", f"systemctl show -P InvocationID {COPY}").strip()
    assert told["engines"]["replicas/standin@box2"]["run"] == run


def test_an_engine_that_is_stopped_is_unknown_and_not_zero(replicas: Moving, watcher: Watcher) -> None:
    before = watcher.sample()
    replicas.sh("box2", f"systemctl stop {COPY}")
    try:
        stopped = watcher.sample()
    finally:
        replicas.sh("box2", f"systemctl start {COPY}")
    assert unknown(stopped)["replicas/standin@box2"] == f"{COPY} is inactive on box2"
    assert (stopped.copies[1].unit, stopped.copies[1].counts) == ("inactive", before.copies[1].counts)
    assert stopped.boxes["box2"].why is None
    eventually(lambda: unknown(watcher.sample()) == {})


def test_the_exporter_tells_prometheus_of_every_copy_and_waits_for_none_that_is_away(replicas: Moving) -> None:
    running = replicas.start("exporter", "--listen", "127.0.0.1:0")
    try:
        url = running.until_event("listening")["url"]

        def value(name: str, label: str = "") -> float | None:
            found = re.findall(rf"^{name}{{.*{label}.*}} (\S+)$", httpx.get(url, trust_env=False).text, re.MULTILINE)
            return float(found[0]) if found else None

        ask_for(replicas, "box1", 3)
        assert value("fleetctl_copy_generation_tokens_total", "standin@box1") == own(replicas, "box1")
        assert value("fleetctl_generation_tokens_total") == sum(own(replicas, box) for box in BOXES)
        assert value("fleetctl_copy_up", "standin@box2") == value("fleetctl_copy_in_rotation", "standin@box2") == 1
        assert value("fleetctl_layout_info", 'layout="replicas"') == value("fleetctl_proxy_up") == 1
        replicas.lab.vanish("box2")
        try:
            began = time.monotonic()
            assert value("fleetctl_copy_up", "standin@box2") == 0
            assert time.monotonic() - began < LIMIT + 5
            assert value("fleetctl_copy_generation_tokens_total", "standin@box2") is None
            assert value("fleetctl_box_memory_available_bytes", "box2") is None
            assert value("fleetctl_copy_up", "standin@box1") == 1
        finally:
            replicas.lab.reappear("box2")
        eventually(lambda: value("fleetctl_copy_up", "standin@box2") == 1)
    finally:
        running.process.terminate()
    assert running.finish().rc == 0
