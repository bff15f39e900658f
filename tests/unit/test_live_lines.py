"""The lines of a move where there is no terminal: what a step waits for is said once, and again after a while."""

from __future__ import annotations

from typing import Any

import pytest
from planned import BEFORE, boxes_in, plan
from pooled import pooled
from rich.console import Console

from fleetctl.cli import live


def test_a_step_that_waits_does_not_say_the_same_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(BEFORE, pooled(), boxes_in(BEFORE, None))
    steps = [step.id for step in made.steps if step.kind == "await_pool"][:2]
    out, now = Console(width=200, record=True, force_terminal=False), [1000.0]
    monkeypatch.setattr("fleetctl.cli.live.time.monotonic", lambda: now[0])

    def hear(view: live.LiveView, step: str, **seen: Any) -> None:
        view.hear({"type": "step", "step": step, "state": "progress", "seen": seen})

    with live.LiveView(made, out) as view:
        for _ in range(20):
            for step in steps:
                hear(view, step, log="it is loading")
            now[0] += 0.1
        hear(view, steps[0], running=1)
        now[0] += live.QUIET
        hear(view, steps[1], log="it is loading")
    lines = out.export_text().splitlines()
    assert [line.endswith("it is loading") for line in lines] == [True, True, False, True]
    assert lines[2].endswith("1 request running")
