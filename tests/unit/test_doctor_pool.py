"""What doctor finds about a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planned import boxes_in, layout, office
from pooled import MINILM, PASSWORDS, SMALL, all_in_pool, pooled

from fleetctl.doctor import processes
from fleetctl.doctor.pool import PoolTold, Store, ask, find
from fleetctl.doctor.scene import Scene
from fleetctl.facts.types import ProcessFacts
from fleetctl.onbox.examine_pool import store_of

GIB = 2**30
FILE: dict[str, Any] = {
    "models__minilm": MINILM,
    "models__small": SMALL,
    "layouts__pool": {
        "minilm": {"pool": ["a", "b"], "pin": True, "concurrency": 8},
        "small": {"pool": ["a", "b"], "memory": "12GiB"},
    },
    "pool": {"nats": {"boxes": ["a"], "passwords": PASSWORDS}},
    "firewall": {},
}
LIVE = pooled(firewall={})


def scene(*, moving: bool = False, **changes: Any) -> Scene:
    facts = {"a": {"moving": "20261201T000000Z-abcd"}} if moving else {}
    return Scene(office(**{**FILE, **changes}), (LIVE,), LIVE, all_in_pool(boxes_in(LIVE, 1, **facts), LIVE), {})


def engine(model: str, **changes: Any) -> dict[str, Any]:
    known = {"unit": f"fleetctl-pool-{model}.service", "phase": "loaded", "pinned": model == "minilm", "wish": None}
    return {**known, "failures": 0, "deaths": 0, "reason": "", **changes}


def told(store: Store | None = None, small: dict[str, Any] | None = None, **changes: Any) -> PoolTold:
    engines = {"minilm": engine("minilm"), "small": engine("small", **(small or {}))}
    state = {"connected": True, "draining": False, "counts": {"dead": 0, "finished": 9}}
    models = {name: {"engines": [one]} for name, one in engines.items()}
    return PoolTold(worker=True, state={**state, "models": models, **changes}, store=store)


WELL = told()


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (WELL, WELL, []),
        (WELL, PoolTold(worker=True, why="it does not answer at port 8091"), ["Q01 b: the worker of b is not at work"]),
        (told(connected=False), WELL, ["Q01 a: the worker of a is not at work: it has no connection to NATS"]),
        (told(draining=True), WELL, ["Q01 a: the worker of a is not at work: it is being stopped"]),
        (
            told(small={"phase": "failed", "failures": 3, "reason": "it was not ready"}),
            WELL,
            ["Q02 a: small could not be loaded on a, 3 times in a row"],
        ),
        (told(counts={"dead": 2}), WELL, ["Q03 a: a has given up 2 requests"]),
        (told(small={"wish": "evict"}), WELL, []),
        (told(small={"wish": "evict"}), told(small={"wish": "evict"}), ["Q04 None: small was evicted on every box"]),
        (told(small={"pinned": True}), WELL, ["Q04 a: small is pinned on a, and not in fleet.yaml"]),
        (told(store=Store(used=9 * GIB, free=90 * GIB)), WELL, ["Q05 a: the queue on a has little room: 9.0 GiB of"]),
        (told(store=Store(used=GIB, free=2 * GIB)), WELL, ["Q05 a: the queue on a has little room: its disk has 2.0"]),
        (told(store=Store(used=GIB, free=20 * GIB)), WELL, []),
    ],
)
def test_what_is_wrong_with_workers_models_and_the_queue_is_found(a: PoolTold, b: PoolTold, says: list[str]) -> None:
    found = [f"{one.code} {one.box}: {one.says}" for one in find(scene(), {"a": a, "b": b})]
    assert len(found) == len(says)
    for line, wanted in zip(found, says, strict=True):
        assert line.startswith(wanted)


def test_a_disk_that_is_smaller_than_the_store_is_not_mended_by_a_larger_store() -> None:
    (one,) = find(scene(), {"a": told(store=Store(used=GIB, free=GIB // 2)), "b": WELL})
    assert one.says.endswith("its disk has 512 MiB left")
    assert one.fix == "make room on that disk, or write store: 1536MiB, or less"


def test_a_pool_without_a_firewall_is_said_once() -> None:
    keys: dict[str, Any] = {"proxy__api_keys": {"app": {"env": "KEY"}}}
    (one,) = find(scene(firewall=None, **keys), {"a": WELL, "b": WELL})
    assert one.code == "Q06" and "without TLS" in one.says and "ask for no key" in one.says


def test_nothing_is_judged_while_a_move_goes_on_and_boxes_outside_the_pool_are_not_asked() -> None:
    assert list(find(scene(moving=True), {"a": PoolTold(worker=True), "b": WELL})) == []
    assert ask(scene(), "a") == {} and ask(scene(), "b") == {}
    other = layout("replicas")
    assert ask(Scene(office(), (other,), other, boxes_in(other), {}), "b") is None


def test_the_size_of_the_store_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "jetstream").mkdir()
    (tmp_path / "jetstream" / "1.blk").write_bytes(b"x" * 100_000)
    found = store_of(str(tmp_path))
    assert found is not None and 100_000 <= found["used"] < 300_000 and found["free"] > 0
    assert store_of(str(tmp_path / "none")) is None


def test_a_port_of_the_pool_that_another_process_has_is_found() -> None:
    seen = scene()
    mine = ProcessFacts(pid=1, comm="nats-server", unit="fleetctl-nats.service")
    stranger = ProcessFacts(pid=4711, comm="python3", unit="other.service")
    ports = {"ports": {4222: mine, 8090: stranger}}
    facts = {**seen.observed, "a": seen.observed["a"].model_copy(update=ports)}
    found = processes.find(Scene(seen.fleet, seen.releases, seen.live, facts, {}), {"a": processes.ProcessesTold()})
    assert [one.says for one in found] == [
        "port 8090 of a, for the gateway, belongs to python3 (pid 4711, other.service)"
    ]


def test_an_engine_that_somebody_started_on_a_box_of_the_pool_is_found() -> None:
    stranger = processes.EngineProcess(pid=4711, comm="vllm", parent=1, program="vllm")
    (found,) = processes.find(scene(), {"b": processes.ProcessesTold(processes=(stranger,))})
    assert (found.code, found.box) == ("P03", "b")
