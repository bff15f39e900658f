"""The bridge of a fleet on boxes: a move with a gap in which it answers, and one in which its key is wrong."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from moving import BOXES, PROXY, Moving, Ran, eventually
from test_lab_bridge import MARK
from test_lab_tls import made_certificate

from fleetctl.lab.traffic import fault

# A colleague's box: another model behind a key, and HTTPS with a certificate that only the office knows.
HTTPS = """\
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
frontend api
    bind :9443 ssl crt /etc/ssl/bridge.pem
    default_backend engine
backend engine
    server engine 127.0.0.1:9000
"""
ENGINE = "/opt/standin/bin/vllm serve lab/other --served-model-name other --port 9000 --api-key sk-bridge-right"


@pytest.fixture
def colleague(moving: Moving, tmp_path: Path) -> Iterator[str]:
    """fleet.yaml with a bridge, which runs on box2 beside the fleet's engines."""
    pem = made_certificate(tmp_path, "DNS:box2").read_text()
    moving.put("box2", "/etc/ssl/bridge.pem", pem)
    moving.put("box1", "/etc/ssl/bridge-ca.pem", pem[: pem.index("-----BEGIN PRIVATE KEY")])
    moving.put("box2", "/etc/bridge.cfg", HTTPS)
    for name, command in (("bridge-engine", ENGINE), ("bridge-https", "/usr/sbin/haproxy -db -f /etc/bridge.cfg")):
        moving.sh("box2", f"systemd-run --unit={name} -E STANDIN_LOAD_SECONDS=0 -E STANDIN_SPEED=20 {command}")
    bridge = {
        "url": "https://box2:9443/v1",
        "model": "other",
        "api_key": {"env": "BRIDGE_KEY"},
        "after": "500ms",
        "ca": "/etc/ssl/bridge-ca.pem",
    }

    def change(document: dict[str, Any]) -> None:
        document["proxy"].update(bridge=bridge, api_keys={"agents": {"env": "AGENTS_KEY"}})

    for box in BOXES:
        moving.control(box, load_seconds=3)
    yield moving.changed(change)
    moving.sh("box2", "systemctl stop bridge-engine bridge-https; rm -f /etc/bridge.cfg /etc/ssl/bridge.pem")
    moving.sh("box1", "rm -f /etc/ssl/bridge-ca.pem")


def test_in_the_gap_of_a_move_the_bridge_answers_and_with_a_wrong_key_requests_wait(
    moving: Moving, colleague: str
) -> None:
    right = {"BRIDGE_KEY": "sk-bridge-right", "AGENTS_KEY": "sk-agents"}
    moving.cutover("split", text=colleague, env=right)
    eventually(lambda: moving.status(text=colleague)["notes"] == [], lambda: moving.status(text=colleague))
    ran, marks = _move_under_load(moving, "replicas", colleague, right)
    assert ran.rc == 0, ran
    assert any("prompts leave the fleet: they go to box2:9443" in warning for warning in ran.plan["warnings"])
    assert marks.keys() == {None, "box2:9443"}
    line = next(line for line in _log(moving) if '"server":"<lua.bridge>"' in line)
    assert json.loads(line)["held_ms"] >= 500
    told = json.dumps(ran.events) + ran.err + moving.journal() + "".join(_log(moving))
    told += moving.sh("box1", "cat /etc/fleetctl/proxy/haproxy.cfg; tr '\\0' ' ' < /proc/$(pidof -s haproxy)/cmdline")
    assert "sk-bridge" not in told
    assert moving.sh("box1", "stat -c '%a %U' /etc/fleetctl/proxy/bridge-key").strip() == "600 root"

    wrong = {**right, "BRIDGE_KEY": "sk-bridge-wrong"}
    applied = moving.run("apply", "--yes", text=colleague, env=wrong)
    assert applied.rc == 0 and not any("engine" in step for step in applied.steps()), applied
    ran, marks = _move_under_load(moving, "split", colleague, wrong)
    assert ran.rc == 0, ran
    assert marks.keys() == {None}
    assert "fails (401)" in moving.sh("box1", f"journalctl -o cat -u {PROXY}")
    moving.cutover("split")
    assert moving.sh("box1", "ls /etc/fleetctl/proxy/bridge-key 2>/dev/null") == ""
    assert moving.answers()


def _log(moving: Moving) -> list[str]:
    return moving.sh("box1", f"journalctl -o cat -u {PROXY}").splitlines()


def _move_under_load(moving: Moving, to: str, text: str, env: dict[str, str]) -> tuple[Ran, Counter[str | None]]:
    """A move while clients ask, streamed and not; every answer is whole. And the answers by the mark that they had."""
    marks: Counter[str | None] = Counter()
    over = threading.Event()
    headers = {"Authorization": f"Bearer {env['AGENTS_KEY']}"}
    question = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}

    def customer(stream: bool) -> None:
        asked = {**question, "stream": stream}
        with httpx.Client(trust_env=False, timeout=120, headers=headers) as http:
            while not over.wait(0.1):
                answer = http.post(f"{moving.proxy}/v1/chat/completions", json=asked)
                assert fault(answer.status_code, answer.content, streamed=stream) is None
                marks[answer.headers.get(MARK)] += 1

    with ThreadPoolExecutor(4) as pool:
        customers = [pool.submit(customer, number % 2 == 1) for number in range(4)]
        try:
            ran = moving.run("cutover", "--to", to, "--yes", text=text, env=env)
        finally:
            over.set()
        for one in customers:
            one.result()
    gap = next((event["gap"] for event in ran.events if event["type"] == "move" and event.get("gap")), None)
    print(f"\nto {to}, gap {gap} s: answers by the mark that they had: {dict(marks)}")
    return ran, marks
