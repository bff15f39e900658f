"""Gates that failed in a move as `fleetctl history MOVE` prints them, and the scores of one that was done."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from fleetctl.cli.show_gates import show_gate_failures
from fleetctl.cli.show_history import show_history
from fleetctl.facts.history import GateFailure, HistoryFacts
from fleetctl.run.history import changes


def printed(show: Any, *values: Any) -> str:
    out = Console(record=True, width=160, file=open("/dev/null", "w"))  # noqa: SIM115
    show(*values, out)
    return out.export_text()


def test_a_failure_is_shown_with_its_first_exchanges_and_where_the_rest_is() -> None:
    exchange = {
        "request": {
            "method": "POST",
            "path": "/v1/chat/completions",
            "length": 1234,
            "text": '{\n "model": "[red]x"\n}',
        },
        "response": {"status": 200, "seconds": 0.5, "length": 99, "text": "data: \x1b[2J\n" * 30, "wrong": "it broke"},
    }
    silent = {**exchange, "response": {**exchange["response"], "status": 0, "text": "", "wrong": "refused"}}
    failure = GateFailure.model_validate(
        {"engine": "replicas/qwen@a", "gate": "tools", "why": "it scored 7", "path": "/var/x.json", "more": 2,
         "exchanges": [exchange, silent, exchange, exchange]}
    )  # fmt: skip
    told = printed(show_gate_failures, "box1", [failure])
    assert "replicas/qwen@a failed the gate tools: it scored 7" in told
    assert "1. POST /v1/chat/completions (1,234 characters)" in told and '"model": "[red]x"' in told
    assert "answered 200 in 0.5 s (99 bytes): it broke" in told and "not answered in 0.5 s (99 bytes): refused" in told
    assert "… and 18 more lines" in told and "\x1b" not in told and "4. POST" not in told
    assert "all that was kept: /var/x.json on box1; 1 more request is in it, and 2 were too many to be kept" in told


def test_scores_of_several_suites_are_told_by_engine_and_those_of_an_earlier_version_too() -> None:
    move = {"move": "m", "written": 1.0, "operation": "cutover", "result": "done", "to_layout": "replicas"}
    both = {"tools": {"score": 86, "before": 75}, "tasks.jsonl@0123456789ab": {"score": 93.4, "before": 91}}
    rows = [
        {**move, "scores": {"replicas/qwen@a": both, "replicas/qwen@b": both}},
        {**move, "move": "n", "scores": {"replicas/qwen@a": {"score": 75.0, "before": None}}},
    ]
    told = printed(show_history, changes({"a": HistoryFacts.model_validate({"moves": rows})}, 9))
    assert "; tools 75 → 86, tasks.jsonl 91 → 93 (replicas/qwen@a, replicas/qwen@b)" in " ".join(told.split())
    assert "; tools 75 (replicas/qwen@a)" in told
