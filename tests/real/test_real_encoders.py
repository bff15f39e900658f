"""Engines of other kinds, for real: infinity embeds with MiniLM, llama.cpp's server answers, each on a box."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from encoders import install_infinity, llama_server, minilm, tiny_gguf, told

from fleetctl.lab.demo import COMMAND
from fleetctl.lab.lab import DEFAULT_ROOT, Lab
from fleetctl.lab.state import Bind

ROOT = Path("/var/lib/fleetctl-test-encoders")
MODELS = Path("/srv/models")
PROGRAMS = Path("/opt/llama")


@dataclass
class Office:
    """Two boxes, and the command on them."""

    lab: Lab
    folder: Path
    venv: Path

    def text(self, **changes: str) -> str:
        boxes = "".join(
            f"  {box.name}:\n    address: {box.address}\n    memory: 4GiB\n    reserve: 1GiB\n"
            f"    ssh: {{user: {box.user}, key: {box.key}, known_hosts: {box.known_hosts}}}\n"
            for box in self.lab.boxes()
        )
        arguments = changes.get("arguments", "[--engine, torch, --device, cpu, --no-bettertransformer]")
        models = (
            f"  minilm:\n    runtime: infinity\n    weights: {minilm(self.venv)}\n    context: 256\n"
            f"    launch: {{venv: {self.venv}}}\n    arguments: {arguments}\n"
            '    environment: {HF_HUB_OFFLINE: "1"}\n    load_limit: 4m\n'
        )
        layouts = "    minilm: {copies: {box1: {gpu_memory_utilization: 0.4}}, concurrency: 8}\n"
        if llama_server() is not None:
            kind = changes.get("cache", "f16")
            models += (
                f"  tiny:\n    runtime: llama.cpp\n    weights: {MODELS}/tiny.gguf\n    served_as: [tiny, small]\n"
                f"    context: 512\n    kv_cache_dtype: {kind}\n    launch: {{program: {PROGRAMS}/llama-server}}\n"
            )
            layouts += "    tiny: {copies: {box2: {gpu_memory_utilization: 0.4}}, concurrency: 2}\n"
        gates = f"gates: {changes['gates']}\n" if "gates" in changes else ""
        layout = f"layouts:\n  office:\n{layouts}"
        return f"fleet: office\nboxes:\n{boxes}models:\n{models}{layout}proxy: {{box: box1, port: 8080}}\n{gates}"

    def run(self, *words: str, text: str) -> tuple[int, list[dict[str, Any]]]:
        file = self.folder / "fleet.yaml"
        file.write_text(text)
        ran = subprocess.run(
            [*COMMAND, *words, "--fleet", str(file), "--json"], capture_output=True, text=True, timeout=900
        )
        return ran.returncode, told(ran.stdout + ran.stderr)

    @property
    def proxy(self) -> str:
        return f"http://{self.lab.box('box1').address}:8080"


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    venv = install_infinity()
    folder = tmp_path_factory.mktemp("office")
    binds = [Bind(venv, venv)]
    program = llama_server()
    if program is not None:
        models = folder / "models"
        models.mkdir()
        tiny_gguf(venv, models / "tiny.gguf")
        programs = folder / "llama"
        programs.mkdir()
        shutil.copy(program, programs / "llama-server")
        binds += [Bind(models, MODELS), Bind(programs, PROGRAMS)]
    lab = Lab(
        ROOT,
        bridge="fleetencod0",
        subnet="10.77.7.0/24",
        link_subnet="10.78.7.0/24",
        base=Path(os.environ.get("FLEETCTL_LAB_BASE") or DEFAULT_ROOT / "base"),
    )
    lab.down()
    try:
        lab.up(2, lambda line: None, binds=binds)
        yield Office(lab, folder, venv)
    finally:
        lab.down()


def said(events: list[dict[str, Any]]) -> str:
    return "\n".join(f"{event['message']}\n{event['hint'] or ''}" for event in events if event["type"] == "error")


def test_flags_that_the_installed_programs_do_not_know_are_refused(office: Office) -> None:
    text = office.text(arguments="[--engine, troch, --pooling-methode, mean]", cache="fp8")
    status, events = office.run("plan", "--to", "office", text=text)
    assert status == 5, events
    assert "model minilm on box1: infinity 0.0.77 does not take --engine troch; did you mean torch?" in said(events)
    assert "does not know --pooling-methode; did you mean --pooling-method?" in said(events)
    if llama_server() is not None:
        assert "does not take --cache-type-k fp8" in said(events)


def test_vectors_of_another_length_than_wanted_are_not_let_in(office: Office) -> None:
    text = office.text(gates="{embedding: {dimensions: 768}}")
    status, events = office.run("cutover", "--to", "office", "--yes", text=text)
    assert status == 6, events
    assert "failed the gate embedding: its vectors have 384 numbers" in said(events)


def test_they_are_proved_and_answer_through_the_proxy(office: Office) -> None:
    text = office.text(gates="{embedding: {dimensions: 384}}")
    status, events = office.run("cutover", "--to", "office", "--yes", text=text)
    assert status == 0, events
    with httpx.Client(base_url=office.proxy, trust_env=False, timeout=60) as client:
        answer = client.post("/v1/embeddings", json={"model": "minilm", "input": ["hello", "world"]}).json()
        assert [len(one["embedding"]) for one in answer["data"]] == [384, 384]
        if llama_server() is not None:
            asked = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            assert client.post("/v1/chat/completions", json=asked).status_code == 200
            assert {one["id"] for one in client.get("/v1/models").json()["data"]} == {"minilm", "tiny", "small"}
    status, events = office.run("status", text=text)
    seen = next(event for event in events if event["type"] == "status")
    assert (status, seen["problems"]) == (0, []), seen
    assert all(engine["server"] == "up" for engine in seen["engines"])


def test_what_they_count_is_read(office: Office) -> None:
    status, events = office.run("top", "--once", text=office.text())
    assert status == 0, events
    sample = next(event for event in events if event["type"] == "sample")
    counts = {copy["model"]: copy["counts"] for copy in sample["copies"]}
    assert counts["minilm"]["requests"] >= 1
    if llama_server() is not None:
        assert counts["tiny"]["generation_tokens"] >= 4
