"""Streaming requests that wait for an engine get comment lines, so that nobody on the way gives up."""

from __future__ import annotations

import asyncio
import os
import shutil

import httpx
import pytest
from holding import Engine, Haproxy, haproxy
from test_lab_hold import ASK, ask, client, engines_of, scenario, two_layouts, until

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="HAProxy starts as root"),
]

COMMENT = ": waiting for an engine\n\n"
EVENTS = "".join(f"data: {number}\n\n" for number in range(5))


async def listen(http: httpx.AsyncClient, proxy: Haproxy, heard: list[str], **more: object) -> None:
    """Ask for a stream and note what comes of it."""
    asked = {**ASK, "stream": True, **more}
    async with http.stream("POST", f"{proxy.url}/v1/chat/completions", json=asked) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for piece in answer.aiter_text():
            heard.append(piece)


async def held(
    engine: Engine, proxy: Haproxy, http: httpx.AsyncClient, **more: object
) -> tuple[list[str], asyncio.Task[None]]:
    """A streaming request that has had its first comment line."""
    heard: list[str] = []
    task = asyncio.create_task(listen(http, proxy, heard, **more))
    await until(lambda: bool(heard) or task.done(), "no comment comes")
    return heard, task


@scenario
async def test_a_stream_gets_comments_while_it_waits_and_then_its_answer() -> None:
    config = two_layouts(layout=None, keepalive=0.5)
    engine = engines_of(config)[0]
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            silent = asyncio.create_task(ask(http, proxy))
            heard, task = await held(engine, proxy, http)
            await until(lambda: len(heard) >= 3, "the comments end")
            assert set(heard) == {COMMENT}
            assert not silent.done()
            proxy.state("qwen/split-one", "ready")
            await task
            assert "".join(heard).replace(COMMENT, "") == EVENTS
            assert (await silent).status_code == 200
    assert all("x-forwarded-for" in headers and "fleetctl-handed" not in headers for headers in engine.seen)
    await engine.kill()


@scenario
async def test_a_stream_that_waits_only_a_moment_gets_no_comment() -> None:
    config = two_layouts(layout=None, keepalive=5)
    engine = engines_of(config)[0]
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            heard: list[str] = []
            task = asyncio.create_task(listen(http, proxy, heard))
            await asyncio.sleep(0.3)
            proxy.state("qwen/split-one", "ready")
            await task
    assert "".join(heard) == EVENTS
    await engine.kill()


@scenario
async def test_a_stream_that_waits_too_long_ends_with_an_error_as_an_event() -> None:
    with haproxy(two_layouts(layout=None, hold=2, keepalive=0.5)) as proxy:
        async with client() as http:
            heard: list[str] = []
            await listen(http, proxy, heard)
    assert heard[0] == COMMENT
    assert heard[-1].startswith("data: {") and '"no_engine"' in heard[-1]


@scenario
async def test_an_engine_that_fails_after_comments_were_sent_is_told_as_an_event() -> None:
    config = two_layouts(layout=None, keepalive=0.5)
    engine = engines_of(config, seconds=1)[0]
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            heard, task = await held(engine, proxy, http)
            proxy.state("qwen/split-one", "ready")
            await until(lambda: "data: 0" in "".join(heard), "the stream does not begin")
            await engine.kill()
            await task
    assert '"engine_lost"' in heard[-1]
    assert "DONE" not in "".join(heard)


@scenario
async def test_a_client_that_leaves_after_comments_frees_its_place_while_it_waits_and_on_the_engine() -> None:
    config = two_layouts(layout=None, keepalive=0.5)
    engine = engines_of(config, seconds=30)[0]
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            _, leaving = await held(engine, proxy, http)
            leaving.cancel()
            await until(lambda: '"server":"<lua.aloud>"' in proxy.log, "the waiting request is not forgotten")
            heard, task = await held(engine, proxy, http)
            proxy.state("qwen/split-one", "ready")
            await until(lambda: "data: 0" in "".join(heard), "the stream does not begin")
            assert engine.running == 1
            task.cancel()
            used = "qwen/split-one"
            await until(lambda: proxy.requests_on(used) == 0, "the engine's place is not freed")
    await engine.kill()


@scenario
async def test_a_request_larger_than_the_buffer_and_a_reload_do_not_end_the_wait() -> None:
    config = two_layouts(layout=None, keepalive=0.5)
    engine = engines_of(config)[0]
    await engine.start()
    long = [{"role": "user", "content": "x" * 1_500_000}]
    with haproxy(config) as proxy:
        async with client() as http:
            waiting = [await held(engine, proxy, http, messages=messages) for messages in (ASK["messages"],) * 3]
            await asyncio.to_thread(proxy.reload)
            heard: list[str] = []
            large = asyncio.create_task(
                http.post(f"{proxy.url}/v1/chat/completions", json={**ASK, "messages": long, "stream": True})
            )
            await asyncio.sleep(1.5)
            proxy.state("qwen/split-one", "ready")
            for heard, task in waiting:
                await task
                assert "".join(heard).replace(COMMENT, "") == EVENTS
            assert (await large).text.replace(COMMENT, "") == EVENTS
    await engine.kill()
