"""Load on engines of boxes: directly, through SSH and through the proxy; recorded and sent again; and tuned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moving import BOXES, COPY, Moving

BRIEF = ("--duration", "2s", "--warm-up", "500ms", "--mix", "agent")


def told(moving: Moving, *words: str, text: str | None = None) -> dict[str, Any]:
    """The figures of a load that has to succeed."""
    ran = moving.run("bench", *words, text=text)
    assert ran.rc == 0, ran
    (figures,) = (event for event in ran.events if event["type"] == "bench")
    notes = [event["text"] for event in ran.events if event["type"] == "note"]
    return {**figures, "notes": notes}


@pytest.fixture
def replicas(moving: Moving) -> Moving:
    moving.be_in("replicas")
    return moving


def test_an_engine_is_measured_directly_and_the_operator_is_asked_first(replicas: Moving) -> None:
    refused = replicas.run("bench", "box1", *BRIEF)
    assert (refused.rc, "--yes" in refused.said) == (2, True), refused
    figures = told(replicas, "box1", *BRIEF, "-c", "3", "--yes")
    assert figures["what"] == "replicas/standin@box1"
    assert figures["answered"] > 0 and figures["errors"] == {}
    assert figures["engine"]["running_max"] == 3
    assert "directly at" in figures["notes"][0] and "round trip" in figures["notes"][0]
    several = replicas.run("bench", "standin", *BRIEF, "--yes")
    assert (several.rc, "replicas/standin@box2" in several.said) == (2, True), several


def test_an_engine_behind_a_firewall_is_measured_through_the_ssh_connection(replicas: Moving) -> None:
    engine = replicas.lab.box("box2").address
    rule = f"add rule inet bench closed tcp dport 8000 ip saddr != {{ 127.0.0.1, {engine} }} drop"
    chain = "add table inet bench; add chain inet bench closed { type filter hook input priority -5; }"
    replicas.sh("box2", f"nft '{chain}; {rule}'")
    try:
        figures = told(replicas, "box2", *BRIEF, "-c", "2", "--yes")
    finally:
        replicas.sh("box2", "nft delete table inet bench")
    assert "through the SSH connection to box2" in figures["notes"][0]
    assert figures["answered"] > 0 and figures["errors"] == {}


def test_what_clients_sent_through_the_proxy_is_recorded_and_sent_again(replicas: Moving, tmp_path: Path) -> None:
    figures = told(replicas, "--through-proxy", *BRIEF, "--rate", "10", "--yes")
    assert figures["what"] == "proxy" and figures["errors"] == {} and figures["answered"] > 5
    replicas.sh("box1", "journalctl --sync")
    file = tmp_path / "recording.jsonl"
    ran = replicas.run("bench", "record", str(file), "--since", "1m")
    assert ran.rc == 0, ran
    (recorded,) = (event for event in ran.events if event["type"] == "recorded")
    assert recorded["requests"] >= figures["answered"]
    lines = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert all(len(line) == 2 and line[1] >= 1 for line in lines)
    again = told(replicas, "--through-proxy", "--replay", str(file), "--faster", "10", "--mix", "agent", "--yes")
    assert again["answered"] == again["requests"] == recorded["requests"]


def test_the_limit_of_the_engine_is_found_written_and_applied(replicas: Moving, tmp_path: Path) -> None:
    """The file says fewer than the engine takes: the answer is what the engine takes, which is no knee."""
    replicas.cutover("replicas", text=replicas.text.replace("concurrency: 12", "concurrency: 4"))
    text = replicas.text.replace("concurrency: 12}", "concurrency: 2}  # to be tuned")
    page = tmp_path / "tune.html"
    ran = replicas.run(
        *("tune", "standin", "--mix", "agent", "--duration", "1s", "--write", "--yes", "--html", str(page)), text=text
    )
    assert ran.rc == 0, ran
    tuned = [event for event in ran.events if event["type"] == "tuned"]
    assert [one["engine"] for one in tuned] == ["replicas/standin@box1", "replicas/standin@box2"]
    assert {(one["answer"]["kind"], one["answer"]["concurrency"]) for one in tuned} == {("limit of the engine", 4)}
    assert page.read_text().count("<h1>") == 2
    (written,) = (event for event in ran.events if event["type"] == "written")
    after = Path(written["file"]).read_text()
    assert "concurrency: 4}  # to be tuned" in after and "split: [box1, box2], concurrency: 2}" in after
    pids = [replicas.pid(box, COPY) for box in BOXES]
    applied = replicas.run("apply", "--yes", text=after)
    assert applied.rc == 0, applied
    assert [replicas.pid(box, COPY) for box in BOXES] == pids  # they run with 4 already
    replicas.cutover("replicas")
