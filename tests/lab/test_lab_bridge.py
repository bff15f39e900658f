"""The bridge: another endpoint that answers while no engine of the fleet is up, and whose failures nobody sees."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import time
from pathlib import Path

import httpx
import pytest
from holding import Engine, Haproxy, free_port, haproxy
from test_lab_hold import ASK, ask, client, engines_of, scenario, two_layouts, until
from test_lab_tls import made_certificate

from fleetctl.onbox.haproxy import look
from fleetctl.render.release import Bridge, ProxyConfig
from fleetctl.spec.secret import Secret

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="HAProxy starts as root"),
]

MARK = "fleetctl-bridge"
EVENTS = "".join(f"data: {number}\n\n" for number in range(5))
SECRETS = {"agents": "sk-client-of-the-fleet", "bridge": "sk-operator-at-the-bridge"}


def bridged(*, layout: str | None = None, **more: object) -> tuple[ProxyConfig, Engine]:
    """A proxy with a bridge on this machine, and the server that is that bridge. ``more``: settings of either."""
    names = Bridge.model_fields.keys() & more.keys()
    values = {
        "tls": False,
        "host": "127.0.0.1",
        "port": free_port(),
        "path": "/api/v1/",
        "models": {"qwen": "other/model"},
        "after": 0.5,
        "concurrency": 4,
        **{name: more.pop(name) for name in names},
    }
    bridge = Bridge.model_validate({"name": f"127.0.0.1:{values['port']}", **values})
    return two_layouts(layout, bridge=bridge, **more), Engine(bridge.port, "bridge")  # type: ignore[arg-type]


def name_of(config: ProxyConfig) -> str:
    assert config.bridge is not None
    return config.bridge.name


async def heard(
    http: httpx.AsyncClient, proxy: Haproxy, **more: object
) -> tuple[httpx.Response, list[str], list[float]]:
    """A streamed answer, its pieces and the times at which they came."""
    pieces, times = [], []
    url = f"{proxy.url}/v1/chat/completions"
    async with http.stream("POST", url, json={**ASK, "stream": True, **more}) as answer:
        async for piece in answer.aiter_text():
            pieces.append(piece)
            times.append(time.monotonic())
    return answer, pieces, times


@scenario
async def test_while_no_engine_is_up_the_bridge_answers_with_a_mark_and_then_engines_do_without() -> None:
    config, bridge = bridged()
    engine = engines_of(config)[0]
    await bridge.start()
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            start = time.monotonic()
            answer = await ask(http, proxy)
            assert time.monotonic() - start >= 0.5
            assert (answer.json(), answer.headers[MARK]) == ({"engine": "bridge"}, name_of(config))
            answer, pieces, _ = await heard(http, proxy)
            assert "".join(pieces) == EVENTS
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.headers[MARK] == name_of(config)
            bridge.seconds = 1
            running = asyncio.create_task(ask(http, proxy))
            await until(lambda: bridge.running == 1, "it does not come to the bridge")
            proxy.state("qwen/split-one", "ready")
            answer = await ask(http, proxy)
            assert answer.json()["engine"] == "split-one" and MARK not in answer.headers
            assert (await running).json()["engine"] == "bridge"
        await until(lambda: proxy.log.count('"server":"<lua.bridge>"') == 3, proxy.log)
        lines = [json.loads(line) for line in proxy.log.splitlines() if '"server":"<lua.bridge>"' in line]
    assert all(500 <= line["held_ms"] <= line["total_ms"] for line in lines)
    await bridge.kill()
    await engine.kill()


@scenario
async def test_tokens_of_the_bridge_pass_one_by_one() -> None:
    config, bridge = bridged(after=0.0)
    bridge.seconds = 0.2
    await bridge.start()
    with haproxy(config) as proxy:
        async with client() as http:
            _, pieces, times = await heard(http, proxy)
    assert "".join(pieces) == EVENTS
    assert len(times) >= 5 and times[-1] - times[0] >= 0.6
    await bridge.kill()


@scenario
async def test_the_bridge_gets_its_model_its_key_and_nothing_of_the_client() -> None:
    config, bridge = bridged(
        after=0.0, api_key=Secret(env="BRIDGE"), api_keys={"agents": Secret(env="KEY")}, models={"qwen": 'a "b"'}
    )
    await bridge.start()
    own = {"authorization": f"Bearer {SECRETS['agents']}", "cookie": "a=b", "x-secret": "s", "fleetctl-handed": "yes"}
    body = b'{"messages": [{"role": "user", "content": "\\"model\\": 1"}],\n "model" : "qwen" }'
    with haproxy(config, SECRETS) as proxy:
        async with client() as http:
            headers = {**own, "content-type": "application/json"}
            for path in ("chat/completions", "completions?x=y", "embeddings"):
                answer = await http.post(f"{proxy.url}/v1/{path}", content=body, headers=headers)
                assert (answer.status_code, answer.headers.get(MARK)) == (200, name_of(config))
            health = await http.get(f"{proxy.url}/fleetctl/health", headers=headers)
            assert health.json() == {"usable": {"qwen": 0}, "bridge": {"usable": 1, "running": 0}}
        files = "".join(path.read_text() for path in proxy.folder.glob("*.cfg"))
        assert (proxy.folder / "bridge-key").stat().st_mode & 0o777 == 0o600
        assert "sk-" not in proxy.log + files
    assert [first for first, _ in bridge.asked] == [
        f"POST /api/v1/{path} HTTP/1.1" for path in ("chat/completions", "completions", "embeddings")
    ]
    assert {body for _, body in bridge.asked} == {body.replace(b'"qwen"', b'"a \\"b\\""')}
    for headers in bridge.seen:
        assert headers.pop("authorization") == f"Bearer {SECRETS['bridge']}"
        assert headers.pop("host") == name_of(config)
        assert headers.keys() <= {"accept", "content-type", "content-length", "connection", "user-agent"}
        assert headers["user-agent"] == "fleetctl"
    await bridge.kill()


@scenario
async def test_other_requests_and_too_large_ones_wait_for_an_engine() -> None:
    config, bridge = bridged(after=0.0)
    engine = engines_of(config)[0]
    await bridge.start()
    await engine.start()
    long = {**ASK, "messages": [{"role": "user", "content": "x" * 1_100_000}]}
    with haproxy(config) as proxy:
        async with client() as http:
            url = proxy.url
            others = [
                http.get(f"{url}/v1/models"),
                http.post(f"{url}/tokenize", json=ASK),
                http.post(f"{url}/v1/audio/speech", json=ASK),
                http.post(f"{url}/v1/chat/completions", content=b"[]"),
                http.post(f"{url}/v1/chat/completions", json=long),
            ]
            asked = [asyncio.ensure_future(other) for other in others]
            await asyncio.sleep(1.5)
            assert not any(task.done() for task in asked)
            assert bridge.asked == []
            proxy.state("qwen/split-one", "ready")
            answers = await asyncio.gather(*asked, return_exceptions=True)
    assert not any(isinstance(answer, httpx.Response) and MARK in answer.headers for answer in answers)
    assert bridge.asked == []
    await bridge.kill()
    await engine.kill()


@scenario
async def test_a_long_answer_comes_whole() -> None:
    config, bridge = bridged(after=0.0)
    await bridge.start()
    echo = "x" * 900_000
    with haproxy(config) as proxy:
        async with client() as http:
            for _ in range(5):
                answers = await asyncio.gather(*(ask(http, proxy, echo=echo) for _ in range(4)))
                assert [answer.json()["echo"] == echo for answer in answers] == [True] * 4
    await bridge.kill()


@scenario
async def test_no_more_requests_than_it_takes_are_at_the_bridge_and_an_engine_takes_the_rest() -> None:
    config, bridge = bridged(after=0.1, concurrency=3)
    engine = engines_of(config)[0]
    bridge.seconds = 2
    await bridge.start()
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            asked = [asyncio.create_task(ask(http, proxy)) for _ in range(20)]
            await until(lambda: bridge.running == 3, "the bridge does not get its share")
            await asyncio.sleep(0.5)
            proxy.state("qwen/split-one", "ready")
            answers = await asyncio.gather(*asked)
    names = [answer.json()["engine"] for answer in answers]
    assert (names.count("bridge"), names.count("split-one"), bridge.most) == (3, 17, 3)
    await bridge.kill()
    await engine.kill()


@scenario
async def test_a_stream_that_has_had_comments_goes_to_the_bridge_when_that_comes_up() -> None:
    config, bridge = bridged(after=0.2, keepalive=0.5)
    with haproxy(config) as proxy:
        async with client() as http:
            url, told = f"{proxy.url}/v1/chat/completions", ""
            async with http.stream("POST", url, json={**ASK, "stream": True}) as answer:
                async for piece in answer.aiter_text():
                    if not told:
                        await bridge.start()
                    told += piece
    assert MARK not in answer.headers
    assert told.startswith(": waiting for an engine\n\n")
    assert told.endswith(f": {MARK}: {name_of(config)}\n\n{EVENTS}")
    await bridge.kill()


@scenario
async def test_the_bridge_is_no_engine_to_fleetctl() -> None:
    config, bridge = bridged()
    await bridge.start()
    with haproxy(config) as proxy:
        await until(lambda: proxy.status("fleetctl_bridge/bridge") == "UP", "the bridge is not up")
        seen = look(str(proxy.folder / "run/admin.sock"))
    assert seen is not None and seen["bridge"]["status"] == "UP"
    assert not any("bridge" in name for name in seen["servers"])
    assert "qwen/split-one" in seen["servers"]
    await bridge.kill()


def test_over_https_the_bridge_is_asked_only_with_a_certificate_for_its_name(tmp_path: Path) -> None:
    asyncio.run(_ask_over_https(tmp_path))


async def _ask_over_https(folder: Path) -> None:
    pem = made_certificate(folder, "DNS:localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    names: list[str | None] = []
    context.sni_callback = lambda _, name, __: names.append(name)
    for host, ca, answers in (
        ("localhost", str(pem), True),
        ("localhost", None, False),
        ("127.0.0.1", str(pem), False),
    ):
        config, bridge = bridged(tls=True, host=host, ca=ca, after=0.2, hold=2.0)
        await bridge.start(context)
        with haproxy(config) as proxy:
            async with client() as http:
                answer = await ask(http, proxy)
                assert (answer.status_code, MARK in answer.headers) == ((200, True) if answers else (503, False))
                if answers:
                    assert "".join((await heard(http, proxy))[1]) == EVENTS
        assert bool(bridge.asked) == answers
        await bridge.kill()
    assert "localhost" in names
