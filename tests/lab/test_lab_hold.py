"""The proxy holds requests while no engine is up, and loses none when engines come and go."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Awaitable, Callable

import httpx
import pytest
from holding import Engine, Haproxy, free_port, haproxy

from fleetctl.render.release import Backend, ProxyConfig, Server
from fleetctl.spec.secret import Secret

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="HAProxy starts as root"),
]

ASK = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}]}


def two_layouts(layout: str | None = "split", *, hold: float = 30.0, maxconn: int = 8, **more: object) -> ProxyConfig:
    """One model: an engine `split` on the first port, copies `replicas` on the second and third."""
    ports = [free_port() for _ in range(3)]
    places = [("split", "one"), ("replicas", "one"), ("replicas", "two")]
    servers = tuple(
        Server(name=f"{name}-{box}", layout=name, box=box, address="127.0.0.1", port=port, maxconn=maxconn)
        for (name, box), port in zip(places, ports, strict=True)
    )
    values = {
        "box": "one",
        "address": "127.0.0.1",
        "port": free_port(),
        "layout": layout,
        "hold": hold,
        "drain": 10.0,
        "stream_limit": 60.0,
        "check_interval": 0.5,
        "backends": (Backend(name="qwen", served_as=("qwen",), servers=servers),),
    }
    return ProxyConfig.model_validate({**values, **more})


def engines_of(config: ProxyConfig, **options: float) -> list[Engine]:
    return [Engine(s.port, s.name, **options) for backend in config.backends for s in backend.servers]


def client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(timeout=60, limits=limits, trust_env=False)


async def until(what: Callable[[], bool], why: str) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end, why
        await asyncio.sleep(0.02)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[[], None]:
    """A test that is a coroutine, with the name it has."""

    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def ask(http: httpx.AsyncClient, proxy: Haproxy, **more: object) -> httpx.Response:
    return await http.post(f"{proxy.url}/v1/chat/completions", json={**ASK, **more})


@scenario
async def test_requests_wait_while_no_engine_is_up_and_are_answered_when_one_is_made_ready() -> None:
    config = two_layouts(layout=None)
    engine = engines_of(config)[0]
    with haproxy(config) as proxy:
        async with client() as http:
            asked = [asyncio.create_task(ask(http, proxy)) for _ in range(40)]
            await asyncio.sleep(1)
            assert not any(task.done() for task in asked)
            await engine.start()
            opened = time.monotonic()
            proxy.state("qwen/split-one", "ready")
            answers = await asyncio.gather(*asked)
            print(f"\n40 held requests answered {time.monotonic() - opened:.3f} s after `ready`")
            assert {answer.status_code for answer in answers} == {200}
            assert engine.most <= 8
    await engine.kill()


@scenario
async def test_an_engine_that_comes_up_by_itself_is_found_by_the_checks() -> None:
    config = two_layouts()
    engine = engines_of(config)[0]
    with haproxy(config) as proxy:
        await until(lambda: proxy.status("qwen/split-one") == "DOWN", "the missing engine is not noticed")
        async with client() as http:
            asked = [asyncio.create_task(ask(http, proxy)) for _ in range(20)]
            await asyncio.sleep(0.5)
            await engine.start()
            started = time.monotonic()
            answers = await asyncio.gather(*asked)
            print(f"\n20 held requests answered {time.monotonic() - started:.3f} s after the engine's start")
            assert {answer.status_code for answer in answers} == {200}
    await engine.kill()


@scenario
async def test_what_is_held_too_long_gets_503_with_retry_after_in_the_form_of_the_api() -> None:
    with haproxy(two_layouts(layout=None, hold=0.4)) as proxy:
        async with client() as http:
            start = time.monotonic()
            answer = await ask(http, proxy)
            assert time.monotonic() - start >= 0.4
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "no_engine"


@scenario
async def test_a_drained_engine_finishes_what_it_has_and_new_requests_wait_for_the_next() -> None:
    config = two_layouts()
    old, new, _ = engines_of(config, seconds=1.0)
    await old.start()
    await new.start()
    with haproxy(config) as proxy:
        async with client() as http:
            before = [asyncio.create_task(ask(http, proxy)) for _ in range(4)]
            await until(lambda: old.running == 4, "the requests do not arrive")
            proxy.state("qwen/split-one", "drain")
            after = [asyncio.create_task(ask(http, proxy)) for _ in range(4)]
            answers = await asyncio.gather(*before)
            assert {answer.json()["engine"] for answer in answers} == {"split-one"}
            assert new.answered == 0 and not any(task.done() for task in after)
            proxy.state("qwen/replicas-one", "ready")
            assert {answer.json()["engine"] for answer in await asyncio.gather(*after)} == {"replicas-one"}
    await old.kill()
    await new.kill()


@scenario
async def test_requests_queued_behind_full_engines_survive_a_move_of_all_of_them() -> None:
    config = two_layouts(maxconn=1)
    old, new, _ = engines_of(config, seconds=0.05)
    await old.start()
    await new.start()
    with haproxy(config) as proxy:
        async with client() as http:
            asked = [asyncio.create_task(ask(http, proxy)) for _ in range(30)]
            await until(lambda: old.answered > 3, "the requests do not arrive")
            proxy.state("qwen/split-one", "drain")
            await until(lambda: old.running == 0, "the old engine does not finish")
            proxy.state("qwen/split-one", "maint")
            await asyncio.sleep(0.5)
            proxy.state("qwen/replicas-one", "ready")
            answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {200}
    assert old.most == new.most == 1
    await old.kill()
    await new.kill()


@scenario
async def test_nothing_is_lost_while_an_engine_is_drained_and_made_ready_all_the_time() -> None:
    config = two_layouts(maxconn=4)
    engine = engines_of(config, seconds=0.005)[0]
    await engine.start()
    statuses: dict[int, int] = {}
    with haproxy(config) as proxy:
        over = time.monotonic() + 5

        async def customer(http: httpx.AsyncClient) -> None:
            while time.monotonic() < over:
                answer = await ask(http, proxy)
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

        async def toggle() -> None:
            while time.monotonic() < over:
                for state in ("drain", "ready", "maint", "ready"):
                    await asyncio.to_thread(proxy.state, "qwen/split-one", state)
                    await asyncio.sleep(0.003)

        async with client() as http:
            await asyncio.gather(toggle(), *(customer(http) for _ in range(16)))
        print(f"\nanswers by status while toggling: {statuses}; through the loop: {proxy.log.count('again')}")
    assert set(statuses) == {200}
    await engine.kill()


@scenario
async def test_a_client_that_leaves_while_it_is_held_is_forgotten() -> None:
    config = two_layouts(layout=None)
    engine = engines_of(config)[0]
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            leaving = [asyncio.create_task(ask(http, proxy)) for _ in range(5)]
            staying = asyncio.create_task(ask(http, proxy))
            await asyncio.sleep(0.5)
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            await asyncio.sleep(0.3)
            proxy.state("qwen/split-one", "ready")
            assert (await staying).status_code == 200
            await asyncio.sleep(0.2)
        assert proxy.log.count('"status":200') == 1
    assert engine.answered == 1
    await engine.kill()


@scenario
async def test_an_engine_that_dies_gets_no_more_requests_and_those_not_yet_on_it_are_not_lost() -> None:
    config = two_layouts(layout="replicas", maxconn=2)
    _, one, two = engines_of(config, seconds=0.1)
    await one.start()
    await two.start()
    with haproxy(config) as proxy:
        async with client() as http:
            asked = [asyncio.create_task(ask(http, proxy)) for _ in range(30)]
            await until(lambda: one.answered > 2, "the requests do not arrive")
            await one.kill()
            answers = await asyncio.gather(*asked)
    lost = [answer for answer in answers if answer.status_code != 200]
    assert len(lost) <= 2
    assert all(answer.json()["error"]["code"] == "engine_lost" for answer in lost)
    await two.kill()


@scenario
async def test_tokens_pass_one_by_one() -> None:
    config = two_layouts()
    engine = engines_of(config, seconds=0.2)[0]
    await engine.start()
    times: list[float] = []
    with haproxy(config) as proxy:
        async with client() as http:
            url = f"{proxy.url}/v1/chat/completions"
            async with http.stream("POST", url, json={**ASK, "stream": True}) as answer:
                async for _ in answer.aiter_raw():
                    times.append(time.monotonic())
    assert len(times) >= 5
    assert times[-1] - times[0] >= 0.6
    await engine.kill()


@scenario
async def test_keys_are_asked_for_kept_from_the_engine_and_never_logged() -> None:
    config = two_layouts(api_keys={"agents": Secret(env="KEY")})
    engine = engines_of(config)[0]
    await engine.start()
    with haproxy(config, {"agents": "sk-right-key"}) as proxy:
        async with client() as http:
            for header in ({}, {"Authorization": "Bearer sk-wrong"}, {"Authorization": "Basic c2stcmlnaHQta2V5"}):
                answer = await http.get(f"{proxy.url}/v1/models", headers=header)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
            answer = await http.get(f"{proxy.url}/v1/models", headers={"Authorization": "Bearer sk-right-key"})
            assert answer.status_code == 200
            assert (await http.get(f"{proxy.url}/fleetctl/health")).json() == {"usable": {"qwen": 1}}
        await until(lambda: proxy.log.count('"key":"agents"') == 1, proxy.log)
        assert "sk-" not in proxy.log
        assert "sk-" not in (proxy.folder / "haproxy.cfg").read_text()
    assert len(engine.seen) == 1
    assert "authorization" not in engine.seen[0]
    await engine.kill()


@scenario
async def test_with_several_models_a_request_goes_to_the_one_it_names() -> None:
    ports = [free_port(), free_port()]
    names = [("qwen", ("qwen", 'org/qwen\'s "best"')), ("llama", ("llama",))]
    backends = tuple(
        Backend(
            name=name,
            served_as=served,
            servers=(Server(name="pool-one", layout="pool", box="one", address="127.0.0.1", port=port, maxconn=4),),
        )
        for (name, served), port in zip(names, ports, strict=True)
    )
    config = two_layouts(layout="pool", backends=backends)
    engines = [Engine(port, name) for port, (name, _) in zip(ports, names, strict=True)]
    for engine in engines:
        await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            for model, expected in (("qwen", "qwen"), ('org/qwen\'s "best"', "qwen"), ("llama", "llama")):
                assert (await ask(http, proxy, model=model)).json()["engine"] == expected
            long = [{"role": "user", "content": "x" * 1_000_000}]
            assert (await ask(http, proxy, messages=long, model="llama")).json()["engine"] == "llama"
            for body in ({"model": "gpt-5"}, {"messages": []}):
                answer = await http.post(f"{proxy.url}/v1/chat/completions", json=body)
                assert answer.status_code == 404
                assert answer.json()["error"]["code"] == "model_not_found"
                assert "llama" in answer.json()["error"]["message"]
            listed = (await http.get(f"{proxy.url}/v1/models")).json()["data"]
            assert [model["id"] for model in listed] == ["qwen", 'org/qwen\'s "best"', "llama"]
            huge = {"messages": [{"role": "user", "content": "x" * 1_500_000}], "model": "llama"}
            answer = await http.post(f"{proxy.url}/v1/chat/completions", json=huge)
            assert answer.status_code == 413, answer.text
            assert answer.json()["error"]["code"] == "request_too_large"
    for engine in engines:
        await engine.kill()


@scenario
async def test_the_proxy_tells_which_configuration_runs_and_what_each_server_does() -> None:
    config = two_layouts()
    engine = engines_of(config)[0]
    await engine.start()
    with haproxy(config) as proxy:
        assert f"description: fleetctl {config.fingerprint()}" in proxy.command("show info")
        await until(lambda: proxy.status("qwen/split-one") == "UP", "the engine's health is not seen")
        assert proxy.status("qwen/replicas-one") == "MAINT"
        async with client() as http:
            await ask(http, proxy)
            await until(lambda: '"server":"split-one"' in proxy.log, proxy.log)
        line = next(line for line in proxy.log.splitlines() if '"server":"split-one"' in line)
        assert json.loads(line)["status"] == 200
        proxy.state("qwen/split-one", "drain")
        assert proxy.status("qwen/split-one").startswith("DRAIN")
    await engine.kill()


@scenario
async def test_the_proxy_adds_little_to_a_request() -> None:
    config = two_layouts()
    engine = engines_of(config, seconds=0.0)[0]
    await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            medians = []
            for url in (f"http://127.0.0.1:{engine.port}", proxy.url):
                taken = []
                for _ in range(300):
                    start = time.perf_counter()
                    await http.post(f"{url}/v1/chat/completions", json=ASK)
                    taken.append(time.perf_counter() - start)
                medians.append(sorted(taken)[len(taken) // 2] * 1000)
    print(f"\nmedian direct {medians[0]:.2f} ms, through the proxy {medians[1]:.2f} ms")
    assert medians[1] - medians[0] < 50
    await engine.kill()
