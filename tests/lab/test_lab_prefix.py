"""`balance: prefix`: a conversation stays on the copy whose cache has it, as far as load and failures allow."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections import Counter

import httpx
import pytest
from holding import Haproxy, haproxy
from moving import BOXES, COPY, Moving, eventually
from test_lab_failures import in_rotation, load
from test_lab_hold import client, engines_of, scenario, two_layouts, until

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="HAProxy starts as root"),
]

LONG = "The history of this conversation is long. " * 60  # what is short may go anywhere
COPIES = {"replicas-one", "replicas-two"}


def turns(number: int, count: int = 4) -> list[dict[str, object]]:
    """A conversation with so many answers in it."""
    said: list[dict[str, object]] = [{"role": "user", "content": f"{number}: {LONG}"}]
    for turn in range(count):
        said += [{"role": "assistant", "content": f"answer {turn}"}, {"role": "user", "content": f"question {turn}"}]
    return said


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


FORMS = {
    "messages": lambda n, turn: {"model": "qwen", "messages": turns(n, turn)},
    "a system prompt": lambda n, turn: {"messages": [{"role": "system", "content": LONG}, *turns(n, turn)]},
    "contents in parts": lambda n, turn: {
        "messages": [
            {"role": "developer", "content": parts(LONG)},
            {"role": "user", "content": parts(f"{n}: hello")},
            *turns(turn, turn)[1:],
        ]
    },
    "fields before and after": lambda n, turn: {
        "temperature": turn,
        "messages": [{"name": f"turn {turn}", **one} for one in turns(n, turn)],
        "max_tokens": turn + 1,
    },
    "a plain prompt": lambda n, turn: {"prompt": f"{n}: {LONG}" + "and so on " * turn},
}


async def engine_for(http: httpx.AsyncClient, proxy: Haproxy, body: dict[str, object]) -> str:
    answer = await http.post(f"{proxy.url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["engine"])


@scenario
async def test_each_conversation_stays_on_a_copy_and_all_of_them_are_spread_over_the_copies() -> None:
    config = two_layouts(layout="replicas", balance="prefix")
    _, one, two = engines_of(config, seconds=0)
    await one.start()
    await two.start()
    with haproxy(config) as proxy:
        async with client() as http:
            for name, form in FORMS.items():
                where = [{await engine_for(http, proxy, form(n, turn)) for turn in range(4)} for n in range(24)]
                assert all(len(engines) == 1 for engines in where), (name, where)
                spread = Counter(engine for engines in where for engine in engines)
                assert min(spread.values()) >= 4 and set(spread) == COPIES, (name, spread)
            short = [await engine_for(http, proxy, {"prompt": "Hello"}) for _ in range(8)]
            assert set(short) == COPIES
            for odd in ({"messages": 3}, {"messages": [3]}, {"messages": [[]]}, {"prompt": [1, 2, 3] * 2000}, {}):
                assert await engine_for(http, proxy, {**odd, "user": LONG}) in COPIES
            await asyncio.to_thread(proxy.reload)
            after = [await engine_for(http, proxy, FORMS["messages"](n, 5)) for n in range(24)]
            before = [await engine_for(http, proxy, FORMS["messages"](n, 1)) for n in range(24)]
            assert after == before
    await one.kill()
    await two.kill()


@scenario
async def test_a_conversation_goes_to_the_other_copy_while_its_own_is_drained_or_dead_and_comes_back() -> None:
    config = two_layouts(layout="replicas", balance="prefix")
    engines = {engine.name: engine for engine in engines_of(config, seconds=0.01)[1:]}
    for engine in engines.values():
        await engine.start()
    ask = {"model": "qwen", "messages": turns(1)}
    with haproxy(config) as proxy:
        async with client() as http:
            home = await engine_for(http, proxy, ask)
            (other,) = COPIES - {home}
            async with load(proxy.url, 4, ask) as seen:
                for away, back in (
                    (lambda: proxy.state(f"qwen/{home}", "drain"), lambda: proxy.state(f"qwen/{home}", "ready")),
                    (engines[home].kill, engines[home].start),
                ):
                    came = away()
                    if came is not None:
                        await came
                    await until(lambda: not proxy.in_rotation(f"qwen/{home}"), "it stays in the rotation")
                    assert await engine_for(http, proxy, ask) == other
                    came = back()
                    if came is not None:
                        await came
                    await until(lambda: proxy.in_rotation(f"qwen/{home}"), "it does not come back")
            assert await engine_for(http, proxy, ask) == home
        print(f"\ndrained and killed under load: {seen}")
        assert seen.before_first_byte == []
    for engine in engines.values():
        await engine.kill()


@scenario
async def test_a_conversation_that_everybody_continues_at_once_does_not_overload_its_copy_nor_wait_for_it() -> None:
    config = two_layouts(layout="replicas", balance="prefix", maxconn=12)
    _, one, two = engines_of(config, seconds=1.0)
    await one.start()
    await two.start()
    with haproxy(config) as proxy:
        async with client() as http:
            asked = [asyncio.create_task(engine_for(http, proxy, {"messages": turns(1)})) for _ in range(12)]
            where = Counter(await asyncio.gather(*asked))
            assert 6 < max(where.values()) <= 9, where  # an equal share, and half as much again
            asked = [asyncio.create_task(engine_for(http, proxy, {"messages": turns(1)})) for _ in range(24)]
            assert Counter(await asyncio.gather(*asked)) == dict.fromkeys(COPIES, 12)
            assert (one.most, two.most) == (12, 12)
    await one.kill()
    await two.kill()


def test_a_conversation_meets_its_cache_on_boxes_and_misses_none_when_its_box_is_drained_or_its_engine_dies(
    moving: Moving,
) -> None:
    text = moving.changed(lambda d: d["proxy"].update(balance="prefix"))
    moving.cutover("replicas", text=text)
    servers = {box: f"standin/replicas-{box}" for box in BOXES}
    eventually(lambda: set(servers.values()) <= in_rotation(moving))
    ask = {"model": "standin", "messages": turns(1, 0), "max_tokens": 4}

    def counted(name: str) -> dict[str, float]:
        """A counter of each engine, read from itself; 0 for one that does not run."""
        found = {}
        for box in BOXES:
            try:
                page = httpx.get(f"http://{moving.lab.box(box).address}:8000/metrics", trust_env=False).text
            except httpx.HTTPError:
                page = ""
            found[box] = sum(float(value) for value in re.findall(rf"\nvllm:{name}{{.*}} (\S+)", page))
        return found

    def answered_by() -> str:
        """The box whose engine answers one more turn of the conversation."""
        before = counted("prompt_tokens_total")
        answer = httpx.post(f"{moving.proxy}/v1/chat/completions", json=ask, timeout=60, trust_env=False)
        said = answer.json()["choices"][0]["message"]["content"]
        ask["messages"] = [
            *ask["messages"],
            {"role": "assistant", "content": said},
            {"role": "user", "content": "And?"},
        ]
        after = counted("prompt_tokens_total")
        return max(BOXES, key=lambda box: after[box] - before[box])  # what else is asked meanwhile is short

    home = answered_by()
    hits = counted("prefix_cache_hits_total")[home]
    assert [answered_by() for _ in range(5)] == [home] * 5
    assert counted("prefix_cache_hits_total")[home] > hits + 5 * 300, "the cache has not the history"
    (other,) = set(BOXES) - {home}
    with moving.steady_traffic() as told:
        assert moving.run("drain", home, "--yes", text=text).rc == 0
        assert answered_by() == other
        assert moving.run("undrain", home, "--yes", text=text).rc == 0
        assert answered_by() == home
        moving.sh(home, f"systemctl kill -s KILL {COPY}")
        assert answered_by() == other
        eventually(lambda: servers[home] in in_rotation(moving))
        assert answered_by() == home
    assert told.failed == []
