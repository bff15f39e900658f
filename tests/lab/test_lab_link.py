"""The link between two boxes, and what their engines say: nothing where all is well, and each planted fault."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from moving import BOXES, PATIENCE, SPLIT, Moving, Ran, eventually

FAMILIES = ("L", "E")


def findings(ran: Ran) -> list[dict[str, Any]]:
    """What the families of this file found."""
    told = [event for event in ran.events if event["type"] == "finding" and event["code"].startswith(FAMILIES)]
    summary = [event for event in ran.events if event["type"] == "summary"]
    assert summary and summary[0]["not_seen"] == [], ran
    return told


def doctor(moving: Moving, text: str | None = None) -> list[dict[str, Any]]:
    return findings(moving.run("doctor", text=text))


@pytest.fixture
def split(moving: Moving) -> Moving:
    """A split that serves over the link."""
    moving.be_in("split")
    return moving


@contextmanager
def on(moving: Moving, box: str, do: str, undo: str) -> Iterator[None]:
    """Something that is so on a box for the length of a block."""
    moving.sh(box, do)
    try:
        yield
    finally:
        moving.sh(box, undo)


def ask_engine(moving: Moving) -> None:
    """A request to the engine itself, and its answer, however late."""
    asked = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    with contextlib.suppress(httpx.HTTPError):
        url = f"http://{moving.lab.box('box1').address}:8000/v1/chat/completions"
        httpx.post(url, json=asked, timeout=PATIENCE, trust_env=False)


def link(moving: Moving, box: str) -> str:
    return str(moving.lab.box(box).link_address)


def test_nothing_is_found_where_nothing_is_wrong(split: Moving) -> None:
    assert split.answers()
    assert doctor(split) == []


def test_bandwidth_and_latency_are_measured_over_both_networks_and_nothing_stays_behind(split: Moving) -> None:
    listening = {box: split.sh(box, "ss -ltnH | awk '{print $4}' | sort") for box in BOXES}
    ran = split.run("link", "test", "--yes", "--seconds", "0.5")
    assert ran.rc == 0, ran
    (warning,) = [event for event in ran.events if event["type"] == "warning"]
    assert "split/standin" in warning["message"]
    pairs = [event for event in ran.events if event["type"] == "pair"]
    assert [(pair["network"], pair["boxes"]) for pair in pairs] == [("link", [*BOXES]), ("address", [*BOXES])]
    for pair in pairs:
        assert pair["measured"] and pair["negotiated"] == 10e9
        assert 0 < pair["latency_us"]["least"] <= pair["latency_us"]["median"] <= pair["latency_us"]["p99"]
        for flow in pair["there"] + pair["back"]:
            assert flow["rate"] > 10e6 and flow["streams"] == 1  # engines use the link: no more than one
        assert pair["ends"][1]["interface"] == "host0" and pair["ends"][1]["mtu"] == 1500
    assert pairs[0]["ends"][0]["address"] == link(split, "box1")
    assert (pairs[0]["rdma"], "perftest" in pairs[0]["rdma_unknown"] or "not measured" in pairs[0]["rdma_unknown"]) == (
        None,
        True,
    )
    assert {box: split.sh(box, "ss -ltnH | awk '{print $4}' | sort") for box in BOXES} == listening
    assert split.answers()


def test_with_engines_on_the_link_and_nobody_to_ask_nothing_is_measured(split: Moving) -> None:
    ran = split.run("link", "test")
    assert ran.rc == 2 and "--yes" in ran.said, ran
    assert not [event for event in ran.events if event["type"] == "pair"]


def test_different_mtus_are_found(split: Moving) -> None:
    with on(split, "box2", "ip link set host0 mtu 1400", "ip link set host0 mtu 1500"):
        (finding,) = doctor(split)
    assert (finding["code"], finding["box"]) == ("L08", "box2")
    assert "ip link set host0 mtu 1500" in finding["fix"]


def test_an_address_that_two_boxes_have_is_found(split: Moving) -> None:
    address = f"{link(split, 'box1')}/24"
    with on(split, "box2", f"ip address add {address} dev host0", f"ip address del {address} dev host0"):
        seen = doctor(split)
    assert [(one["code"], one["box"], one["where"]) for one in seen] == [("L05", "box2", link(split, "box1"))], seen
    assert f"ip address del {address} dev host0" in seen[0]["fix"]


def test_an_address_that_a_machine_outside_of_the_fleet_has_is_found(split: Moving) -> None:
    bridge, address = split.lab.bridge.name, f"{link(split, 'box2')}/32"
    mac = subprocess.run(
        ["cat", f"/sys/class/net/{bridge}/address"], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(["ip", "address", "add", address, "dev", bridge], check=True)
    try:
        seen = doctor(split)
    finally:
        subprocess.run(["ip", "address", "del", address, "dev", bridge], check=True)
    assert [(one["code"], one["box"]) for one in seen] == [("L05", "box2")], seen
    assert mac in seen[0]["fix"]


def test_a_firewall_that_closes_what_nccl_and_gloo_need_is_found(split: Moving) -> None:
    rule = f"ip saddr {link(split, 'box2')} tcp flags & (syn | ack) == syn tcp dport 30000-65535 drop"
    table = f"table inet site {{ chain input {{ type filter hook input priority 0; policy accept; {rule}; }}; }}"
    with on(split, "box1", f"echo '{table}' | nft -f -", "nft delete table inet site"):
        (finding,) = doctor(split)
    assert (finding["code"], finding["box"]) == ("L07", "box1")
    assert f"ip saddr {link(split, 'box2')} accept" in finding["fix"]


def test_what_an_engine_logs_is_found_until_it_is_started_anew(split: Moving) -> None:
    said = "(EngineCore_DP0 pid=3) Loading lora sql failed: No adapter found for /models/lora/sql"
    # A process in the control group of the unit: the journal takes its words for the unit's.
    join = f"pid=$(systemctl show -P MainPID {SPLIT}); path=$(grep {SPLIT} /proc/$pid/cgroup | "
    join += "head -1 | cut -d: -f3); for base in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do "
    join += "[ -e $base$path/cgroup.procs ] && echo $$ > $base$path/cgroup.procs && break; done; "
    split.sh("box1", f"{join} systemd-cat -t python3 echo '{said}'; sleep 0.5; journalctl --sync")
    (finding,) = doctor(split)
    assert (finding["code"], finding["box"], finding["where"]) == ("E11", "box1", SPLIT)
    assert finding["evidence"] == [said]
    assert split.run("restart", "standin", "--yes").rc == 0
    assert doctor(split) == []


def test_an_engine_that_answers_and_does_nothing_is_found(split: Moving) -> None:
    split.control("box1", hang=True)
    waits = threading.Thread(target=ask_engine, args=(split,), daemon=True)
    waits.start()
    try:
        eventually(lambda: [one["code"] for one in doctor(split)] == ["E08"])
    finally:
        split.control("box1")
    waits.join(PATIENCE)
    assert doctor(split) == []


def test_tool_calls_that_arrive_as_text_are_found(split: Moving) -> None:
    parser = ["--enable-auto-tool-choice", "--tool-call-parser", "mistral"]
    text = split.changed(lambda d: d["models"]["standin"].update(arguments=parser))
    ran = split.run("apply", "--yes", text=text)
    assert ran.rc == 0, ran
    assert doctor(split, text) == []
    split.control("box1", tool_calls_as_text=True)
    (finding,) = doctor(split, text)
    assert (finding["code"], finding["box"]) == ("E09", "box1")
    assert "<tool_call>" in finding["evidence"][0] and "hermes" in finding["fix"]


def test_an_engine_that_was_told_another_interface_is_found(split: Moving) -> None:
    text = split.changed(
        lambda d: d["layouts"]["split"]["standin"].update(
            environment={"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "eth7"}
        )
    )
    ran = split.run("apply", "--yes", text=text)
    assert ran.rc == 0, ran
    seen = doctor(split, text)
    told = {(one["code"], one["severity"], one["box"], one["evidence"][0]) for one in seen}
    for box in BOXES:
        assert ("L12", "warning", box, "NCCL_SOCKET_IFNAME=lo") in told
        assert ("L12", "error", box, "GLOO_SOCKET_IFNAME=eth7") in told
    assert len(seen) == 4
