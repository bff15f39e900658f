"""A bridge that fails, or fails its clients, is not noticed: requests wait for an engine as if there were none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import time

import httpx
import pytest
from holding import haproxy
from test_lab_bridge import MARK, bridged
from test_lab_hold import ASK, ask, client, engines_of, scenario, until

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="HAProxy starts as root"),
]


@pytest.mark.parametrize("fault", ["dead", "401", "404", "429", "500", "302"])
def test_with_a_bridge_that_fails_requests_are_held_as_before(fault: str) -> None:
    asyncio.run(_held_in_spite_of_the_bridge(fault))


async def _held_in_spite_of_the_bridge(fault: str) -> None:
    config, bridge = bridged(after=0.2)
    engine = engines_of(config)[0]
    await engine.start()
    if fault != "dead":
        bridge.fault = fault
        await bridge.start()
    with haproxy(config) as proxy:
        async with client() as http:
            start = time.monotonic()
            asked = [asyncio.create_task(ask(http, proxy, stream=number % 2 == 1)) for number in range(40)]
            await until(lambda: bool(bridge.asked) or fault == "dead", "the bridge is not asked")
            await asyncio.sleep(1.5)
            assert not any(task.done() for task in asked)
            proxy.state("qwen/split-one", "ready")
            answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200] * 40
    assert not any(MARK in answer.headers for answer in answers)
    # Twice as many as it takes at once, until its failures are known; then one every 5 s.
    tries = 2 * 4 + 1 + (time.monotonic() - start) / 5
    assert len(bridge.asked) <= tries, "it is asked by all although it fails"
    await bridge.kill()
    await engine.kill()


@scenario
async def test_a_bridge_that_is_well_again_answers_what_waits_and_one_that_never_is_ends_with_the_hold() -> None:
    config, bridge = bridged(after=0.2)
    bridge.fault = "500"
    await bridge.start()
    with haproxy(config) as proxy:
        async with client() as http:
            asked = [asyncio.create_task(ask(http, proxy)) for _ in range(12)]
            await until(lambda: bridge.failed > 0, "the bridge is not asked")
            bridge.fault, bridge.seconds = "", 0.1
            answers = await asyncio.gather(*asked)
            assert {answer.json()["engine"] for answer in answers} == {"bridge"}
            assert bridge.most <= 4
            assert "fails (500)" in proxy.log and "answers again" in proxy.log
    await bridge.kill()
    config, bridge = bridged(after=0.2, hold=1.5)
    with haproxy(config) as proxy:
        async with client() as http:
            assert (await ask(http, proxy)).json()["error"]["code"] == "no_engine"


@scenario
async def test_a_request_that_the_bridge_finds_too_long_waits_for_the_fleet_and_others_go_there() -> None:
    config, bridge = bridged(after=0.2)
    engine = engines_of(config)[0]
    bridge.fault = "400"
    await bridge.start()
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            long = asyncio.create_task(ask(http, proxy))
            await until(lambda: bridge.failed == 1, "the bridge is not asked")
            bridge.fault = ""
            assert (await ask(http, proxy)).json()["engine"] == "bridge"
            assert not long.done()
            proxy.state("qwen/split-one", "ready")
            assert (await long).json()["engine"] == "split-one"
    assert len(bridge.asked) == 2
    await bridge.kill()
    await engine.kill()


@scenario
async def test_a_client_that_leaves_is_not_answered_by_the_bridge_any_longer() -> None:
    config, bridge = bridged(after=0.0)
    bridge.seconds = 60
    await bridge.start()
    with haproxy(config) as proxy:
        async with client() as http:
            for stream in (False, True):  # before the answer has begun, and after
                task = asyncio.create_task(ask(http, proxy, stream=stream))
                await until(lambda: bridge.running == 1, "it does not come to the bridge")
                await asyncio.sleep(0.3)
                task.cancel()
                await until(
                    lambda: proxy.requests_on("fleetctl_bridge/bridge") == 0, "the bridge goes on working for nobody"
                )
                bridge.running = 0
    await bridge.kill()


@scenario
async def test_clients_that_come_and_go_while_engine_and_bridge_do_too_lose_nothing_and_do_not_harm_the_proxy() -> None:
    config, bridge = bridged(after=0.05, keepalive=0.3, concurrency=8)
    engine = engines_of(config, seconds=0.05)[0]
    bridge.seconds = 0.05
    await bridge.start()
    await engine.start()
    marked: dict[tuple[int, bool, bool], int] = {}
    with haproxy(config) as proxy:
        worker, over = proxy.pid, time.monotonic() + 6

        async def customer(http: httpx.AsyncClient, number: int) -> None:
            dice = random.Random(number)
            while time.monotonic() < over:
                messages = [{"role": "user", "content": "x" * dice.choice([10, 200_000])}]
                task = asyncio.create_task(ask(http, proxy, stream=dice.random() < 0.5, messages=messages))
                if dice.random() < 0.3:
                    await asyncio.sleep(dice.random() * 0.4)
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    answer = await task
                    seen = (answer.status_code, MARK in answer.headers, '"error"' in answer.text)
                    marked[seen] = marked.get(seen, 0) + 1

        async def change() -> None:
            dice = random.Random(0)
            while time.monotonic() < over:
                await asyncio.to_thread(proxy.state, "qwen/split-one", dice.choice(["ready", "maint", "maint"]))
                bridge.fault = dice.choice(["", "", "", "", "400", "500"])
                bridge.seconds = dice.choice([0.0, 0.2])
                await asyncio.sleep(dice.random() * 0.4)
            await asyncio.to_thread(proxy.state, "qwen/split-one", "ready")

        async with client() as http:
            await asyncio.gather(change(), *(customer(http, number) for number in range(16)))
        print(f"\nanswers by status, mark and error: {marked}")
        await until(lambda: proxy.requests_on("fleetctl_bridge/bridge") == 0, "something is left at the bridge")
        assert proxy.pid == worker
    assert {(status, error) for status, _, error in marked} == {(200, False)}
    assert {mark for _, mark, _ in marked} == {True, False}
    await bridge.kill()
    await engine.kill()


@scenario
async def test_an_answer_that_the_bridge_breaks_off_ends_visibly() -> None:
    config, bridge = bridged(after=0.0)
    bridge.seconds = 1
    await bridge.start()
    with haproxy(config) as proxy:
        async with client() as http:
            pieces: list[str] = []
            with pytest.raises(httpx.RemoteProtocolError):
                async with http.stream(
                    "POST", f"{proxy.url}/v1/chat/completions", json={**ASK, "stream": True}
                ) as told:
                    async for piece in told.aiter_text():
                        pieces.append(piece)
                        await bridge.kill()
            assert pieces[0] == "data: 0\n\n"
