"""What doctor finds about LoRA adapters."""

from __future__ import annotations

from typing import Any

import pytest
from planned import boxes_in, layout, office

from fleetctl.doctor.adapters import ask, find
from fleetctl.doctor.scene import Scene
from fleetctl.facts.adapters import LoadedTold

FILES = {"adapter_config.json": [10, "0" * 64], "adapter_model.safetensors": [20, "1" * 64]}
TAKES: dict[str, Any] = {"models__qwen__loras": {"max_lora_rank": 16}}
LIVE = layout("replicas", **TAKES)
UNIT = "fleetctl-replicas-qwen.service"


def kept(serial: int, broken: dict[str, str] | None = None, **ranks: int) -> dict[str, Any]:
    entries = {name: {"digest": "0" * 16, "files": FILES, "rank": rank} for name, rank in ranks.items()}
    return {"adapters": {"serial": serial, "adapters": {"qwen": entries} if ranks else {}, "broken": broken or {}}}


def scene(a: dict[str, Any], b: dict[str, Any], **changes: Any) -> Scene:
    return Scene(office(**{**TAKES, **changes}), (LIVE,), LIVE, boxes_in(LIVE, 1, a=a, b=b), {})


def told(*names: str, changed: dict[str, str] | None = None) -> LoadedTold:
    return LoadedTold(loaded={UNIT: {name: f"/x/{name}" for name in names}}, changed=changed or {})


ALL = kept(2, x=8, y=16)


@pytest.mark.parametrize(
    ("seen", "a", "b", "says"),
    [
        (scene(ALL, ALL), told("x", "y"), told("x", "y"), []),
        (scene(ALL, ALL), told("x", "y"), told("x"), ["A01 b: replicas/qwen@b is without y"]),
        (scene(ALL, ALL), told("x", "y"), LoadedTold(loaded={UNIT: None}), []),
        (scene(ALL, kept(0)), told("x", "y"), LoadedTold(), ["A02 b: b: it has not heard of the last change"]),
        (scene(ALL, kept(2, {"qwen/x": "cut"}, x=8, y=16)), told("x", "y"), told("x", "y"), ["A02 b: b: qwen/x: cut"]),
        (
            scene(ALL, ALL),
            told("x", "y", changed={"qwen/x": "adapter_model.safetensors"}),
            told("x", "y"),
            ["A02 a: a: qwen/x: adapter_model.safetensors is not what was sent"],
        ),
        (
            scene(ALL, ALL, models__qwen__loras={"max_lora_rank": 8}),
            told("x", "y"),
            told("x", "y"),
            ["A03 None: y cannot be used: its rank is 16, and qwen takes 8"],
        ),
        (
            scene(ALL, ALL, models__qwen__served_as=["x"]),
            told("x", "y"),
            told("x", "y"),
            ["A03 None: x cannot be used: its name is model x"],
        ),
    ],
)
def test_what_differs_is_found_and_nothing_else(seen: Scene, a: LoadedTold, b: LoadedTold, says: list[str]) -> None:
    found = [f"{one.code} {one.box}: {one.says}" for one in find(seen, {"a": a, "b": b})]
    assert len(found) == len(says), found
    assert all(one.startswith(wanted) for one, wanted in zip(found, says, strict=True)), found


def test_engines_are_asked_only_where_there_are_adapters() -> None:
    assert ask(scene(kept(0), kept(0)), "a") is None
    wanted = {"engines": [{"unit": UNIT, "address": "10.0.0.1", "port": 8000}]}
    assert ask(scene(ALL, ALL), "a") == wanted
