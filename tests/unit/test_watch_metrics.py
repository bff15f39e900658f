"""What the exporter tells Prometheus, checked by Prometheus' own tool."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from promtool import check

from fleetctl.errors import SpecError
from fleetctl.watch.exporter import SharedReads, for_this_machine_alone, listen, parse_place
from fleetctl.watch.metrics import METRICS
from fleetctl.watch.pool_sample import PoolEngineSample, PoolModelSample, PoolProgramSample, PoolSample
from fleetctl.watch.sample import BoxSample, Copy, Counts, Figures, ProxySample, Sample

GIB = 1024**3
COUNTED = Counts(100.0, 60456.0, 7.0, 6.0, 3.0, 90.0, 30.0, 40.0, 20.0, 1.0)
WELL = Copy(
    "replicas/qwen@a", "qwen", ("a",), "UP", "active", Figures(running=2, waiting=1, cache_usage=0.5), COUNTED, 1
)
AWAY = Copy("replicas/qwen@b", "qwen", ("b",), "DOWN", "unknown", Figures(), COUNTED, 0, "b: no answer within 2 s")
SAMPLE = Sample(
    at=1000.0,
    fleet="office",
    layout="replicas",
    generation=4,
    copies=(WELL, AWAY),
    counts=COUNTED,
    models={"qwen": COUNTED},
    boxes={"a": BoxSample(128 * GIB, 40 * GIB, 0, 12.5, False), "b": BoxSample(why="no answer within 2 s")},
    proxy=ProxySample(3, 2, 1.0, 0),
    changed=900.0,
)

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@contextmanager
def exporting(sample: Sample) -> Iterator[str]:
    """The URL of an exporter that reads this sample."""
    server = listen("127.0.0.1:0", lambda: sample, {"a": 4 * GIB, "b": 4 * GIB})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def scraped(sample: Sample) -> str:
    with exporting(sample) as url:
        answer = httpx.get(f"{url}/metrics", trust_env=False)
    assert answer.status_code == 200
    return answer.text


def series(text: str) -> dict[str, dict[str, float]]:
    """Name → the value of each copy, box, model or fleet."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            label = next(one.labels[name] for name in ("copy", "box", "model", "fleet") if name in one.labels)
            found.setdefault(one.name, {})[label] = one.value
    return found


def test_prometheus_own_tool_finds_nothing_to_object_to() -> None:
    assert check(["check", "metrics"], scraped(SAMPLE)).strip() == ""


def test_what_is_known_has_a_series_and_what_is_not_has_none() -> None:
    told = series(scraped(SAMPLE))
    assert told["fleetctl_copy_up"] == {"replicas/qwen@a": 1, "replicas/qwen@b": 0}
    assert told["fleetctl_copy_in_rotation"] == {"replicas/qwen@a": 1, "replicas/qwen@b": 0}
    assert told["fleetctl_copy_unit_active"] == {"replicas/qwen@a": 1}
    assert told["fleetctl_copy_generation_tokens_total"] == {"replicas/qwen@a": 60456}
    assert told["fleetctl_copy_requests_running"] == {"replicas/qwen@a": 2}
    assert told["fleetctl_box_up"] == {"a": 1, "b": 0}
    assert told["fleetctl_box_memory_available_bytes"] == {"a": 40 * GIB}
    assert told["fleetctl_box_memory_pressure_ratio"] == {"a": 0.125}
    assert told["fleetctl_box_memory_low_bytes"] == {"a": 4 * GIB, "b": 4 * GIB}
    assert (told["fleetctl_copies"], told["fleetctl_copies_known"]) == ({"qwen": 2}, {"qwen": 1})
    assert told["fleetctl_generation_tokens_total"] == {"qwen": 60456}
    assert told["fleetctl_proxy_requests_waiting"] == {"office": 3}
    assert 'fleetctl_layout_info{fleet="office",layout="replicas"} 1.0' in scraped(SAMPLE)
    labels = 'box="a",copy="replicas/qwen@a",fleet="office",layout="replicas",model="qwen"'
    assert f"fleetctl_copy_up{{{labels}}} 1.0" in scraped(SAMPLE)


