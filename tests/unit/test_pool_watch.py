"""A pool is watched through its workers and gateways: engines box by box, the queue once, counters through restarts."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from planned import GIB, boxes_in
from pooled import PASSWORDS, all_in_pool, pooled
from rich.console import Console
from test_watch_watcher import Box, watching

from fleetctl.cli.show_status import show_status
from fleetctl.facts.assess import assess
from fleetctl.run.overview import Overview
from fleetctl.watch.metrics import families
from fleetctl.watch.sample import Sample
from fleetctl.watch.top.history import History
from fleetctl.watch.top.pool import pool_lines
from fleetctl.watch.top.words import middle_cut
from fleetctl.watch.top.wrong import remarks

RELEASE = pooled(pool={"nats": {"boxes": ["a"], "passwords": PASSWORDS}, "gateways": ["a", "b"]})


class PoolBox(Box):
    """A box of the pool on which one of its models is loaded."""

    def __init__(self, name: str) -> None:
        super().__init__(name, RELEASE)
        self.run, self.requests, self.refused, self.queue_at, self.waiting = "r1", 100, 7, 50.0, 4
        self.silent = False

    def state(self) -> dict[str, Any]:
        """As the worker's GET /state."""
        engine = {"memory": GIB, "running": 2, "requests": self.requests, "tokens": 10 * self.requests, "deaths": 1}
        absent = {
            **engine,
            "phase": "failed",
            "running": 0,
            "reason": "no weights",
            "unit": "fleetctl-pool-small.service",
        }
        loaded = {**engine, "phase": "loaded", "pinned": True, "unit": "fleetctl-pool-minilm.service"}
        one = {"at_work": 2, "oldest": 1.5, "stored": 6, "redelivered": 1, "batch": 3, "dead": 1}
        queue = {"minilm": {**one, "waiting": self.waiting}, "small": {**one, "waiting": 1, "oldest": 9.0}}
        return {
            "box": self.name,
            "connected": True,
            "memory": {"limit": 8 * GIB, "taken": GIB},
            "counts": {"redelivered": 5},
            "models": {"minilm": {"local": 1, "engines": [loaded]}, "small": {"local": 0, "engines": [absent]}},
            "queue": {"time": self.queue_at, "limit": 1000, "models": queue},
        }

    def call_with(self, op: str, args: dict[str, Any], *, timeout: float | None = None) -> Any:
        told = super().call_with(op, args, timeout=timeout)
        assert RELEASE.pool is not None
        for service in RELEASE.pool.on(self.name):
            told["units"][service.unit] = {"active": "active"}
        lines = (
            "fleetctl_gateway_connected 1\n"
            'fleetctl_gateway_requests_total{model="minilm",code="200"} 900\n'
            f'fleetctl_gateway_requests_total{{model="minilm",code="429"}} {self.refused}'
        )
        told["pool"] = {
            "worker": {"why": "gone"} if self.silent else {"state": self.state(), "run": self.run, "at": self.now},
            "gateway": {"lines": lines, "run": "g", "at": self.now},
        }
        return told


def two(first: PoolBox, second: PoolBox) -> tuple[Sample, Sample]:
    """Two samples, the second after whatever the boxes have become."""
    with watching(first, second) as watcher:
        before = watcher.sample()
        for box in (first, second):
            box.now, box.requests, box.refused = box.now + 2, box.requests + 40, box.refused + 6
        second.queue_at, second.waiting = 60.0, 9
        return before, watcher.sample()


