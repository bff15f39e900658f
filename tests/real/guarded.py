"""A fleet of real vLLM with a guard on each box, and what the guards wrote down."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import yaml
from test_real_moves import (
    BOXES,
    PATIENCE,
    failures,
    move,
    until,
)
from test_real_silence import usable

from fleetctl.lab.lab import Lab
from fleetctl.lab.traffic import Traffic

GUARD: dict[str, Any] = {"silent": "5s", "answer_within": "5s", "idle": "10s"}
CORE = "VLLM::EngineCore"
DEAF = "60s"
"""The proxy's own eye on hung engines looks away for so long: the guard has to see it."""


@contextmanager
def guarded(lab: Lab, layout: str) -> Iterator[None]:
    """The fleet in a layout, with a guard on each box; afterwards the file is as it was."""
    written = lab.fleet_file.read_text()
    document = yaml.safe_load(written)
    document["guard"] = GUARD
    document["proxy"]["silence_limit"] = DEAF
    lab.fleet_file.write_text(yaml.safe_dump(document, sort_keys=False))
    try:
        move(lab, layout, "cutover", "--to", layout)
        yield
    finally:
        lab.fleet_file.write_text(written)


def events(lab: Lab, box: str) -> list[dict[str, Any]]:
    """What the guard of a box has written down."""
    told = lab.exec(box, ["cat", "/var/lib/fleetctl/guard/events.jsonl"]).stdout
    return [json.loads(line) for line in told.splitlines()]


def at(lab: Lab, box: str, words: str, since: float) -> float | None:
    """When the guard of a box first said or did something after a time."""
    told = (one["at"] for one in events(lab, box) if one["at"] > since and words in f"{one['kind']} {one['why']}")
    return next(told, None)


def said(lab: Lab) -> str:
    """All that the guards wrote down, for a test that fails."""
    return "\n".join(f"{box} {one['kind']}: {one['why']}" for box in BOXES for one in events(lab, box))


def tokens(lab: Lab, box: str) -> float:
    """Tokens that the engine on a box has made, from its own metrics."""
    page = httpx.get(f"http://{lab.box(box).address}:8000/metrics", timeout=PATIENCE, trust_env=False).text
    lines = [line for line in page.splitlines() if line.startswith("vllm:generation_tokens_total{")]
    return sum(float(line.split()[-1]) for line in lines)


def pids(lab: Lab, unit: str) -> list[str]:
    return [lab.exec(box, ["systemctl", "show", "-P", "MainPID", unit]).stdout.strip() for box in BOXES]


def stop(lab: Lab, box: str, name: str) -> float:
    """SIGSTOP for the processes of a name: they are there, and do nothing any more."""
    lab.exec(box, ["pkill", "-STOP", "-f", name])
    return time.time()


def back(lab: Lab, box: str, since: float) -> float:
    """When the guard had an engine in the proxy again."""
    until(lambda: at(lab, box, "back in the proxy", since), lab)
    until(lambda: usable(lab) == 2, lab)
    return at(lab, box, "back in the proxy", since) or 0.0


def assert_kept(lab: Lab, traffic: Traffic, out: float) -> None:
    """Every request is answered but the streams that the hung engine had: vLLM sends their headers at once."""
    lost = [one for one in traffic.requests() if one.failed and not (one.streamed and one.start < out)]
    assert [one.error for one in lost] == [], said(lab)


def counts(traffic: Traffic) -> tuple[str, str]:
    return str(len(traffic.requests())), str(len(failures(traffic)))
