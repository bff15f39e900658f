"""Real vLLM on two boxes: a new adapter answers seconds after the push, and after restarts; a bad one does nothing."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml
from test_real_moves import BOXES, COPY, Table, move, status

from fleetctl.lab.demo import COMMAND, client_address
from fleetctl.lab.lab import Lab
from fleetctl.lab.tinylora import make_tiny_lora

PROMPT, TOKENS = "Say hello.", 12
LONGEST_START = 1500  # seconds; only ever spent on a machine that others keep busy
WITHIN = 5.0  # seconds from the end of the push to an answer of every copy; what the project promises


@contextmanager
def taking_adapters(lab: Lab) -> Iterator[None]:
    """Two copies of a model that takes adapters; afterwards the file is as it was."""
    written = lab.fleet_file.read_text()
    document = yaml.safe_load(written)
    document["models"]["tiny"]["loras"] = {"max_loras": 2, "max_lora_rank": 16}
    document["models"]["tiny"]["load_limit"] = LONGEST_START
    lab.fleet_file.write_text(yaml.safe_dump(document, sort_keys=False))
    try:
        move(lab, "replicas", "cutover", "--to", "replicas")
        yield
    finally:
        fleetctl(lab, "lora", "remove", "one", "two", "--yes", check=False)
        lab.fleet_file.write_text(written)


def fleetctl(lab: Lab, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command on the lab's fleet."""
    command = [*COMMAND, *words, "--fleet", str(lab.fleet_file), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or ran.returncode == 0, ran.stdout[-3000:] + ran.stderr
    return ran


def says(lab: Lab, box: str, model: str) -> str:
    """What the engine on a box says itself; nothing where it does not know the name."""
    url = f"http://{lab.box(box).address}:8000/v1/completions"
    asked = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
    answer = httpx.post(url, json=asked, timeout=120, trust_env=False)
    return str(answer.json()["choices"][0]["text"]) if answer.status_code == 200 else ""


def through_proxy(lab: Lab, model: str) -> str:
    url, _ = client_address(lab.fleet_file)
    asked = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=120, trust_env=False)
    return str(answer.json()["choices"][0]["text"]) if answer.status_code == 200 else ""


def pids(lab: Lab) -> list[str]:
    return [lab.exec(box, ["systemctl", "show", "-P", "MainPID", COPY]).stdout.strip() for box in BOXES]


def index(lab: Lab) -> list[str]:
    return [lab.exec(box, ["cat", "/var/lib/fleetctl/loras/index.json"]).stdout for box in BOXES]


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until something is so, as long as a start may take."""
    end = time.monotonic() + LONGEST_START
    while not what():
        assert time.monotonic() < end
        time.sleep(1)


def all_have(lab: Lab, names: tuple[str, ...]) -> bool:
    try:
        return all(says(lab, box, name) for box in BOXES for name in names)
    except httpx.HTTPError:
        return False


def test_a_new_adapter_answers_everywhere_soon_and_after_restarts_and_a_bad_one_changes_nothing(
    lab: Lab, table: Table, tmp_path: Path
) -> None:
    with taking_adapters(lab):
        plain, running = says(lab, "box1", "tiny"), pids(lab)
        folder = make_tiny_lora(tmp_path / "one", seed=1)
        began = time.monotonic()
        fleetctl(lab, "lora", "push", str(folder), "--yes")
        pushed = time.monotonic()
        texts = {says(lab, box, "one") for box in BOXES} | {through_proxy(lab, "one")}
        answered = time.monotonic()
        assert len(texts) == 1 and texts != {plain} and texts != {""}, texts
        assert says(lab, "box1", "tiny") == plain
        assert pids(lab) == running
        assert answered - pushed <= WITHIN
        took = f"{pushed - began:.1f}"
        table.append(("lora push", "", "", took, "", f"{answered - pushed:.2f}", "", "", ""))

        kept = index(lab)
        bad = {
            "rank": make_tiny_lora(tmp_path / "rank", rank=32),
            "wide": make_tiny_lora(tmp_path / "wide", hidden=256),
            "modules": make_tiny_lora(tmp_path / "modules", modules=("q_proj", "foo_proj")),
        }
        for name, one in bad.items():
            ran = fleetctl(lab, "lora", "push", str(one), "--yes", check=False)
            assert ran.returncode == 5, (name, ran.stdout[-2000:])
        assert (index(lab), pids(lab)) == (kept, running)

        fleetctl(lab, "lora", "push", str(make_tiny_lora(tmp_path / "two", seed=2)), "--yes")
        for box in BOXES:
            lab.exec(box, ["systemctl", "restart", "--no-block", COPY])
        wait_for(lambda: pids(lab) != running and all_have(lab, ("one", "two")))
        assert {says(lab, box, "one") for box in BOXES} == texts
        assert says(lab, "box1", "two") not in {*texts, plain, ""}
        assert (status(lab)["problems"], fleetctl(lab, "lora", "list").returncode) == ([], 0)

        fleetctl(lab, "lora", "remove", "one", "two", "--yes")
        assert [says(lab, box, "one") for box in BOXES] == ["", ""]
