"""What clients see when a copy fails under load, and when the proxy is reloaded."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest
from holding import haproxy
from moving import COPY, Moving, eventually
from test_lab_hold import ASK, client, engines_of, scenario, two_layouts, until

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="HAProxy starts as root"),
]


@dataclass
class Seen:
    """What the clients of a scenario saw."""

    requests: int = 0
    before_first_byte: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    longest: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {len(self.before_first_byte)} failed before the first byte, "
            f"{len(self.broken)} broken streams, longest {self.longest:.2f} s"
        )


async def _customer(
    http: httpx.AsyncClient, url: str, ask: Mapping[str, object], seen: Seen, over: asyncio.Event, number: int
) -> None:
    dice = random.Random(number)
    while not over.is_set():
        asked = {**ask, "stream": True} if dice.random() < 0.5 else ask
        begun, status, start = b"", 0, time.monotonic()
        seen.requests += 1
        try:
            async with http.stream("POST", f"{url}/v1/chat/completions", json=asked) as answer:
                status = answer.status_code
                async for piece in answer.aiter_raw():
                    begun += piece
            if status != 200:
                seen.before_first_byte.append(f"{status} {begun!r}")
        except httpx.HTTPError as error:
            (seen.broken if status == 200 else seen.before_first_byte).append(repr(error))
        seen.longest = max(seen.longest, time.monotonic() - start)


@asynccontextmanager
async def load(url: str, clients: int = 20, ask: Mapping[str, object] = ASK) -> AsyncIterator[Seen]:
    """Clients that ask again and again, half of them streaming."""
    seen, over = Seen(), asyncio.Event()
    async with client() as http, asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(_customer(http, url, ask, seen, over, number))
        try:
            yield seen
        finally:
            over.set()


@scenario
async def test_reloads_are_not_seen_by_clients_that_keep_their_connections() -> None:
    config = two_layouts(layout="replicas", maxconn=16)
    _, one, two = engines_of(config, seconds=0.01)
    await one.start()
    await two.start()
    with haproxy(config) as proxy:
        async with load(proxy.url, clients=40) as seen:
            for _ in range(8):
                await asyncio.to_thread(proxy.reload)
                await asyncio.sleep(0.3)
        print(f"\n8 reloads: {seen}")
        assert (seen.before_first_byte, seen.broken) == ([], [])
    await one.kill()
    await two.kill()


@scenario
async def test_what_a_killed_copy_had_not_begun_to_answer_is_answered_by_the_other() -> None:
    config = two_layouts(layout="replicas", maxconn=16)
    _, one, two = engines_of(config, seconds=0.2)
    await one.start()
    await two.start()
    with haproxy(config) as proxy:
        async with load(proxy.url) as seen:
            await until(lambda: one.answered > 10 and one.streaming > 0, "the requests do not arrive")
            running, killed = one.running, time.monotonic()
            await one.kill()
            await until(lambda: not proxy.in_rotation("qwen/replicas-one"), "the dead copy is not noticed")
            out = time.monotonic() - killed
            await asyncio.sleep(1)
        print(f"\ncopy killed with {running} requests on it: {seen}; out of rotation after {out:.2f} s")
        assert seen.before_first_byte == []
        assert 0 < len(seen.broken) <= running
    await two.kill()


@scenario
async def test_an_engine_that_answers_500_to_everything_leaves_the_rotation_until_it_answers_a_completion() -> None:
    config = two_layouts(layout="replicas", maxconn=32)
    _, one, two = engines_of(config, seconds=0.05)
    await one.start()
    await two.start()
    with haproxy(config) as proxy:
        async with load(proxy.url) as seen:
            await until(lambda: one.answered > 10, "the requests do not arrive")
            one.fault, failing = "500", time.monotonic()
            await until(lambda: not proxy.in_rotation("qwen/replicas-one"), "the copy that fails is not noticed")
            out, failed = time.monotonic() - failing, one.failed
            await asyncio.sleep(0.2)  # those that were on their way
            asked = len(one.seen)
            await asyncio.sleep(2)
            from_clients = sum("x-forwarded-for" in headers for headers in one.seen[asked:])
            assert one.failed > failed, "it is not asked again"
            one.fault = ""
            await until(lambda: proxy.in_rotation("qwen/replicas-one"), "the copy that is well does not come back")
        print(f"\n500 to everything: {seen}; out after {out:.2f} s and {failed} requests, then {from_clients} in 2 s")
        assert (seen.before_first_byte, seen.broken, from_clients) == ([], [], 0)
    await one.kill()
    await two.kill()


@scenario
async def test_a_request_that_kills_the_engines_it_comes_to_is_not_sent_to_one_after_the_other() -> None:
    config = two_layouts()
    engine = engines_of(config)[0]
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            asked = asyncio.create_task(http.post(f"{proxy.url}/v1/chat/completions", json={**ASK, "poison": True}))
            for death in (1, 2):
                await until(lambda: engine.server is None, f"death {death} does not come")
                await until(lambda: proxy.status("qwen/split-one") == "DOWN", "the dead engine is not noticed")
                await asyncio.sleep(1.5)  # longer than HAProxy waits before it tries again
                await engine.start()
            answer = await asked
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "engine_lost"
        assert len([headers for headers in engine.seen if "x-forwarded-for" in headers]) == 2
    await engine.kill()


@scenario
async def test_a_hung_engine_keeps_only_what_it_has_and_the_other_answers_that_once_it_is_ended() -> None:
    config = two_layouts(layout="replicas", maxconn=4)
    _, one, two = engines_of(config)
    await one.start()
    await two.start()
    one.fault = "hang"
    with haproxy(config) as proxy:
        async with client() as http:
            asked = [asyncio.create_task(http.post(f"{proxy.url}/v1/chat/completions", json=ASK)) for _ in range(30)]
            await until(lambda: two.answered == 26, "the other does not answer the rest")
            assert one.running == 4
            await one.kill()
            answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200] * 30
    assert two.answered == 30
    await two.kill()


@scenario
async def test_a_request_longer_than_the_buffer_passes_and_is_lost_with_its_engine() -> None:
    config = two_layouts(layout="replicas")
    _, one, two = engines_of(config, seconds=1.0)
    await one.start()
    await two.start()
    with haproxy(config) as proxy:
        for length, status in ((900_000, 200), (1_100_000, 502)):
            async with client() as http:
                long = {**ASK, "messages": [{"role": "user", "content": "x" * length}]}
                asked = asyncio.create_task(http.post(f"{proxy.url}/v1/chat/completions", json=long))
                await until(lambda: one.running + two.running == 1, "the request does not arrive")
                dead = one if one.running else two
                await dead.kill()
                assert (await asked).status_code == status
                await dead.start()
                name = f"qwen/{dead.name}"
                await until(lambda: proxy.in_rotation(name), "it does not come back")  # noqa: B023
    await one.kill()
    await two.kill()


@pytest.mark.parametrize("failure", ["kill", "kill the core", "error_500", "vanish"])
def test_a_copy_on_a_box_that_fails_under_load_is_not_missed(moving: Moving, failure: str) -> None:
    moving.be_in("replicas")
    eventually(lambda: set(in_rotation(moving)) >= {"standin/replicas-box1", "standin/replicas-box2"})
    ask: Mapping[str, object] = {"model": "standin", "messages": ASK["messages"], "max_tokens": 40}
    seen, out = asyncio.run(_fail_on_box(moving, failure, ask))
    print(f"\n{failure} on a box: {seen}; out of rotation after {out:.2f} s")
    assert seen.before_first_byte == []
    assert (failure != "error_500") or seen.broken == []
    assert out < 3
    eventually(lambda: "standin/replicas-box2" in in_rotation(moving))


def in_rotation(moving: Moving) -> set[str]:
    """BACKEND/SERVER of the engines that get new requests on the proxy of the fleet."""
    ask = (
        "import socket; s=socket.socket(socket.AF_UNIX); s.connect('/run/fleetctl-proxy/admin.sock');"
        "s.sendall(b'show stat\\n'); print(b''.join(iter(lambda: s.recv(65536), b'')).decode())"
    )
    rows = [line.split(",") for line in moving.sh("box1", f'python3 -c "{ask}"').splitlines() if line.count(",") > 20]
    return {f"{r[0]}/{r[1]}" for r in rows if r[17].startswith("UP") and r[18] not in ("", "0")}


async def _fail_on_box(moving: Moving, failure: str, ask: Mapping[str, object]) -> tuple[Seen, float]:
    async with load(moving.proxy, 20, ask) as seen:
        await until(lambda: seen.requests > 60, "the requests are not answered")
        began = time.monotonic()
        if failure == "kill":
            await asyncio.to_thread(moving.sh, "box2", f"systemctl kill -s KILL {COPY}")
        elif failure == "kill the core":
            await asyncio.to_thread(moving.sh, "box2", "pkill -KILL VLLM::Engine")
        elif failure == "vanish":
            await asyncio.to_thread(moving.lab.vanish, "box2")
        else:
            await asyncio.to_thread(moving.control, "box2", error_500=True)
        while "standin/replicas-box2" in await asyncio.to_thread(in_rotation, moving):
            assert time.monotonic() - began < 60, "it stays in the rotation"
        out = time.monotonic() - began
        await asyncio.sleep(8)
        if failure == "vanish":
            await asyncio.to_thread(moving.lab.reappear, "box2")
        elif failure == "error_500":
            await asyncio.to_thread(moving.sh, "box2", "rm /etc/standin.json")
    return seen, out
