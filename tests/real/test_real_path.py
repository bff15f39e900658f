"""The whole path of switching on evidence with real vLLM: gates, cutover, bench, tune, eval, rollback.

The model is random and never comes to an end: every answer is wrong. What counts is that every question is asked and
answered, that what is wrong is told by kind, and that nobody's request fails meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml
from test_real_moves import CALM, PATIENCE, Table, assert_serves, failures, figures, in_split, move, row, traffic_to

from fleetctl.lab.demo import COMMAND
from fleetctl.lab.lab import Lab

TASKS = """\
{"id": "hello", "prompt": "Say hello.", "score": "regex", "expected": "hello", "max_tokens": 8}
{"id": "capital", "prompt": "What is the capital of France?", "score": "exact", "expected": "Paris", "max_tokens": 8}
"""
GATES: dict[str, Any] = {
    "tools": {"at_least": 0, "max_tokens": 16, "within": "5m"},
    "long_context": {"find": False, "max_tokens": 16, "within": "5m"},
}
# The names of the tools are in the prompt, and no more of them: the model has room for 1,024 tokens.
TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool['function']['name'][:8] }} {% endfor %}"
    "{% for message in messages %}<|turn|>{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant {% endif %}"
)
ARGUMENTS = ["--enable-auto-tool-choice", "--tool-call-parser=hermes", f"--chat-template={TEMPLATE}"]
MIX = {"short": {"prompt": {"median": 40, "mean": 50, "most": 200}, "answer": {"median": 8, "mean": 10, "most": 24}}}


def told(lab: Lab, *words: str) -> list[dict[str, Any]]:
    """The events of a command that has to succeed."""
    command = [*COMMAND, *words, "--fleet", str(lab.fleet_file), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def with_gates(text: str, tasks: Path) -> str:
    """The lab's fleet.yaml with tools and gates."""
    document = yaml.safe_load(text)
    document["models"]["tiny"]["arguments"] += ARGUMENTS
    document["gates"] = {**GATES, "evaluations": [{"file": str(tasks), "at_least": 0, "within": "5m"}]}
    return yaml.safe_dump(document, sort_keys=False)


def test_a_fleet_is_measured_tested_and_switched_with_every_request_answered(
    lab: Lab, table: Table, tmp_path: Path
) -> None:
    in_split(lab)
    written = lab.fleet_file.read_text()
    tasks, mix = tmp_path / "tasks.jsonl", tmp_path / "short.yaml"
    tasks.write_text(TASKS)
    mix.write_text(yaml.safe_dump(MIX))
    lab.fleet_file.write_text(with_gates(written, tasks))
    try:
        with traffic_to(lab) as there:
            time.sleep(CALM)
            done = move(lab, "replicas", "cutover", "--to", "replicas")
            time.sleep(CALM)
        table.append(row("to replicas, gates", done, figures(done, there.requests(), there.requests())))
        assert failures(there) == []
        for passed in done.results("gate"):
            tools, evaluation = passed["scores"].values()
            assert (len(tools["categories"]), 0 <= tools["score"] <= 100) == (12, True)
            assert evaluation["score"] == 0 and passed["long_context"]["tokens"] > 500

        tools_told = next(
            event for event in told(lab, "eval", "tools", "--max-tokens", "16") if event["type"] == "score"
        )
        assert all(failure["why"] for failure in tools_told["failures"])
        refused = [one for one in tools_told["failures"] if one["why"].startswith(("status", "not answered"))]
        assert len(refused) < len(tools_told["failures"]), refused
        model = next(event for event in told(lab, "eval", str(tasks)) if event["type"] == "model")
        assert [one["why"] for one in model["wrong"]] == 2 * ["cut off after 8 tokens"], model

        load = [
            "bench",
            "replicas/tiny@box1",
            "--mix",
            str(mix),
            "-c",
            "4",
            "--duration",
            "5s",
            "--warm-up",
            "1s",
            "--yes",
        ]
        bench = next(event for event in told(lab, *load) if event["type"] == "bench")
        assert bench["answered"] > 0 and bench["errors"] == {}, bench
        knee = [
            "tune",
            "replicas/tiny@box1",
            "--mix",
            str(mix),
            "--most",
            "4",
            "--probes",
            "4",
            "--duration",
            "4s",
            "--yes",
        ]
        tuned = next(event for event in told(lab, *knee) if event["type"] == "tuned")
        assert 1 <= tuned["answer"]["concurrency"] <= 4, tuned

        with traffic_to(lab) as back:
            time.sleep(CALM)
            done = move(lab, "split", "rollback")
            time.sleep(CALM)
        table.append(row("rollback", done, figures(done, back.requests(), back.requests())))
        assert failures(back) == []
        changes = [event for event in told(lab, "history") if event["type"] == "change"]
        scored = next(change["scores"] for change in changes if change["scores"])
        assert {engine: ", tasks.jsonl 0" in line for engine, line in scored.items()} == {
            f"replicas/tiny@{box}": True for box in ("box1", "box2")
        }
    finally:
        lab.fleet_file.write_text(written)
    assert_serves(lab, "split")
