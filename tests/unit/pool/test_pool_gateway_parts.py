"""The parts of a gateway that need no server: cost, time to wait, names of models, metrics."""

from __future__ import annotations

import asyncio
import ctypes
import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gateways import ROOT

from fleetctl.pool import wire
from fleetctl.pool.gateway import uploads as uploads_module
from fleetctl.pool.gateway.answers import Answer
from fleetctl.pool.gateway.asked import cost
from fleetctl.pool.gateway.demand import seconds_to_wait
from fleetctl.pool.gateway.json_scan import JsonScanner
from fleetctl.pool.gateway.metrics import Metrics
from fleetctl.pool.gateway.models import Models
from fleetctl.pool.gateway.refusals import Refusal
from fleetctl.pool.gateway.uploads import AT_ONCE, Room, Uploads
from fleetctl.pool.heap import keep_freed_memory
from fleetctl.pool.wire import Frame, Kind


@pytest.mark.parametrize(
    ("path", "found", "tokens"),
    [
        ("/v1/embeddings", {"max_tokens": 500}, 100),
        ("/v1/rerank", {}, 100),
        ("/v1/completions", {}, 116),
        ("/v1/completions", {"max_tokens": 50}, 150),
        ("/v1/completions", {"max_tokens": 50, "n": 3}, 250),
        ("/v1/chat/completions", {}, 356),
        ("/v1/chat/completions", {"max_tokens": 50}, 150),
        ("/v1/chat/completions", {"max_tokens": 50, "max_completion_tokens": 70}, 170),
        ("/v1/chat/completions", {"max_tokens": "many", "n": None}, 356),
        ("/v1/chat/completions", {"max_tokens": -5}, 356),
    ],
)
def test_cost_is_a_quarter_of_the_bytes_and_what_is_asked_for(path: str, found: dict[str, Any], tokens: int) -> None:
    scanner = JsonScanner()
    scanner.found = found
    assert cost(path, 400, scanner) == tokens


@pytest.mark.parametrize(
    ("waiting", "rate", "seconds"), [(1000, 100, 5), (1000, 99, 6), (10, 1000, 1), (1000, 0.1, 60), (1000, 0, 60)]
)
def test_a_client_waits_until_half_of_the_queue_is_served(waiting: int, rate: float, seconds: int) -> None:
    assert seconds_to_wait(waiting, rate) == seconds


def test_models_are_known_by_all_of_their_names_and_for_what_they_do() -> None:
    models = Models([wire.PoolModel("a", "embed", ("x", "y")), wire.PoolModel("b", "generate", ())])
    for name, path, key in [
        ("a", "/v1/embeddings", "a"),
        ("y", "/v1/embeddings", "a"),
        ("x", "/v1/rerank", "a"),
        ("b", "/v1/completions", "b"),
    ]:
        assert models.find(name, path).key == key
    with pytest.raises(Refusal, match="it answers /v1/completions, /v1/chat/completions"):
        models.find("b", "/v1/rerank")
    assert b'"id": "x"' in models.page
    assert b'"id": "a"' not in models.page


def test_metrics_are_whole_numbers_however_large_and_names_are_escaped() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.answered('a"b', 200, 0.004, 1_234_567_890)
    page = metrics.page(2, True, 0).decode()
    assert 'fleetctl_gateway_requests_total{model="a\\"b",code="200"} 3\n' in page
    assert 'fleetctl_gateway_received_bytes_total{model="a\\"b"} 3703703670\n' in page
    assert 'fleetctl_gateway_request_seconds_bucket{model="a\\"b",le="0.002"} 0\n' in page
    assert 'fleetctl_gateway_request_seconds_bucket{model="a\\"b",le="0.005"} 3\n' in page
    assert 'fleetctl_gateway_request_seconds_count{model="a\\"b"} 3\n' in page


async def bodies(answer: Answer, frames: Sequence[Frame]) -> list[bytes]:
    """What a handler gets of frames that come."""
    for frame in frames:
        answer.put(frame, 1.0)
    found = []
    with suppress(LookupError):
        answer.fail(LookupError())
        while True:
            found.append((await answer.next()).body)
    return found


def new_answer() -> Answer:
    """One that waits."""
    answer = Answer(asyncio.get_running_loop(), "r1", "answer.g1.r1", "gen")
    answer.deadline = 9.0
    return answer


BEGIN, MORE, END = Frame(Kind.BEGIN, b"1"), Frame(Kind.MORE, b"2"), Frame(Kind.END, b"3")


