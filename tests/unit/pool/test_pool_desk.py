"""The machine-local queue, and how much of what is taken: by measured cost, not by count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.pool import wire
from fleetctl.pool.worker.desk import PATIENCE, Desk
from fleetctl.pool.worker.engine import Engine
from fleetctl.pool.worker.merge import Mergeable
from fleetctl.pool.worker.pace import Pace, tokens_in
from fleetctl.pool.worker.request import Request


class Nobody:
    """Neither hears nor says anything."""

    async def ack(self) -> None: ...
    async def ack_surely(self) -> None: ...
    async def back(self) -> None: ...
    async def at_work(self) -> None: ...
    async def send(self, frame: wire.Frame) -> None: ...


def request(name: str, *, cost: int = 10, key: str = "", lane: wire.Lane = "work", alone: bool = False) -> Request:
    """A request; with a key it can be merged with others of that key."""
    envelope = wire.Envelope(name, "m", "/v1/embeddings", "answer.g.x", 0, 0)
    merge = Mergeable(key, [name], {}) if key else None
    return Request(envelope, b"", "m", lane, Nobody(), Nobody(), cost=cost, merge=merge, alone=alone)


class Bench:
    """A desk whose calls are only noted."""

    def __init__(self, engines: int = 1, **more: Any) -> None:
        self.begun: list[tuple[Engine, list[Request]]] = []
        self.desk = Desk("m", self.start)
        values = {"task": "generate", "concurrency": 4, "batch_tokens": 100, **more}
        if values["task"] == "embed":
            values = {"runtime": "vllm", **values, "concurrency": more.get("concurrency", 100)}
        for number in range(engines):
            config = wire.PoolEngine("m", values["task"], ("m",), f"u{number}", "unix:/none", **_rest(values))
            engine = Engine(config, f"m{number}", self.desk.pace)
            engine.phase = "loaded"
            self.desk.engines.append(engine)

    def start(self, engine: Engine, group: list[Request]) -> None:
        engine.begin(group)
        self.begun.append((engine, group))

    def finish(self, tokens: int = 10) -> None:
        """The oldest call ends."""
        engine, group = self.begun.pop(0)
        engine.finish(group, tokens)
        self.desk.feed()

    def names(self) -> list[list[str]]:
        return [[one.envelope.id for one in group] for _, group in self.begun]


def _rest(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "task"}


def put(bench: Bench, *requests: Request) -> None:
    """What the queue sends in one breath."""

    async def within() -> None:
        for one in requests:
            bench.desk.put(one)
        await asyncio.sleep(0)

    asyncio.run(within())


def test_work_is_spread_over_the_engines_of_the_box() -> None:
    bench = Bench(2, concurrency=2)
    put(bench, *(request(f"r{n}") for n in range(5)))
    assert [engine.config.unit for engine, _ in bench.begun] == ["u0", "u1", "u0", "u1"]
    assert len(bench.desk.lines["work"]) == 1
    bench.finish()
    assert bench.begun[-1][0].config.unit == "u0"


def test_what_waits_goes_together_up_to_a_full_batch() -> None:
    bench = Bench(task="embed")
    put(bench, request("a", key="k"))
    put(bench, request("b", key="k"))
    put(bench, *(request(f"r{n}", key="k", cost=30) for n in range(4)))
    assert bench.names() == [["a"], ["b"]]
    bench.finish()
    assert bench.names() == [["b"], ["r0", "r1", "r2"]]
    bench.finish()
    assert bench.names()[1:] == [["r3"]]


def test_what_is_too_long_for_the_rest_of_a_batch_keeps_its_place() -> None:
    bench = Bench(task="embed")
    put(bench, *(request(f"r{n}", key="k", cost=cost) for n, cost in enumerate((60, 70, 30, 10, 20))))
    assert bench.names() == [["r0", "r2", "r3"], ["r1", "r4"]]


def test_after_long_calls_the_next_begins_late_or_full() -> None:
    bench = Bench(task="embed")
    bench.desk.pace.called(0.2)
    assert bench.desk.wanted("work") == 1
    put(bench, request("a", key="k"))
    put(bench, request("b", key="k", cost=60))
    assert bench.names() == [["a"]]
    assert bench.desk.wanted("work") < 0
    put(bench, request("c", key="k", cost=40), request("d", key="k"))
    assert bench.names() == [["a"], ["b", "c"]]
    bench.finish()
    assert bench.names() == [["b", "c"]]
    bench.finish()
    assert bench.names() == [["d"]]


def test_nobody_waits_for_the_lines_of_a_batch_job() -> None:
    bench = Bench(task="embed")
    bench.desk.pace.called(0.2)
    put(bench, request("line", key="k", lane="batch"))
    assert bench.desk.wanted("work") == 1
    put(bench, request("a", key="k"))
    assert bench.names() == [["line"], ["a"]]


def test_only_what_is_alike_goes_together_and_the_order_of_the_rest_stays() -> None:
    bench = Bench(task="embed")
    put(bench, request("a", key="k"), request("x", key="other"), request("b", key="k"), request("y", key="other"))
    assert bench.names() == [["a", "b"], ["x", "y"]]


def test_lines_of_batch_jobs_take_what_room_is_left_and_leave_some() -> None:
    bench = Bench()
    put(bench, *(request(f"b{n}", lane="batch") for n in range(4)), request("w0"), request("w1"))
    assert bench.names() == [["b0"], ["b1"], ["b2"], ["w0"]]
    bench.finish()
    assert bench.names()[-1] == ["w1"]
    assert bench.desk.wanted("batch") < 0


def test_a_suspect_runs_alone() -> None:
    bench = Bench()
    put(bench, request("a"), request("suspect", alone=True), request("b"))
    assert bench.names() == [["a"]]
    bench.finish()
    assert bench.names() == [["suspect"]]
    assert bench.desk.wanted("work") < 0
    bench.finish(0)
    assert bench.names() == [["b"]]


def test_what_is_wanted_is_what_could_begin_now() -> None:
    bench = Bench(2)
    assert bench.desk.wanted("work") == 8
    assert bench.desk.wanted("batch") == 6
    put(bench, *(request(f"r{n}") for n in range(10)))
    assert bench.desk.wanted("work") == -2
    bench.desk.engines[0].phase = "unloading"
    assert [one.envelope.id for one in bench.desk.clear()] == ["r8", "r9"]
    assert bench.desk.wanted("work") == 0


def test_few_large_requests_are_as_much_as_many_small_ones() -> None:
    bench = Bench(task="embed", batch_tokens=1000)
    bench.desk.pace.saw(100, 1000, 0.1)  # ten tokens each
    put(bench, request("a", key="k"))
    put(bench, request("b", key="k"))
    assert bench.desk.missing("work") == bench.desk.ahead("work") == 100
    put(bench, *(request(f"r{n}", key="k", cost=300) for n in range(2)))
    assert bench.desk.missing("work") == 40


def test_a_call_has_as_many_inputs_as_an_engine_takes_at_once() -> None:
    bench = Bench(task="embed", concurrency=4, batch_tokens=1 << 20)
    put(bench, *(request(f"r{n}", key="k") for n in range(9)))
    assert bench.names() == [["r0", "r1", "r2", "r3"], ["r4", "r5", "r6", "r7"]]
    assert bench.desk.missing("work") == 3


def test_a_server_that_makes_its_own_batches_has_more_calls_and_any_number_of_inputs() -> None:
    bench = Bench(task="embed", runtime="encoder", concurrency=8, batch_tokens=1 << 20)
    bench.desk.pace.called(0.2)
    for number in range(5):
        put(bench, *(request(f"r{number}.{n}", key="k") for n in range(9)))
    assert [len(group) for group in bench.names()] == [9, 9, 9, 9]


def choosing(**more: Any) -> Bench:
    """A desk whose calls are long and whose requests differ; two engines that take four at once."""
    bench = Bench(2, task="embed", concurrency=4, batch_tokens=1 << 20, **more)
    bench.desk.pace.called(0.2)
    for cost in (1, 10, 100):
        bench.desk.pace.came(cost)
    bench.desk.pace.saw(100, 1000, 1.0)
    for _ in range(50):
        bench.desk.pace.came(1)
        bench.desk.pace.came(100)
    return bench


def hold(bench: Bench, *lanes: wire.Lane, seconds: float = 0) -> None:
    """An engine has room, and more is in the queue; so much later."""

    async def within() -> None:
        bench.desk.hold(lanes)
        await asyncio.sleep(seconds)

    asyncio.run(within())


def costing(*costs: int, lane: wire.Lane = "work") -> list[Request]:
    return [request(f"r{n}:{cost}", key="k", cost=cost, lane=lane) for n, cost in enumerate(costs)]


def test_requests_of_like_cost_go_together_and_the_oldest_is_among_them() -> None:
    bench = choosing()
    put(bench, *costing(10, 200, 11, 190, 9, 210, 12, 195))
    assert bench.names() == [["r0:10", "r2:11", "r4:9", "r6:12"], ["r1:200", "r3:190", "r5:210", "r7:195"]]
    assert not bench.desk.lines["work"]


def test_there_is_more_to_choose_from_the_more_waits() -> None:
    desk = choosing().desk
    assert [desk.choice(waiting) for waiting in (0, 7, 8, 40, 1000)] == [0, 0, 1, 5, 12]
    assert desk.missing("work", desk.choice(40)) == 8 + 5


@pytest.mark.parametrize("why", ["short calls", "like costs", "its own batches", "no merging"])
def test_nothing_more_is_taken_where_there_is_no_use_in_choosing(why: str) -> None:
    bench = choosing(**{"runtime": "encoder"} if why == "its own batches" else {})
    if why == "no merging":
        bench = Bench(task="generate")
        bench.desk.pace.called(0.2)
    if why == "short calls":
        bench.desk.pace.call_seconds = 0.01
    if why == "like costs":
        for _ in range(2000):
            bench.desk.pace.came(50)
    assert bench.desk.choice(1000) == 0
    hold(bench, "work")
    assert not bench.desk.awaited


def test_a_call_is_chosen_once_the_queue_was_asked_for_what_there_is() -> None:
    bench = choosing()
    put(bench, *costing(10, 10, 10, 10), *costing(20, 20, 20, 20), request("left", key="k"))
    assert len(bench.begun) == 2
    hold(bench, "work", "batch")
    bench.finish()
    assert len(bench.begun) == 1
    put(bench, request("more", key="k", cost=11), request("line", key="k", lane="batch"))
    assert len(bench.begun) == 1
    bench.desk.release("work")
    assert bench.names()[1:] == [["left", "more"]]
    bench.finish()
    assert len(bench.begun) == 1
    bench.desk.release("batch")
    assert bench.names()[1:] == [["line"]]


def test_a_queue_that_does_not_answer_holds_up_nothing_that_is_here() -> None:
    bench = choosing()
    put(bench, *costing(10, 10, 10, 10), *costing(20, 20, 20, 20), request("left", key="k"))
    bench.begun.clear()
    for engine in bench.desk.engines:
        engine.finish(list(engine.running), 10)
    hold(bench, "work", seconds=2 * PATIENCE)
    assert bench.names() == [["left"]]


def test_with_a_choice_no_call_begins_before_an_engine_is_free() -> None:
    bench = choosing()
    put(bench, *costing(*([10] * 4), *([20] * 4), *([30] * 4)))
    assert len(bench.begun) == 2
    assert len(bench.desk.lines["work"]) == 4


def test_what_cannot_be_merged_waits_in_the_measure_of_a_pull() -> None:
    pace = Pace()
    engine = wire.PoolEngine("m", "generate", ("m",), "u", "unix:/none", concurrency=8)
    assert pace.ahead(engine) == 1
    pace.saw(200, 1000, 1.0)
    assert pace.ahead(engine) == 4
    pace.saw(10_000, 10_000_000, 10.0)
    assert pace.ahead(engine) == 8


@given(estimated=st.integers(1, 10_000), factor=st.floats(0.1, 10))
def test_estimates_follow_what_engines_count(estimated: int, factor: float) -> None:
    pace = Pace()
    envelope = wire.Envelope("x", "m", "/v1/embeddings", "answer.g.x", 0, 0, cost=estimated)
    for _ in range(200):
        pace.counted(pace.cost(envelope), max(1, round(estimated * factor)))
    assert pace.cost(envelope) == pytest.approx(max(1, estimated * factor), rel=0.2, abs=2)


def test_tokens_are_found_without_reading_the_answer() -> None:
    assert tokens_in(b'{"data":"' + b"x" * 100_000 + b'","usage":{"prompt_tokens":1,"total_tokens": 12}}') == 12
    assert tokens_in(b'{"usage":{"total_tokens":7},"data":"' + b"x" * 100_000 + b'"}') == 7
    assert tokens_in(b"{}") == 0
