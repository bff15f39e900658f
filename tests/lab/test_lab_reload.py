"""Requests that wait for a place when the proxy is reloaded: none of them is left behind in the old process."""

from __future__ import annotations

import asyncio

from holding import haproxy
from test_lab_hold import ask, client, engines_of, pytestmark, scenario, two_layouts, until

__all__ = ["pytestmark"]


@scenario
async def test_requests_in_the_queue_of_a_full_engine_are_answered_after_a_reload() -> None:
    config = two_layouts(maxconn=1)
    engine = engines_of(config, seconds=0.2)[0]
    await engine.start()
    with haproxy(config) as proxy:
        await until(lambda: proxy.status("qwen/split-one").startswith("UP"), "the engine is not up")
        async with client() as http:
            asked = [asyncio.create_task(ask(http, proxy)) for _ in range(8)]
            await until(lambda: engine.running > 0, "nothing runs")
            await asyncio.to_thread(proxy.reload)
            answers = await asyncio.gather(*asked)
            assert [answer.status_code for answer in answers] == [200] * 8
    await engine.kill()


@scenario
async def test_requests_in_the_queue_of_an_engine_that_ends_after_a_reload_go_to_the_next() -> None:
    config = two_layouts(maxconn=1)
    old, new, _ = engines_of(config, seconds=0.5)
    await old.start()
    with haproxy(config) as proxy:
        await until(lambda: proxy.status("qwen/split-one").startswith("UP"), "the engine is not up")
        async with client() as http:
            asked = [asyncio.create_task(ask(http, proxy)) for _ in range(8)]
            await until(lambda: old.running > 0, "nothing runs")
            await asyncio.to_thread(proxy.reload)
            proxy.state("qwen/split-one", "drain")
            await asyncio.sleep(0.7)
            await old.kill()
            proxy.state("qwen/split-one", "maint")
            await new.start()
            proxy.state("qwen/replicas-one", "ready")
            done, late = await asyncio.wait(asked, timeout=15)
            assert not late, f"{len(late)} of 8 still wait"
            assert {answer.result().status_code for answer in done} <= {200, 502}
            assert sum(answer.result().status_code == 200 for answer in done) >= 7
    await new.kill()
