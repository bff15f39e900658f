"""The link between two boxes, and what their engines say: nothing where all is well, and each planted fault."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from moving import BOXES, PATIENCE, SPLIT, Moving, Ran

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
    assert pairs[0]["rdma"] is None and pairs[0]["rdma_unknown"]
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


def test_what_an_engine_logs_and_refuses_is_found_until_it_is_started_anew(split: Moving) -> None:
    split.text = split.changed(lambda document: document["models"]["standin"].pop("arguments"))  # no tool parser
    split.be_in("split")
    said = "(EngineCore_DP0 pid=3) Loading lora sql failed: No adapter found for /models/lora/sql"
    # A process in the control group of the unit: the journal takes its words for the unit's.
    join = f"pid=$(systemctl show -P MainPID {SPLIT}); path=$(grep {SPLIT} /proc/$pid/cgroup | "
    join += "head -1 | cut -d: -f3); for base in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do "
    join += "[ -e $base$path/cgroup.procs ] && echo $$ > $base$path/cgroup.procs && break; done; "
    split.sh("box1", f"{join} systemd-cat -t python3 sh -c 'echo \"{said}\"; sleep 1'; journalctl --sync")
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
    asked = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "tools": [tool]}
    answer = httpx.post(f"{split.proxy}/v1/chat/completions", json=asked, timeout=PATIENCE, trust_env=False)
    assert answer.status_code == 400, answer.text
    tools, lora = sorted(doctor(split), key=lambda one: str(one["code"]))
    assert {(one["box"], one["where"]) for one in (tools, lora)} == {("box1", SPLIT)}
    assert tools["code"] == "E09" and '"--enable-auto-tool-choice"' in tools["fix"]
    assert lora["code"] == "E11" and lora["evidence"] == [said]
    assert split.run("restart", "standin", "--yes").rc == 0
    assert doctor(split) == []


PARSER = ["--enable-auto-tool-choice", "--tool-call-parser", "mistral"]
WRONG = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "eth7"}


@pytest.fixture
def misled(moving: Moving) -> tuple[Moving, str]:
    """A split that was told other interfaces than the link's, and has a parser for tool calls; and its fleet.yaml."""

    def change(document: dict[str, Any]) -> None:
        document["models"]["standin"]["arguments"] = PARSER
        document["layouts"]["split"]["standin"]["environment"] = WRONG

    text = moving.changed(change)
    moving.cutover("split", text)
    return moving, text


def test_an_engine_that_was_told_another_interface_is_found(misled: tuple[Moving, str]) -> None:
    seen = doctor(*misled)
    told = {(one["code"], one["severity"], one["box"], one["evidence"][0]) for one in seen}
    for box in BOXES:
        assert ("L12", "warning", box, "NCCL_SOCKET_IFNAME=lo") in told
        assert ("L12", "error", box, "GLOO_SOCKET_IFNAME=eth7") in told
    assert len(seen) == 4


def test_tool_calls_that_arrive_as_text_are_found(misled: tuple[Moving, str]) -> None:
    moving, text = misled
    moving.control("box1", tool_calls_as_text=True)
    (finding,) = [one for one in doctor(moving, text) if one["code"] != "L12"]
    assert (finding["code"], finding["box"]) == ("E09", "box1")
    assert "<tool_call>" in finding["evidence"][0] and "hermes" in finding["fix"]
