"""The bridge: another endpoint that answers while no engine of the fleet is up, and whose failures nobody sees."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from holding import Engine, Haproxy, free_port, haproxy
from moving import PROXY, Moving, Ran, eventually
from test_lab_hold import ASK, ask, client, engines_of, scenario, two_layouts, until
from test_lab_tls import made_certificate

from fleetctl.lab.traffic import fault
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
            asked = [asyncio.create_task(ask(http, proxy, stream=number % 2 == 1)) for number in range(8)]
            await until(lambda: bool(bridge.asked) or fault == "dead", "the bridge is not asked")
            await asyncio.sleep(1.5)
            assert not any(task.done() for task in asked)
            proxy.state("qwen/split-one", "ready")
            answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200] * 8
    assert not any(MARK in answer.headers for answer in answers)
    tries = 4 + (time.monotonic() - start) / 5  # as many as it takes at once, then one every 5 s
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


# A colleague's box: another model behind a key, and HTTPS with a certificate that only the office knows.
HTTPS = """\
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
frontend api
    bind :9443 ssl crt /etc/ssl/bridge.pem
    default_backend engine
backend engine
    server engine 127.0.0.1:9000
"""
ENGINE = "/opt/standin/bin/vllm serve lab/other --served-model-name other --port 9000 --api-key sk-bridge-right"


@pytest.fixture
def colleague(moving: Moving, tmp_path: Path) -> Iterator[str]:
    """fleet.yaml with a bridge, which runs on box2 beside the fleet's engines."""
    pem = made_certificate(tmp_path, "DNS:box2").read_text()
    moving.put("box2", "/etc/ssl/bridge.pem", pem)
    moving.put("box1", "/etc/ssl/bridge-ca.pem", pem[: pem.index("-----BEGIN PRIVATE KEY")])
    moving.put("box2", "/etc/bridge.cfg", HTTPS)
    for name, command in (("bridge-engine", ENGINE), ("bridge-https", "/usr/sbin/haproxy -db -f /etc/bridge.cfg")):
        moving.sh("box2", f"systemd-run --unit={name} -E STANDIN_LOAD_SECONDS=0 -E STANDIN_SPEED=20 {command}")
    bridge = {
        "url": "https://box2:9443/v1",
        "model": "other",
        "api_key": {"env": "BRIDGE_KEY"},
        "after": "500ms",
        "ca": "/etc/ssl/bridge-ca.pem",
    }

    def change(document: dict[str, Any]) -> None:
        document["proxy"].update(bridge=bridge, api_keys={"agents": {"env": "AGENTS_KEY"}})
        document["models"]["standin"]["environment"]["STANDIN_LOAD_SECONDS"] = "3"

    yield moving.changed(change)
    moving.sh("box2", "systemctl stop bridge-engine bridge-https; rm -f /etc/bridge.cfg /etc/ssl/bridge.pem")
    moving.sh("box1", "rm -f /etc/ssl/bridge-ca.pem")


def test_in_the_gap_of_a_move_the_bridge_answers_and_with_a_wrong_key_requests_wait(
    moving: Moving, colleague: str
) -> None:
    right = {"BRIDGE_KEY": "sk-bridge-right", "AGENTS_KEY": "sk-agents"}
    moving.cutover("split", text=colleague, env=right)
    eventually(lambda: moving.status(text=colleague)["notes"] == [], lambda: moving.status(text=colleague))
    ran, marks = _move_under_load(moving, "replicas", colleague, right)
    assert ran.rc == 0, ran
    assert any("prompts leave the fleet: they go to box2:9443" in warning for warning in ran.plan["warnings"])
    assert marks.keys() == {None, "box2:9443"}
    line = next(line for line in _log(moving) if '"server":"<lua.bridge>"' in line)
    assert json.loads(line)["held_ms"] >= 500
    told = json.dumps(ran.events) + ran.err + moving.journal() + "".join(_log(moving))
    told += moving.sh("box1", "cat /etc/fleetctl/proxy/haproxy.cfg; tr '\\0' ' ' < /proc/$(pidof -s haproxy)/cmdline")
    assert "sk-bridge" not in told
    assert moving.sh("box1", "stat -c '%a %U' /etc/fleetctl/proxy/bridge-key").strip() == "600 root"

    wrong = {**right, "BRIDGE_KEY": "sk-bridge-wrong"}
    applied = moving.run("apply", "--yes", text=colleague, env=wrong)
    assert applied.rc == 0 and not any("engine" in step for step in applied.steps()), applied
    ran, marks = _move_under_load(moving, "split", colleague, wrong)
    assert ran.rc == 0, ran
    assert marks.keys() == {None}
    assert "fails (401)" in moving.sh("box1", f"journalctl -o cat -u {PROXY}")
    moving.cutover("split")
    assert moving.sh("box1", "ls /etc/fleetctl/proxy/bridge-key 2>/dev/null") == ""
    assert moving.answers()


def _log(moving: Moving) -> list[str]:
    return moving.sh("box1", f"journalctl -o cat -u {PROXY}").splitlines()


def _move_under_load(moving: Moving, to: str, text: str, env: dict[str, str]) -> tuple[Ran, Counter[str | None]]:
    """A move while clients ask, streamed and not; every answer is whole. And the answers by the mark that they had."""
    marks: Counter[str | None] = Counter()
    over = threading.Event()
    headers = {"Authorization": f"Bearer {env['AGENTS_KEY']}"}
    question = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}

    def customer(stream: bool) -> None:
        asked = {**question, "stream": stream}
        with httpx.Client(trust_env=False, timeout=120, headers=headers) as http:
            while not over.wait(0.1):
                answer = http.post(f"{moving.proxy}/v1/chat/completions", json=asked)
                assert fault(answer.status_code, answer.content, streamed=stream) is None
                marks[answer.headers.get(MARK)] += 1

    with ThreadPoolExecutor(4) as pool:
        customers = [pool.submit(customer, number % 2 == 1) for number in range(4)]
        try:
            ran = moving.run("cutover", "--to", to, "--yes", text=text, env=env)
        finally:
            over.set()
        for one in customers:
            one.result()
    gap = next((event["gap"] for event in ran.events if event["type"] == "move" and event.get("gap")), None)
    print(f"\nto {to}, gap {gap} s: answers by the mark that they had: {dict(marks)}")
    return ran, marks
