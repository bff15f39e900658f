"""Suites of others: how their programs are called, and what becomes of their results. Recorded from the real ones."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from standin_process import until

from fleetctl.engine.client import EngineError
from fleetctl.errors import SpecError
from fleetctl.evals.asking import Endpoint
from fleetctl.evals.loopback import loopback
from fleetctl.evals.outside import program_of, run_outside
from fleetctl.evals.score import Score

BENCH: dict[str, Any] = {
    "schema_version": "1",
    "tool_eval_bench_version": "3.0.0",
    "final_score": 38,
    "scores": {
        "final_score": 38,
        "total_points": 3,
        "max_points": 8,
        "category_scores": [
            {"category": "A", "label": "Tool Selection", "earned": 2, "max": 4, "percent": 50},
            {"category": "B", "label": "Parameter Precision", "earned": 1, "max": 4, "percent": 25},
            {"category": "P", "label": "Hard Mode", "earned": 0, "max": 0, "percent": 0},
        ],
        "scenario_results": [
            {"scenario_id": "TC-01", "status": "pass", "points": 2, "summary": "Good.", "tool_calls_made": [],
             "expected_behavior": "Use get_weather."},
            {"scenario_id": "TC-02", "status": "fail", "points": 0, "summary": "Wrong tool.",
             "tool_calls_made": ["get_weather(location=north)"], "expected_behavior": "Use web_search."},
        ],
    },
}  # fmt: skip
INSPECT: dict[str, Any] = {
    "status": "success",
    "results": {
        "scores": [
            {"name": "includes", "metrics": {"accuracy": {"value": 0.75}, "stderr": {"value": 0.1}}},
            {"name": "judged", "metrics": {"mean": {"value": 0.5}}},
        ],
        "headline": {"scorer": "includes", "score": "includes", "metric": "accuracy"},
    },
    "samples": [
        {"id": 1, "target": "4", "scores": {"includes": {"value": "C", "answer": "4"}}},
        {"id": 2, "target": "the", "scores": {"includes": {"value": "I", "answer": "a"}}},
    ],
}
KEY = "sk-only-in-the-environment"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that stand before all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("TOOL_EVAL_MODEL", "another")
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1")
    (tmp_path / "bin").mkdir()
    return tmp_path


def program(folder: Path, name: str, results: dict[str, Any] | None, ending: str = "") -> None:
    """A program that notes how it was called and writes such results where it is told to."""
    path = folder / "bin" / name
    (folder / "results").write_text(json.dumps(results))
    lines = ["#!/bin/sh", f'printf "%s\\n" "$@" > {folder}/called; env > {folder}/environment; pwd > {folder}/place']
    if results is not None:
        lines += [
            'for word in "$@"; do case "$word" in',
            f'--json-file=*) cp {folder}/results "${{word#*=}}";;',
            f'--log-dir=*) mkdir -p "${{word#*=}}" && cp {folder}/results "${{word#*=}}/log.json";;',
            "esac; done",
        ]
    path.write_text("\n".join([*lines, ending]) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def asked(suite: str, within: float = 20.0, endpoint: Endpoint | None = None) -> Score:
    there = endpoint or Endpoint("http://10.0.0.7:8000", "qwen", api_key=KEY)
    return run_outside(suite, there, concurrency=6, within=within, seed=1, say=lambda text: None)


def test_tool_eval_bench_is_told_whom_to_ask_and_its_points_become_a_score(programs: Path) -> None:
    program(programs, "tool-eval-bench", BENCH)
    told = asked("tool-eval-bench")
    assert (told.total, told.categories) == (37.5, {"Tool Selection": 50.0, "Parameter Precision": 25.0})
    (wrong,) = told.failures
    assert (wrong.name, wrong.points, wrong.why) == ("TC-02", 0.0, "Wrong tool. Expected: Use web_search.")
    assert [(call.name, call.arguments) for call in wrong.reply.calls] == [("get_weather", "location=north")]
    called, environment = (programs / "called").read_text(), (programs / "environment").read_text()
    assert {"--base-url=http://10.0.0.7:8000", "--model=qwen", "--parallel=6"} <= set(called.split("\n"))
    assert KEY not in called and f"TOOL_EVAL_API_KEY={KEY}" in environment
    assert "TOOL_EVAL_MODEL" not in environment and "192.0.2.1" not in environment


def test_a_run_that_graded_part_of_the_suite_has_no_score(programs: Path) -> None:
    part = {**BENCH["scores"], "completion_rate": 90.0, "excluded_scenarios": ["TC-45"]}
    program(programs, "tool-eval-bench", {**BENCH, "scores": part})
    with pytest.raises(EngineError, match=r"no score: 90 % of its scenarios were graded; left out: TC-45"):
        asked("tool-eval-bench")


def test_a_task_of_inspect_is_run_beside_its_file_and_its_headline_is_the_score(programs: Path) -> None:
    program(programs, "inspect", INSPECT)
    (programs / "mine").mkdir()
    (programs / "mine/two.py").write_text("")
    told = asked(f"inspect:{programs}/mine/two.py@two")
    assert (told.total, told.categories) == (75.0, {"includes": 75.0, "judged": 50.0})
    assert [(one.name, one.points, one.why) for one in told.outcomes] == [
        ("1", 1.0, ""),
        ("2", 0.0, "scored I; wanted the"),
    ]
    called = (programs / "called").read_text().split("\n")
    assert called[:3] == ["eval", "two.py@two", "--model=openai-api/fleetctl/qwen"]
    assert (programs / "place").read_text().strip() == str(programs / "mine")
    assert f"FLEETCTL_API_KEY={KEY}" in (programs / "environment").read_text()
    asked("inspect:inspect_evals/gsm8k")
    assert (programs / "called").read_text().split("\n")[1] == "inspect_evals/gsm8k"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"status": "error", "error": {"message": "APIConnectionError"}}, "no score: APIConnectionError"),
        ({"results": {"scores": []}}, "the task has no scorer"),
        ({"results": {"scores": [{"name": "x", "metrics": {"mean": {"value": 7}}}]}}, "is not between 0 and 1"),
        ({"results": None}, "no results that can be read"),
    ],
)
def test_a_run_of_inspect_that_failed_says_why(programs: Path, changes: dict[str, Any], why: str) -> None:
    program(programs, "inspect", {**INSPECT, **changes})
    with pytest.raises(EngineError, match=why):
        asked("inspect:x")


def test_what_a_program_says_before_it_fails_is_shown_without_the_key(programs: Path) -> None:
    program(programs, "inspect", None, f"echo no task x, key {KEY}; exit 1")
    with pytest.raises(EngineError, match=re.escape("it wrote no log; it said: no task x, key ***")):
        asked("inspect:x")


def test_a_program_that_takes_too_long_is_ended_with_all_that_it_started(programs: Path) -> None:
    program(programs, "tool-eval-bench", None, f"sleep 60 & echo $! > {programs}/child; wait")
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"did not end in 1\.0 s"):
        asked("tool-eval-bench", within=1.0)
    assert time.monotonic() - began < 30
    until("its child has ended", lambda: not lives((programs / "child").read_text().strip()))


def lives(pid: str) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("suite", "message", "hint"),
    [
        ("tool-eval-bench", "needs the program tool-eval-bench, which is not", "-m pip install tool-eval-bench"),
        ("inspect:x", "needs the program inspect, which is not", "-m pip install inspect-ai openai"),
        ("inspect:", "there is no suite inspect:", "tool-eval-bench and inspect:TASK"),
        ("bench", "there is no suite bench", "there is tools,"),
    ],
)
def test_a_suite_that_is_not_there_is_named_with_the_command(
    suite: str, message: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", f"{tmp_path}/python")
    with pytest.raises(SpecError, match=message) as failed:
        program_of(suite)
    assert hint in str(failed.value.hint)


def test_a_port_of_this_machine_leads_to_a_tunnel_as_long_as_it_is_needed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def answer() -> None:
            for _ in range(2):
                near, _ = listener.accept()
                with near:
                    near.recv(65536)
                    near.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nyo")

        threading.Thread(target=answer, daemon=True).start()
        with loopback(tmp_path / "s") as url:
            assert url.startswith("http://127.0.0.1:")
            assert [httpx.get(url, trust_env=False).text for _ in range(2)] == ["yo", "yo"]
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, trust_env=False)


@pytest.mark.parametrize(
    "changes",
    [{"total_points": float("nan")}, {"max_points": 0}, {"total_points": 9e99}, {"total_points": -1},
     {"category_scores": [3]}, {"scenario_results": {"a": 1}}, {"scenario_results": [{"scenario_id": 1}]}],
)  # fmt: skip
def test_results_that_no_floor_could_hold_are_no_score(programs: Path, changes: dict[str, Any]) -> None:
    program(programs, "tool-eval-bench", {**BENCH, "scores": {**BENCH["scores"], **changes}})
    with pytest.raises(EngineError, match="gave no score"):
        asked("tool-eval-bench")


def test_of_a_program_that_talks_without_end_the_last_words_are_shown(programs: Path) -> None:
    program(programs, "tool-eval-bench", None, "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo the end")
    with pytest.raises(EngineError, match=r"the end$"):
        asked("tool-eval-bench")
