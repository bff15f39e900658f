"""Real vLLM in a pool: its engine listens on a Unix socket, is gated there, and answers through the queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from test_real_loras import LONGEST_START, fleetctl
from test_real_moves import BOXES, PATIENCE, assert_serves, failures, move, status, traffic_to

from fleetctl.lab.demo import client_address
from fleetctl.lab.lab import Lab
from fleetctl.lab.tinylora import make_tiny_lora

ENGINE = "fleetctl-pool-tiny.service"
SOCKET = "/run/fleetctl/pool-tiny/engine.sock"


@contextmanager
def with_pool(lab: Lab) -> Iterator[None]:
    """The file with a pool of the lab's model on both boxes; afterwards it is as it was."""
    written = lab.fleet_file.read_text()
    document = yaml.safe_load(written)
    document["models"]["tiny"] |= {"loras": {"max_loras": 2, "max_lora_rank": 16}, "load_limit": LONGEST_START}
    document["layouts"]["pool"] = {"tiny": {"pool": list(BOXES), "pin": True, "memory": "3GiB", "concurrency": 4}}
    passwords = {role: {"env": f"NATS_{role.upper()}"} for role in ("gateway", "worker", "operator")}
    document["pool"] = {"nats": {"boxes": ["box1"], "store": "256MiB", "passwords": passwords}}
    lab.fleet_file.write_text(yaml.safe_dump(document, sort_keys=False))
    try:
        yield
    finally:
        lab.fleet_file.write_text(written)


def streamed(lab: Lab, model: str) -> str:
    """Text of a streamed completion through the proxy."""
    url, _ = client_address(lab.fleet_file)
    asked = {"model": model, "prompt": "Say hello.", "max_tokens": 8, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=PATIENCE, trust_env=False) as answer:
        assert answer.status_code == 200, answer.read()
        said = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert said[-1] == "[DONE]"
    return "".join(json.loads(one)["choices"][0]["text"] for one in said[:-1] if json.loads(one)["choices"])


def test_a_pool_of_real_engines_answers_streams_takes_adapters_and_goes_again(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ("gateway", "worker", "operator"):
        monkeypatch.setenv(f"NATS_{role.upper()}", f"a-word-of-the-{role}")
    with with_pool(lab):
        move(lab, "replicas", "cutover", "--to", "replicas")
        with traffic_to(lab) as traffic:
            move(lab, "pool", "cutover", "--to", "pool")
        assert failures(traffic) == []
        for box in BOXES:
            assert lab.exec(box, ["systemctl", "is-active", ENGINE]).stdout.strip() == "active"
            assert lab.exec(box, ["stat", "-c", "%F", SOCKET]).stdout.strip() == "socket"
        assert_serves(lab, "pool")
        plain = streamed(lab, "tiny")
        assert plain
        fleetctl(lab, "lora", "push", str(make_tiny_lora(tmp_path / "one", seed=1)), "--yes")
        assert streamed(lab, "one") not in ("", plain)
        fleetctl(lab, "lora", "remove", "one", "--yes")
        with traffic_to(lab) as traffic:
            move(lab, "replicas", "rollback")
        assert failures(traffic) == []
        assert_serves(lab, "replicas")
        assert status(lab)["problems"] == []
