"""The starter that `fleetctl init` writes is a valid fleet.yaml, whatever was found on the boxes."""

from typing import Any

import pytest

from fleetctl.cli.starter import starter_text
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.starter import starter

GIB = 1024**3


def survey(name: str, last: int, **more: Any) -> dict[str, Any]:
    return {
        "hostname": name,
        "memory": 128 * GIB,
        "others": 3 * GIB,
        "addresses": [
            {"interface": "eth0", "address": f"192.168.1.{last}", "prefix": 24, "default": True},
            {"interface": "enp1s0f0np0", "address": f"10.0.0.{last}", "prefix": 30, "default": False},
        ],
        "venvs": ["/opt/vllm"],
        "models": [
            {"path": "/models/Qwen3.6-35B", "size": 71 * GIB, "context": 262144, "architecture": "Qwen3Next"},
            {"path": "/models/small", "size": 2 * GIB, "context": None, "architecture": ""},
        ],
        "units": [],
        "haproxy": True,
        **more,
    }


def written(surveys: dict[str, dict[str, Any]]) -> str:
    return starter_text(starter(surveys))


def test_two_like_boxes_give_a_split_and_replicas_with_the_direct_link_and_the_largest_common_model() -> None:
    text = written({"ops@spark1": survey("spark1", 1), "192.168.1.2": survey("spark2", 2)})
    fleet = parse_fleet(text, "fleet.yaml")
    assert list(fleet.layouts) == ["split", "replicas"]
    assert fleet.boxes["spark1"].link == "10.0.0.1"
    assert fleet.boxes["spark1"].interface == "enp1s0f0np0"
    assert fleet.boxes["spark1"].ssh.user == "ops"
    assert fleet.boxes["spark1"].ssh.host == "spark1"
    assert fleet.boxes["spark2"].ssh.host is None, "an address that is the box's own needs no ssh host"
    assert fleet.boxes["spark1"].reserve == 7 * GIB, "what others hold today, and room to grow"
    assert fleet.models["qwen3-6-35b"].weights == "/models/Qwen3.6-35B"
    assert fleet.models["qwen3-6-35b"].context == 262144
    assert "/models/small" in text, "other models are named in a comment"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param({"models": [], "venvs": []}, id="no model and no environment"),
        pytest.param({"addresses": []}, id="no address told"),
        pytest.param({"haproxy": False}, id="no HAProxy"),
        pytest.param({"hostname": "GB10_Box.office.example"}, id="a host name that is no valid name"),
    ],
)
def test_whatever_is_missing_the_file_still_loads(found: dict[str, Any]) -> None:
    fleet = parse_fleet(written({"a.example": survey("a", 1, **found)}), "fleet.yaml")
    assert list(fleet.layouts) == ["replicas"], "one box has no split"


def test_boxes_with_the_same_host_name_get_different_names() -> None:
    text = written({"10.1.1.1": survey("spark", 1), "10.1.1.2": survey("spark", 2)})
    assert list(parse_fleet(text, "fleet.yaml").boxes) == ["spark-1", "spark-2"]


def test_units_that_run_an_engine_today_are_listed_as_superseded_with_their_boxes() -> None:
    old = [{"unit": "old-vllm.service", "active": "active"}]
    watchdog = [*old, {"unit": "vllm-watchdog.timer", "active": "active"}]
    fleet = parse_fleet(written({"a": survey("a", 1, units=watchdog), "b": survey("b", 2, units=old)}), "fleet.yaml")
    assert fleet.superseded_on("a") == ["old-vllm.service", "vllm-watchdog.timer"]
    assert fleet.superseded_on("b") == ["old-vllm.service"]
