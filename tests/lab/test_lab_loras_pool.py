"""LoRA adapters in a pool: a push reaches loaded engines and those that load later, and gateways know the names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from loras import BASE, put_folder
from moving import BOXES, Moving, Ran, eventually
from test_lab_pool import ENGINE, OTHER, PASSWORDS, WORKER, with_pool

from fleetctl.lab.tinylora import make_tiny_base, make_tiny_lora


def with_adapters(document: dict[str, Any]) -> None:
    """The pool of the other tests, both of whose models take adapters."""
    with_pool(document)
    for name in ("standin", "other"):
        document["models"][name] |= {"weights": BASE, "loras": {"max_loras": 4, "max_lora_rank": 16}}
        document["layouts"]["pool"][name]["memory"] = "1GiB"  # with which vLLM would start too


def ask(moving: Moving, model: str) -> httpx.Response:
    """A completion through the proxy."""
    body = {"model": model, "prompt": "hello", "max_tokens": 4}
    return httpx.post(f"{moving.proxy}/v1/completions", json=body, timeout=120, trust_env=False)


def answers(moving: Moving, name: str) -> bool:
    answer = ask(moving, name)
    return answer.status_code == 200 and answer.json()["model"] == name


def listed(moving: Moving) -> list[list[str]]:
    """The adapters that each gateway has."""
    found = []
    for box in BOXES:
        page = httpx.get(f"http://{moving.lab.box(box).address}:8090/v1/models", timeout=30, trust_env=False)
        found.append([card["id"] for card in page.json()["data"] if card.get("parent")])
    return found


def test_a_push_into_a_pool_is_answered_without_a_restart_and_by_an_engine_that_loads_later(
    moving: Moving, tmp_path: Path
) -> None:
    text = moving.changed(with_adapters)
    base = make_tiny_base(tmp_path / "base")
    for box in BOXES:
        put_folder(moving, box, base, BASE)

    def run(*words: str) -> Ran:
        ran = moving.run(*words, text=text, env=PASSWORDS)
        assert ran.rc == 0, ran
        return ran

    moving.cutover("pool", text=text, env=PASSWORDS)
    units = [(box, unit) for box in BOXES for unit in (ENGINE, WORKER, "fleetctl-gateway.service")]
    pids = [moving.pid(box, unit) for box, unit in units]
    assert moving.unit("box2", OTHER) == ("inactive", "disabled")
    adapters = {name: make_tiny_lora(tmp_path / name, seed=number) for number, name in enumerate(("one", "two", "far"))}
    with moving.steady_traffic() as traffic:
        pushed = run("lora", "push", str(adapters["one"]), str(adapters["two"]), "--model", "standin", "--yes")
        run("lora", "push", str(adapters["far"]), "--model", "other", "--yes")
        assert all(answers(moving, name) for name in ("one", "two") for _ in range(3))
    assert traffic.failed == []
    assert {f"load.load_adapters.pool/standin@{box}" for box in BOXES} <= set(pushed.steps()), pushed
    assert listed(moving) == [["far", "one", "two"]] * 2
    assert [moving.pid(box, unit) for box, unit in units] == pids
    assert moving.unit("box2", OTHER) == ("inactive", "disabled"), "a push loads no model"
    assert answers(moving, "far"), "its engine was loaded for this request, and with it"
    seen = json.dumps(run("lora", "list").events)
    assert all(name in seen for name in adapters), seen

    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"model": name, "prompt": "hi", "max_tokens": 2}) + "\n" for name in adapters))
    out = tmp_path / "out.jsonl"
    run("batch", "run", str(lines), "--out", str(out))
    bodies = [json.loads(line)["response"]["body"] for line in out.read_text().splitlines()]
    assert [body["model"] for body in bodies] == list(adapters)

    moving.sh("box1", f"systemctl restart {ENGINE} fleetctl-gateway.service")
    eventually(lambda: moving.unit("box1", ENGINE)[0] == "active" and listed(moving) == [["far", "one", "two"]] * 2)
    run("lora", "list")  # which fails where an engine is without one
    assert all(answers(moving, "one") for _ in range(4))

    moving.control("box2", lora_fails=True)
    failed = moving.run("lora", "push", str(make_tiny_lora(tmp_path / "bad")), "--model", "standin", "--yes", text=text,
                        env=PASSWORDS)  # fmt: skip
    moving.control("box2")
    assert failed.rc == 6 and "pool/standin@box2" in failed.said, failed
    assert listed(moving) == [["far", "one", "two"]] * 2 and ask(moving, "bad").status_code == 404

    run("lora", "remove", "one", "two", "far", "--yes")
    assert listed(moving) == [[], []] and ask(moving, "one").status_code == 404
    assert moving.status(text)["exit"] == 0
