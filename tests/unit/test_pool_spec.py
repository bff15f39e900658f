"""Rules of a pool in fleet.yaml, each told at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.spec.load import parse_fleet
from fleetctl.spec.problems import FleetFileError

TEXT = (Path(__file__).parent / "golden/queue.yaml").read_text()

BROKEN = [
    ("proxy: {box: a}\npool:", "proxy: {box: a}\nguard: {port: 8090}\npool:", "pool", "port 8090 of the gateways"),
    ("    boxes: [a]\n", "    boxes: [a, c]\n", "pool.nats.boxes[1]", "there is no box"),
    ("    boxes: [a]\n", "    boxes: [a, b]\n", "pool.nats.boxes", "NATS runs on one box or on three"),
    ("    boxes: [a]\n", "    boxes: [a, a]\n", "pool.nats.boxes[1]", "a is already in this list"),
    ("    boxes: [a]\n", "    boxes: [a]\n    store: 10\n", "pool.nats.store", "too little for a queue"),
    ("    boxes: [a]\n", "    boxes: [a]\n    program: nats-server\n", "pool.nats.program", "no absolute path"),
    ("    boxes: [a]\n", "    boxes: [a]\n    port: 8091\n", "pool.nats.port", "is that of the workers"),
    ("    boxes: [a]\n", "    boxes: [a]\n    port: 8080\n", "pool.nats.port", "is that of the proxy"),
    ("pool:\n  nats:", "pool:\n  port: 8001\n  nats:", "pool.port", "the engine of small"),
    ("pool:\n  nats:", "pool:\n  port: 65535\n  nats:", "pool.port", "the next port, which does not exist"),
    ("pool:\n  nats:", "pool:\n  gateways: [d]\n  nats:", "pool.gateways[0]", "there is no box"),
    ("      worker: {file: ~/.secrets/nats-worker}\n", "", "pool.nats.passwords", "worker"),
    (
        "{file: ~/.secrets/nats-worker}",
        "hunter2",
        "pool.nats.passwords.worker",
        "a secret does not belong in this file",
    ),
    (
        "pool:\n  nats:",
        "pool:\n  bodies: {url: 'https://s3.lan/b', access_key: {env: A}, secret_key: {env: B}}\n  nats:",
        "pool.bodies.url",
        "where the server is stands under endpoint:",
    ),
    (
        "pool:\n  nats:",
        "pool:\n  bodies: {url: 's3://b', access_key: {env: A}, secret_key: {env: B}}\n  nats:",
        "pool.bodies.url",
        "write like s3://BUCKET/PREFIX",
    ),
    (
        "pool:\n  nats:",
        "pool:\n  bodies: {url: 's3://bodies/p', endpoint: 's3.lan:9000', access_key: {env: A}, secret_key: {env: B}}\n"
        "  nats:",
        "pool.bodies.endpoint",
        "write like https://minio.lan:9000",
    ),
    (
        "pool:\n  nats:",
        "pool:\n  bodies: {url: 's3://bodies/p', access_key: {env: A}, secret_key: AKIA}\n  nats:",
        "pool.bodies.secret_key",
        "a secret does not belong in this file",
    ),
    (", memory: 6GiB", "", "layouts.pool.small", "write like memory: 12GiB"),
    (", memory: 6GiB", ", memory: 6", "layouts.pool.small.memory", "did you mean 6GiB?"),
    (", memory: 6GiB", ", memory: 60GiB", "layouts.pool.small.memory", "48.0 GiB on a; write less, or take a out"),
    ("{gpu_memory_utilization: 0.5}", "{}", "layouts.pool.big.copies.b", "b has a pool too in this layout"),
    ("{copies: [a, b]}", "{copies: [a, b], pin: true}", "layouts.copies.small.pin", "for placements that are pool:"),
    ("{copies: [a, b]}", "{copies: [a, b], pool: [a]}", "layouts.copies.small", "exactly one of copies:, split:"),
    (
        "b: {concurrency: 4,",
        "b: {gpu_memory_utilization: 0.1,",
        "layouts.pool.small.pool.b.gpu",
        "write that beside pool:",
    ),
    ("context: 4096,", "context: 4096, loras: {},", "layouts.pool.small", "a model with loras: cannot be in a pool"),
    ("pin: true", 'pin: "yes"', "layouts.pool.minilm.pin", "true or false"),
    ("pool: [a, b], pin", "pool: [a, c], pin", "layouts.pool.minilm.pool[1]", "there is no box"),
]


@pytest.mark.parametrize(("old", "new", "path", "said"), BROKEN, ids=[f"{case[2]}: {case[3][:30]}" for case in BROKEN])
def test_a_broken_rule_is_told_at_its_place(old: str, new: str, path: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(FleetFileError) as failed:
        parse_fleet(TEXT.replace(old, new, 1), "fleet.yaml")
    told = [line for line in str(failed.value).splitlines() if said in line]
    assert told and path in told[0], str(failed.value)
    assert told[0].split(":")[1].isdigit()


def test_without_the_key_pool_a_pool_is_refused_where_it_stands() -> None:
    with pytest.raises(FleetFileError, match=r"fleet.yaml:\d+:\d+: layouts.pool.minilm: where its queue is"):
        parse_fleet(TEXT[: TEXT.index("pool:\n  nats")], "fleet.yaml")


def test_three_servers_need_a_password_between_them() -> None:
    text = TEXT.replace(
        "  b: {address: 10.0.0.2", "  c: {address: 10.0.0.3, memory: 64GiB, reserve: 1GiB}\n  b: {address: 10.0.0.2"
    )
    with pytest.raises(FleetFileError, match=r"pool.nats.passwords: the three servers of NATS need a password"):
        parse_fleet(text.replace("    boxes: [a]\n", "    boxes: [a, b, c]\n"), "fleet.yaml")


def test_gateways_are_on_the_proxys_boxes_unless_it_says_otherwise() -> None:
    assert parse_fleet(TEXT, "f").gateways == ("a",)
    assert parse_fleet(TEXT.replace("pool:\n  nats:", "pool:\n  gateways: [b]\n  nats:"), "f").gateways == ("b",)
