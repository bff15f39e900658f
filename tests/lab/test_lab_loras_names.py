"""With several models behind one proxy an adapter is asked for by its own name, and nothing is reloaded for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from loras import BASE, Loras
from moving import PROXY, Moving


@pytest.fixture
def two(moving: Moving, tmp_path: Path) -> Iterator[Loras]:
    """Two models on both boxes; only the second takes adapters."""
    fleet = Loras(moving, tmp_path)

    def change(document: dict[str, Any]) -> None:
        plain = document["models"]["standin"]
        document["models"]["small"] = {**plain, "weights": BASE, "served_as": ["small", "org/small-1.0"], "loras": {}}
        for name in ("standin", "small"):
            document["models"][name]["weights_size"] = "256MiB"
        copies = {"box1": {"gpu_memory_utilization": 0.3}, "box2": {"gpu_memory_utilization": 0.3}}
        document["layouts"]["pairs"] = {"standin": {"copies": copies}, "small": {"copies": copies}}

    fleet.text = moving.changed(change)
    fleet.be_in("pairs")
    fleet.remove_all()
    yield fleet
    fleet.remove_all()
    moving.be_in("replicas")


def listed(fleet: Loras) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{fleet.moving.proxy}/v1/models", timeout=60, trust_env=False).json()[
        "data"
    ]
    return found


def test_its_name_leads_to_its_model_at_once_and_after_a_restart_of_the_proxy(two: Loras) -> None:
    moving = two.moving
    static = [card["id"] for card in listed(two)]
    assert static == ["standin", "small", "org/small-1.0"]
    began = moving.sh("box1", f"systemctl show -P ExecMainStartTimestamp -P NRestarts {PROXY}; pgrep -x haproxy | sort")
    assert two.ask("summaries").status_code == 404
    with moving.steady_traffic() as traffic:
        two.push(two.make("summaries"), two.make("letters", seed=2), words=("--model", "small"))
        cards = {card["id"]: card.get("parent") for card in listed(two)}
        assert cards == {**dict.fromkeys(static), "letters": "small", "summaries": "small"}
        assert all(two.answers(name) for name in ("summaries", "letters", "small", "standin") for _ in range(3))
    assert traffic.failed == []
    same = moving.sh("box1", f"systemctl show -P ExecMainStartTimestamp -P NRestarts {PROXY}; pgrep -x haproxy | sort")
    assert same == began, "no reload"
    for action in ("reload", "restart"):
        moving.sh("box1", f"systemctl {action} {PROXY}")
        assert [card["id"] for card in listed(two)] == [*static, "letters", "summaries"], action
        assert two.answers("summaries"), action
    ran = two.run("lora", "remove", "summaries", "--yes")
    assert ran.rc == 0, ran
    assert [card["id"] for card in listed(two)] == [*static, "letters"]
    assert two.ask("summaries").status_code == 404 and two.answers("letters")


def test_a_name_of_another_model_or_adapter_is_refused(two: Loras) -> None:
    two.push(two.make("letters"), words=("--model", "small"))
    for name in ("standin", "small"):
        ran = two.run("lora", "push", str(two.make("x")), "--name", name, "--model", "small", "--yes")
        assert (ran.rc, "clients could not tell them apart" in ran.said) == (5, True), ran
    ran = two.run("lora", "push", str(two.make("x")), "--model", "standin", "--yes")
    assert (ran.rc, "small can" in ran.said) == (2, True), ran
    assert two.names() == ["letters"]
