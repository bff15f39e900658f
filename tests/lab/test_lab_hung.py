"""An engine that accepts requests and answers /health, and does no work any more: others answer what it had."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from holding import Engine, haproxy
from moving import Moving, eventually
from test_lab_failures import Seen, in_rotation, load
from test_lab_hold import ASK, client, engines_of, scenario, two_layouts, until

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="HAProxy starts as root"),
]

ONE = "qwen/replicas-one"


async def _well(engine: Engine) -> None:
    engine.fault = ""
    engine.well_again.set()


@scenario
async def test_what_a_hung_copy_has_is_answered_by_the_other_and_it_comes_back_when_it_works_again() -> None:
    config = two_layouts(layout="replicas", maxconn=16, silence_limit=2.0)
    _, one, two = engines_of(config, seconds=0.05)
    await one.start()
    await two.start()
    with haproxy(config) as proxy:
        async with load(proxy.url) as seen:
            await until(lambda: one.answered > 10, "the requests do not arrive")
            one.fault, hung = "hang", time.monotonic()
            await asyncio.sleep(1.5)
            assert proxy.in_rotation(ONE), "it is taken out before its time"
            await until(lambda: not proxy.in_rotation(ONE), "the hung copy is not noticed")
            out = time.monotonic() - hung
            await until(lambda: proxy.requests_on(ONE) == 0, "it keeps requests")
            await asyncio.sleep(0.5)
            asked = len(one.seen)
            await asyncio.sleep(1)
            assert not any("x-forwarded-for" in headers for headers in one.seen[asked:])
            await _well(one)
            await until(lambda: proxy.in_rotation(ONE), "the copy that works again does not come back")
        print(f"\nhung copy, silence_limit 2 s: {seen}; out after {out:.2f} s")
        assert seen.before_first_byte == []
        assert "has done nothing for 2 s" in proxy.log and "answers completions again" in proxy.log
    await one.kill()
    await two.kill()


@scenario
async def test_a_copy_that_reads_a_long_prompt_or_whose_work_cannot_be_seen_keeps_its_requests() -> None:
    config = two_layouts(layout="replicas", silence_limit=1.0)
    _, one, two = engines_of(config)
    with haproxy(config) as proxy:
        async with client() as http:
            for fault, steps in (("reading", True), ("hang", False)):
                await one.start()
                one.fault, one.steps, one.well_again = fault, steps, asyncio.Event()
                await until(lambda: proxy.in_rotation(ONE), "it is not up")
                asked = asyncio.create_task(http.post(f"{proxy.url}/v1/chat/completions", json=ASK))
                await until(lambda: one.running > 0, "the request does not arrive")
                await asyncio.sleep(4)  # the limit, a question, and more
                assert proxy.in_rotation(ONE) and not asked.done()
                await _well(one)
                assert (await asked).json() == {"engine": one.name}
                await one.kill()
    await two.kill()


@scenario
async def test_requests_of_the_only_engine_are_held_until_it_is_started_again() -> None:
    for fault in ("hang", "dumb"):
        config = two_layouts(silence_limit=1.0)
        engine = engines_of(config)[0]
        await engine.start()
        with haproxy(config) as proxy:
            async with client() as http:
                await until(lambda: proxy.in_rotation("qwen/split-one"), "it is not up")
                engine.fault = fault
                asked = [asyncio.create_task(http.post(f"{proxy.url}/v1/chat/completions", json=ASK)) for _ in range(4)]
                await until(lambda: "has done nothing" in proxy.log, "the hung engine is not noticed")
                await until(lambda: proxy.requests_on("qwen/split-one") == 0, "it keeps requests")
                await engine.kill()
                await asyncio.sleep(0.5)
                assert not any(task.done() for task in asked)
                engine.fault = ""
                await engine.start()
                assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 4
        await engine.kill()


@scenario
async def test_an_old_process_takes_requests_from_a_hung_copy_too_and_ends() -> None:
    config = two_layouts(layout="replicas", silence_limit=1.0)
    _, one, two = engines_of(config)
    await one.start()
    await two.start()
    one.fault = "hang"
    with haproxy(config) as proxy:
        async with client() as http:
            asked = [asyncio.create_task(http.post(f"{proxy.url}/v1/chat/completions", json=ASK)) for _ in range(4)]
            await until(lambda: one.running > 0, "no request arrives")
            old = int(proxy.pid)
            await asyncio.to_thread(proxy.reload)
            answers = await asyncio.gather(*asked)
            assert [answer.json() for answer in answers] == [{"engine": two.name}] * 4
        await until(lambda: not Path(f"/proc/{old}").exists(), "the old process stays")
    await one.kill()
    await two.kill()


def test_a_copy_whose_engine_core_hangs_is_not_missed(moving: Moving) -> None:
    text = moving.changed(lambda d: d["proxy"].update(silence_limit="3s"))
    moving.cutover("replicas", text=text)
    eventually(lambda: set(in_rotation(moving)) >= {"standin/replicas-box1", "standin/replicas-box2"})
    ask: Mapping[str, object] = {"model": "standin", "messages": ASK["messages"], "max_tokens": 40}
    seen, out = asyncio.run(_hang_on_box(moving, ask))
    print(f"\ncore of a copy hangs, silence_limit 3 s: {seen}; out of rotation after {out:.2f} s")
    assert seen.before_first_byte == []
    assert len(seen.broken) <= 12  # those that had begun on it, of the 12 requests that it takes at once
    eventually(lambda: "standin/replicas-box2" in in_rotation(moving))
    # Prompts that take longer to read than the limit are no reason: the cache fills meanwhile.
    for box in ("box1", "box2"):
        moving.control(box, prefill_seconds_per_token=0.02)
    long = {"model": "standin", "messages": [{"role": "user", "content": "word " * 20_000}], "max_tokens": 4}
    begin = time.monotonic()
    answer = httpx.post(f"{moving.proxy}/v1/chat/completions", json=long, timeout=300, trust_env=False)
    took = time.monotonic() - begin
    print(f"a prompt that is read for {took:.1f} s is answered with {answer.status_code}")
    assert (answer.status_code, took > 14) == (200, True)
    assert "has done nothing" not in moving.sh("box1", f"journalctl -q -o cat -u fleetctl-proxy --since=-{int(took)}s")


async def _hang_on_box(moving: Moving, ask: Mapping[str, object]) -> tuple[Seen, float]:
    async with load(moving.proxy, 20, ask) as seen:
        await until(lambda: seen.requests > 60, "the requests are not answered")
        await asyncio.to_thread(moving.control, "box2", hang=True)
        began = time.monotonic()
        while "standin/replicas-box2" in await asyncio.to_thread(in_rotation, moving):
            assert time.monotonic() - began < 60, "it stays in the rotation"
        out = time.monotonic() - began
        await asyncio.sleep(3)
        await asyncio.to_thread(moving.sh, "box2", "rm /etc/standin.json")
        eventually(lambda: "standin/replicas-box2" in in_rotation(moving))
        await asyncio.sleep(1)
    return seen, out