def test_every_metric_that_there_is_can_be_seen_in_a_sample() -> None:
    pool = PoolSample(
        (PoolProgramSample("worker", "a", "w", "active", True, False, 2 * GIB, GIB, 1.0),),
        (PoolEngineSample("pool/m@a", "m", "a", "loaded", True, None, GIB, 2, 1, requests=3.0, tokens=30.0),),
        {"m": PoolModelSample(1, 2, 3, 4.0, 0, 5, 6, refused=7.0)},
        limit=1000,
    )
    told = series(scraped(replace(SAMPLE, pool=pool)))
    assert {f"{metric.name}_total" if metric.counter else metric.name for metric in METRICS} <= set(told)


def test_nothing_is_known_of_a_fleet_that_does_not_answer_and_nothing_is_zero() -> None:
    nothing = Sample(1.0, "office", None, None, boxes={"a": BoxSample(why="off")})
    told = series(scraped(nothing))
    assert told.pop("fleetctl_box_up") == {"a": 0}
    assert told.pop("fleetctl_proxy_up") == {"office": 0}
    assert set(told) == {"fleetctl_sample_duration_seconds", "fleetctl_box_memory_low_bytes"}


def test_a_sum_has_to_wait_for_each_copy_to_be_read_once() -> None:
    """Or the first page of a copy that was away would look like tokens that were made in that moment."""
    never = replace(SAMPLE, copies=(WELL, replace(AWAY, counts=Counts())))
    told = series(scraped(never))
    assert "fleetctl_generation_tokens_total" not in told
    assert told["fleetctl_copy_generation_tokens_total"] == {"replicas/qwen@a": 60456}


def test_only_the_metrics_are_served() -> None:
    with exporting(SAMPLE) as url:
        told = httpx.get(url, trust_env=False)
    assert (told.status_code, told.text) == (404, "fleetctl exporter: the metrics are at /metrics\n")


def test_who_asks_while_the_fleet_is_read_shares_the_read_and_who_asks_later_gets_a_new_one() -> None:
    reads, begun, go_on = [], threading.Event(), threading.Event()

    def read() -> Sample:
        reads.append(1)
        begun.set()
        go_on.wait(30)
        return SAMPLE

    shared = SharedReads(read)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(shared.sample()[0])) for _ in range(8)]
    threads[0].start()
    assert begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    while not all(thread.is_alive() for thread in threads):
        pass
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert found == [SAMPLE] * 8
    assert len(reads) <= 2  # a thread that was slow to ask may have come after the end of the first
    shared.sample()
    assert len(reads) <= 3


@pytest.mark.parametrize(
    ("place", "found"),
    [("127.0.0.1:9790", ("127.0.0.1", 9790)), ("[::1]:0", ("::1", 0)), ("metrics.office:80", ("metrics.office", 80))],
)
def test_places_to_listen(place: str, found: tuple[str, int]) -> None:
    assert parse_place(place) == found


@pytest.mark.parametrize("place", ["", "9790", ":9790", "a:", "a:b", "a:65536", "::1:80", "[::1]", "[]:1", "a:-1"])
def test_places_that_are_none(place: str) -> None:
    with pytest.raises(SpecError, match="is not HOST:PORT"):
        parse_place(place)


def test_a_place_that_is_taken_is_told() -> None:
    with exporting(SAMPLE) as url, pytest.raises(SpecError, match="Address already in use"):
        listen(url.removeprefix("http://"), lambda: SAMPLE, {})


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.9.9.9", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "box1", "localhost.evil.example")],
)
def test_that_others_can_read_the_metrics_is_known_from_where_they_are_served(host: str, alone: bool) -> None:
    assert for_this_machine_alone(host) is alone