@pytest.mark.parametrize(
    "frames",
    [
        [BEGIN, MORE, END],
        [BEGIN, BEGIN, MORE, END],
        [BEGIN, MORE, BEGIN, MORE, END],
        [MORE, BEGIN, MORE, END],
        [END, BEGIN, MORE, END],
        [BEGIN, Frame(Kind.ALIVE), MORE, BEGIN, MORE, Frame(Kind.ALIVE), END],
    ],
)
def test_an_answer_that_comes_again_from_its_beginning_is_passed_on_once(frames: list[Frame]) -> None:
    async def main() -> None:
        assert await bodies(new_answer(), frames) == [b"1", b"2", b"3"]

    asyncio.run(main())


def test_an_answer_whose_beginning_was_lost_is_asked_for() -> None:
    async def main() -> None:
        answer = new_answer()
        answer.put(MORE, 2.0)
        assert (answer.ask_at, answer.look_at) == (2.0, 2.0)

    asyncio.run(main())


def test_a_client_that_takes_nothing_is_given_up_before_it_fills_the_memory() -> None:
    async def main() -> None:
        answer = new_answer()
        answer.put(BEGIN, 1.0)
        for _ in range(100):
            answer.put(Frame(Kind.MORE, bytes(1 << 20)), 1.0)
        with pytest.raises(Refusal, match="too slowly"):
            await answer.next()

    asyncio.run(main())


def test_freed_memory_is_kept_with_glibc_and_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [sys.executable, "-c", "from fleetctl.pool.heap import keep_freed_memory as keep; print(keep())"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == str(platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert keep_freed_memory() is False


class FakeStream:
    """What JetStream says of the bucket; ``held`` bytes are in it."""

    def __init__(self) -> None:
        self.held = self.looks = 0

    async def stream_info(self, name: str) -> Any:
        self.looks += 1
        return SimpleNamespace(state=SimpleNamespace(bytes=self.held))


def test_bodies_that_are_on_their_way_take_room_before_they_are_there() -> None:
    async def taken() -> None:
        stream = FakeStream()
        room = Room(cast(Any, stream), 1000)  # of which 800 are for bodies from gateways
        with pytest.raises(Refusal, match="longer than 800"):
            async with room.taken(801, 10_000):
                pass
        async with room.taken(500, 10_000):
            with pytest.raises(Refusal) as refused:
                async with room.taken(301, 10_000):
                    pass
            assert (refused.value.status, refused.value.retry_after) == (429, 5)
            with pytest.raises(KeyError):
                async with room.taken(300, 10_000):
                    raise KeyError
            async with room.taken(300, 10_000):  # what failed has given its place back
                room.brought(300)
            room.brought(500)
        with pytest.raises(Refusal):
            async with room.taken(1, 10_000):  # both are in the store now, though nobody has looked again
                pass
        assert stream.looks == 1

    asyncio.run(taken())


def test_a_store_that_does_not_answer_is_asked_once_for_all_bodies_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads_module, "LOOK", 0.05)

    class Hangs(FakeStream):
        async def stream_info(self, name: str) -> Any:
            await super().stream_info(name)
            await asyncio.sleep(60)

    async def ten() -> None:
        stream = Hangs()
        room = Room(cast(Any, stream), 1000)

        async def one() -> None:
            async with room.taken(1, 10):
                pass

        told = await asyncio.gather(*(one() for _ in range(10)), return_exceptions=True)
        assert {one.status for one in told if isinstance(one, Refusal)} == {503}
        assert (len(told), stream.looks) == (10, 1)

    asyncio.run(ten())


def test_so_many_bodies_are_read_at_once_and_the_next_waits_its_turn() -> None:
    async def turns() -> None:
        uploads = Uploads(None, lambda: False)
        reading, most, go_on = 0, 0, asyncio.Event()

        async def one() -> None:
            nonlocal reading, most
            async with uploads.turn(1, 10, 60):
                reading += 1
                most = max(most, reading)
                await go_on.wait()
                reading -= 1

        tasks = [asyncio.create_task(one()) for _ in range(3 * AT_ONCE)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert reading == AT_ONCE
        with pytest.raises(Refusal, match="would come too late"):
            async with uploads.turn(1, 10, 0.02):
                pass
        go_on.set()
        await asyncio.gather(*tasks)
        assert (reading, most) == (0, AT_ONCE)

    asyncio.run(turns())