def test_engines_are_told_box_by_box_and_what_the_queue_holds_once() -> None:
    before, now = two(PoolBox("a"), PoolBox("b"))
    assert now.copies == () and now.pool is not None and before.pool is not None
    minilm = now.pool.models["minilm"]
    assert (minilm.waiting, minilm.oldest, minilm.batch, minilm.stored) == (9, 1.5, 3, 6), "the newest look"
    assert (now.pool.waiting, now.pool.oldest, now.pool.dead, now.pool.limit) == (10, 9.0, 2, 1000)
    engine = next(one for one in now.pool.engines if one.id == "pool/minilm@a")
    assert (engine.phase, engine.pinned, engine.running, engine.local, engine.memory) == ("loaded", True, 2, 1, GIB)
    assert (engine.request_rate, engine.token_rate, engine.requests) == (20.0, 200.0, 140.0)
    assert minilm.request_rate == 40.0 and minilm.refused_rate == 6.0 and minilm.refused == 26.0
    assert before.pool.engines[0].request_rate is None, "of one sample there is no rate"
    kinds = [(one.kind, one.box, one.state, one.connected) for one in now.pool.programs]
    assert ("gateway", "b", "active", True) in kinds and ("nats", "a", "active", None) in kinds


def test_counts_go_on_through_a_worker_that_is_started_again_and_one_that_is_silent_is_unknown() -> None:
    a, b = PoolBox("a"), PoolBox("b")
    with watching(a, b) as watcher:
        watcher.sample()
        a.run, a.requests, a.now = "r2", 5, a.now + 1
        first = watcher.sample().pool
        a.silent = b.silent = True
        second = watcher.sample().pool
    assert first is not None and second is not None
    assert first.engines[0].requests == 105.0
    assert (second.engines[0].phase, second.engines[0].running, second.engines[0].requests) == ("unknown", None, 105.0)
    assert second.waiting is None and second.models["minilm"].waiting is None
    assert next(one for one in second.programs if one.kind == "worker").why == "gone"


def test_status_and_top_show_engines_and_queue_and_the_exporter_has_them() -> None:
    _, now = two(PoolBox("a"), PoolBox("b"))
    history = History()
    history.add(now)
    lines = [line.plain for line in pool_lines(now, 80)]
    assert all(len(line) <= 80 for line in lines[:-1])
    assert lines[1].split() == ["minilm@a", "loaded", "20", "200", "2", "1", "9", "1.50s", "1.0G", "yes"]
    assert "10 waiting, the oldest for 9.00s, 6 batch lines; 6/s refused (429)" in lines[-1]
    assert "pool/small@a could not be loaded: no weights" in [one.text for one in remarks(now, None, history)]
    found = assess(all_in_pool(boxes_in(RELEASE), RELEASE), "a", "office")
    out = Console(width=100, record=True, file=io.StringIO())
    show_status(Overview(found, {}, now), out, every=False)
    text = out.export_text()
    for told in ("pool/minilm@a  loaded, pinned", "minilm      9   1.5 s        2            3             1"):
        assert told in text, text
    assert "gateway: a active, b active" in text and "could not be loaded: no weights" in text
    series = {
        (one.name, *sorted(one.labels.items())): one.value
        for family in families(now, {}, 0.1)
        for one in family.samples
        if one.name.startswith("fleetctl_pool")
    }
    model = (("fleet", "office"), ("model", "minilm"))
    assert series["fleetctl_pool_requests_waiting", *model] == 9 and series["fleetctl_pool_refused_total", *model] == 26
    worker = (("box", "a"), ("fleet", "office"), ("program", "worker"))
    assert series["fleetctl_pool_program_connected", *worker] == 1
    assert sum(value for (name, *_), value in series.items() if name == "fleetctl_pool_engine_failed") == 2


def test_a_long_name_in_a_narrow_terminal_keeps_its_box() -> None:
    _, now = two(PoolBox("a"), PoolBox("b"))
    assert now.pool is not None
    first = replace(now.pool.engines[0], id="pool/extractor-large-multilingual@a")
    now = replace(now, pool=replace(now.pool, engines=(first, *now.pool.engines[1:])))
    narrow = [line.plain for line in pool_lines(now, 80)]
    assert all(len(line) <= 80 for line in narrow[:-1])
    assert narrow[1].split()[0].endswith("…@a") and "pinned" not in narrow[0]
    wide = [line.plain for line in pool_lines(now, 110)]
    assert wide[1].split()[0] == "extractor-large-multilingual@a" and wide[1].endswith("yes")
    assert [middle_cut("large@box1", width) for width in (10, 8, 6, 4)] == ["large@box1", "la…@box1", "large…", "lar…"]
