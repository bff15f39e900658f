"""What the proxy's settings should be is told from the traffic that was there, and a reload with them cuts nothing."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from holding import haproxy
from moving import BOXES, COPY, Moving
from test_lab_hold import ask, client, engines_of, two_layouts

from fleetctl.lab.traffic import Traffic

# The first three are wrong for the traffic below, and the others are not.
WRONG = {"hold": "100ms", "drain": "100ms", "check_interval": "2s", "fall": 2, "rise": 2}


def tuned(moving: Moving, text: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What was measured, and the advice for each setting."""
    moving.sh("box1", "journalctl --sync")
    ran = moving.run("proxy", "tune", text=text)
    assert ran.rc == 0, ran
    (measured,) = (event for event in ran.events if event["type"] == "measured")
    return measured, {event["setting"]: event for event in ran.events if event["type"] == "advice"}


def asked(moving: Moving, count: int) -> None:
    """So many requests, eight at a time, all answered."""
    with ThreadPoolExecutor(8) as pool:
        assert {answer.status_code for answer in pool.map(lambda _: moving.complete(), range(count))} == {200}


@pytest.fixture
def wrong(moving: Moving) -> str:
    """fleet.yaml with wrong settings, which the fleet is in; comments and flow style are in it too."""
    text = moving.text.replace("  hold: 10m", "  # of the lab\n  hold: 100ms  # far too short")
    text += "".join(f"  {key}: {value}\n" for key, value in WRONG.items() if key != "hold")
    moving.cutover("replicas", text=text)
    return text


def test_the_advice_comes_from_the_traffic_and_applying_it_cuts_nothing(moving: Moving, wrong: str) -> None:
    before, _ = tuned(moving, wrong)
    asked(moving, 210)
    measured, advice = tuned(moving, wrong)
    there = measured["backends"]["standin"]
    assert measured["requests"] == before["requests"] + 210
    assert there["run"]["count"] == before["backends"]["standin"]["run"]["count"] + 210
    assert 0 < there["first_byte"]["longest"] <= there["run"]["longest"] < 60
    assert measured["starts"] >= 2 and measured["checks"] > 0
    changed = {key: one["advised"] for key, one in advice.items() if one["changes"]}
    assert changed.keys() >= {"hold", "drain", "check_interval"}, advice
    assert changed["check_interval"] == "500ms"
    assert moving.lab.box("box1").address not in json.dumps([measured, advice])

    pids = [moving.sh("box1", "cat /run/fleetctl-proxy/haproxy.pid"), *(moving.pid(box, COPY) for box in BOXES)]
    refused = moving.start("proxy", "tune", "--write", text=wrong).finish()
    assert (refused.rc, "--yes" in refused.said) == (2, True), refused
    ran = moving.run("proxy", "tune", "--write", "--yes", text=wrong)
    (written,) = (event for event in ran.events if event["type"] == "written")
    text = Path(written["file"]).read_text()
    assert "  # of the lab\n" in text and "# far too short\n" in text and "ssh: {user: " in text

    with Traffic(moving.proxy, "standin", rate=10.0) as traffic:
        applied = moving.run("apply", "--yes", text=text)
        time.sleep(1)
    assert applied.rc == 0, applied
    assert [request for request in traffic.requests() if not request.answered] == []
    assert [moving.sh("box1", "cat /run/fleetctl-proxy/haproxy.pid"), *(moving.pid(box, COPY) for box in BOXES)] == pids
    config = moving.sh("box1", "cat /etc/fleetctl/proxy/haproxy.cfg")
    assert "inter 500ms fastinter 250ms" in config
    _, again = tuned(moving, text)
    for key in ("hold", "drain", "check_interval"):  # a busy machine may have made a connection slower meanwhile
        assert (again[key]["now"], again[key]["changes"]) == (written["settings"][key], False), again[key]
    moving.cutover("replicas")


async def _after_a_loss(timeout_connect: float) -> float:
    """Seconds that the slowest of two requests takes right after one of two copies was killed."""
    config = two_layouts("replicas", timeout_connect=timeout_connect)
    engines = engines_of(config)[1:]
    for engine in engines:
        await engine.start()
    with haproxy(config) as proxy:
        async with client() as http:
            await asyncio.gather(*(ask(http, proxy) for _ in range(4)))
            await engines[0].kill()
            begin = time.monotonic()
            answers = await asyncio.gather(*(ask(http, proxy) for _ in range(2)))
            took = time.monotonic() - begin
    assert [answer.status_code for answer in answers] == [200, 200]
    await engines[1].kill()
    return took


def test_a_shorter_connect_limit_has_a_refused_request_tried_again_sooner() -> None:
    long = min(asyncio.run(_after_a_loss(2.0)) for _ in range(2))
    short = min(asyncio.run(_after_a_loss(0.25)) for _ in range(2))
    print(f"\na request that was refused took {long:.2f} s with a limit of 2 s, {short:.2f} s with 250 ms")
    assert short < long - 0.3
