"""A suite of somebody else on lab boxes: the real tool-eval-bench asks an engine through its tunnel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from moving import Moving

PACKAGE = "tool-eval-bench==3.0.0"
LIMIT = 60.0  # seconds to install it


@pytest.fixture(scope="session")
def program(moving_lab: Any) -> Path:
    """The folder with the program, in a venv that is kept between runs."""
    made = Path(os.environ.get("FLEETCTL_SUITES") or "/var/cache/fleetctl-lab/suites") / PACKAGE
    if not (made / "whole").exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        pip = [str(made / "bin/python"), "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check"]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(made)], check=True, timeout=LIMIT)
            subprocess.run([*pip, PACKAGE], check=True, timeout=LIMIT)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{PACKAGE} cannot be installed: {error}")
        (made / "whole").touch()
    return made / "bin"


def test_tool_eval_bench_scores_an_engine_and_is_a_gate(moving: Moving, program: Path) -> None:
    moving.be_in("split")

    def change(document: dict[str, Any]) -> None:
        document["models"]["standin"]["arguments"] = ["--enable-auto-tool-choice", "--tool-call-parser=hermes"]
        document["gates"] = {"tools": {"suite": "tool-eval-bench", "no_worse_than": "current", "tolerance": 100}}

    text, before = moving.changed(change), moving.picture()
    without = moving.run("cutover", "--to", "replicas", "--yes", text=text)
    assert (without.rc, "-m pip install tool-eval-bench" in without.said) == (2, True), without
    moving.unscathed(before, "split")

    there = {"PATH": f"{program}:{os.environ['PATH']}"}
    with moving.steady_traffic() as traffic:
        moving.cutover("replicas", text=text, env=there)
    assert traffic.failed == []
    changed = next(event for event in moving.run("history").events if event["type"] == "change")
    assert len(changed["scores"]) == 2
    assert all(told.startswith("tool-eval-bench ") for told in changed["scores"].values()), changed

    asked = moving.run("eval", "tools", "box1", "--suite", "tool-eval-bench", text=text, env=there)
    told = next(event for event in asked.events if event["type"] == "score")
    assert (told["suite"], told["of"]) == ("tool-eval-bench", "replicas/standin@box1")
    assert len(told["categories"]) >= 10 and 0 < told["score"] < 50 and len(told["failures"]) > 30
