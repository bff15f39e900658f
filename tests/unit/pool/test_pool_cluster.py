"""Three boxes with NATS, configured as they are rendered: whichever is lost, nothing that was accepted is."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections import Counter
from pathlib import Path

from gateways import Answer, GatewayProcess, gateway
from nats.js import JetStreamContext
from natsrendered import again, cluster, launch
from natsserver import NatsServer, needs_nats
from poolworker import config, engine, working
from standin_engine import embedding

from fleetctl.pool import nats, wire

pytestmark = needs_nats
CLIENTS = 6


def access(servers: list[NatsServer], role: str) -> wire.NatsAccess:
    """How a program with a role reaches them."""
    password = servers[0].folder / role
    return wire.NatsAccess(tuple(server.url for server in servers), role, str(password), replicas=3)


def test_requests_go_on_while_servers_of_three_are_killed_one_after_the_other(tmp_path: Path) -> None:
    async def story(servers: list[NatsServer]) -> None:
        client = await nats.connect(access(servers, "gateway"), "test", wait=20)
        js = client.jetstream(timeout=0.5)
        await again(lambda: nats.make_streams(js, 3, 100))
        one = engine(tmp_path, "minilm", pinned=True, concurrency=4)
        with gateway(tmp_path, access(servers, "gateway")) as front:
            async with working(config(access(servers, "worker"), one)):
                over = threading.Event()
                load = [asyncio.create_task(asyncio.to_thread(asks, front, number, over)) for number in range(CLIENTS)]
                try:
                    await asyncio.sleep(0.5)
                    leads = await leader(js, servers)
                    leads.stop(signal.SIGKILL)
                    await again(lambda: led_anew(js, servers))
                    launch(leads)
                    await again(lambda: all_are_there(js))
                    (await leader(js, servers)).stop(signal.SIGKILL)
                    await again(lambda: led_anew(js, servers))
                    await asyncio.sleep(0.5)
                finally:
                    over.set()
                answers = [answer for found in await asyncio.gather(*load) for answer in found]
                assert Counter(answer.status for _, answer in answers) == {200: len(answers)}
                for text, answer in answers:
                    assert json.loads(answer.body)["data"][0]["embedding"] == embedding(text), text
                await again(lambda: nothing_waits(js))
        await client.close()

    with cluster(tmp_path) as servers:
        asyncio.run(story(servers))


async def leader(js: JetStreamContext, servers: list[NatsServer]) -> NatsServer:
    """The server that decides what is in the queue."""
    told = (await js.stream_info(wire.WORK)).cluster
    assert told and told.leader
    return servers["abc".index(told.leader)]


async def led_anew(js: JetStreamContext, servers: list[NatsServer]) -> None:
    """Those that are left have another leader."""
    assert (await leader(js, servers)).process is not None


async def all_are_there(js: JetStreamContext) -> None:
    """Each server has all that waits."""
    told = (await js.stream_info(wire.WORK)).cluster
    assert told and told.replicas and all(one.current and not one.offline for one in told.replicas)


async def nothing_waits(js: JetStreamContext) -> None:
    """Every request was taken out of the queue."""
    assert (await js.stream_info(wire.WORK)).state.messages == 0


def asks(front: GatewayProcess, client: int, over: threading.Event) -> list[tuple[str, Answer]]:
    """One client's requests, one after the other, and their answers."""
    found: list[tuple[str, Answer]] = []
    while not over.is_set():
        text = f"slow 50 {client} {len(found)}"
        found.append((text, front.post("/v1/embeddings", {"model": "minilm", "input": text})))
    return found
