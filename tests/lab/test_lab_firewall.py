"""Engines' ports closed to all but the fleet: who is let in, what stays as it was, and what if SSH is lost."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from moving import BOXES, COPY, Moving, Running, eventually

from fleetctl.resources import root_text

UNIT = "fleetctl-firewall.service"
REFUSED, TAKEN, SILENT = "refused", "taken", "silent"
# What the site has of its own. It is at the same hook, and must stay as it is to the byte.
SITE = "table inet site { chain input { type filter hook input priority filter; policy accept; tcp dport 9 drop; }; }"
# The first connection of a command comes through (its first packet has 60 bytes), and no further one.
NEW_SSH = "tcp dport 22 tcp flags & (syn | ack) == syn quota over 100 bytes"


def walled(moving: Moving, *allow: str) -> str:
    """fleet.yaml with a firewall."""
    return moving.changed(lambda d: d.update(firewall={"allow": list(allow)} if allow else {}))


def knock(moving: Moving, box: str, port: int = 8000) -> str:
    """What this machine, which is no box of the fleet, gets at a port of a box."""
    try:
        socket.create_connection((moving.lab.box(box).address, port), timeout=5).close()
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return SILENT
    return TAKEN


def nft(moving: Moving, box: str, script: str) -> str:
    """What nft says to a script on a box."""
    ran = moving.lab.exec(box, ["nft", "-f", "-"], input=script)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def tables(moving: Moving, box: str) -> list[str]:
    return nft(moving, box, "list tables").splitlines()


def loaded(moving: Moving, box: str) -> bool:
    return "table inet fleetctl" in tables(moving, box)


def of_others(moving: Moving, box: str) -> str:
    """The whole ruleset but for fleetctl's table, with handles: what was loaded again would have others."""
    others = [name for name in tables(moving, box) if name != "table inet fleetctl"]
    return "".join(moving.sh(box, f"nft -a list {name}") for name in others)


def healthy(moving: Moving, text: str) -> bool:
    seen = moving.status(text)
    assert (seen["exit"], seen["problems"]) == (0, []), seen
    return moving.answers()


@contextmanager
def foreign(moving: Moving, box: str, name: str, rule: str) -> Iterator[None]:
    """A rule of somebody else, at the input of a box."""
    chain = f"chain input {{ type filter hook input priority filter - 5; policy accept; {rule}; }};"
    nft(moving, box, f"table inet {name} {{ {chain} }}")
    try:
        yield
    finally:
        nft(moving, box, f"delete table inet {name}")


@pytest.fixture
def open_fleet(moving: Moving) -> Iterator[Moving]:
    """Copies of an engine on both boxes, without a firewall, and with a table of the site."""
    for box in BOXES:
        nft(moving, box, SITE)
    moving.be_in("replicas")
    assert not any(loaded(moving, box) for box in BOXES)
    yield moving
    for box in BOXES:
        nft(moving, box, "flush ruleset")


@pytest.fixture
def short_trial(tmp_path: Path) -> list[str]:
    """Options for an apply that gives the proof five seconds."""
    text = root_text("playbooks", "rolling.yaml")
    path = tmp_path / "rolling.yaml"
    path.write_text(text.replace("apply_firewall: {limit: 30s}", "apply_firewall: {limit: 5s}"))
    assert path.read_text() != text
    return ["--playbook", str(path)]


def test_a_stranger_is_refused_while_requests_through_the_proxy_and_what_is_connected_go_on(open_fleet: Moving) -> None:
    moving = open_fleet
    text, site = walled(moving), {box: of_others(moving, box) for box in BOXES}
    assert knock(moving, "box2") == TAKEN
    direct = f"http://{moving.lab.box('box2').address}:8000/v1/chat/completions"
    asked = {"model": "standin", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4000, "stream": True}
    pids = {box: moving.pid(box, COPY) for box in BOXES}
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        moving.steady_traffic(4) as told,
        client.stream("POST", direct, json=asked) as answer,
    ):
        pieces = answer.iter_lines()
        next(pieces)
        ran = moving.run("apply", "--yes", text=text)
        assert ran.rc == 0, ran
        assert knock(moving, "box2") == REFUSED
        assert any(next(pieces) for _ in range(20)), "the stream that ran goes on"
    assert told.failed == [] and len(told.statuses) > 10
    print(f"\n{len(told.statuses)} requests while the firewall was put there, 0 failed, longest {max(told.took):.2f} s")
    assert {box: moving.pid(box, COPY) for box in BOXES} == pids
    begin = time.monotonic()
    assert {box: knock(moving, box) for box in BOXES} == dict.fromkeys(BOXES, REFUSED)
    assert time.monotonic() - begin < 4, "refused at once, not after a time-out"
    assert knock(moving, "box1", 8080) == TAKEN and knock(moving, "box2", 22) == TAKEN
    assert {box: of_others(moving, box) for box in BOXES} == site
    assert moving.run("apply", "--yes", text=text).nothing
    seen = moving.status(text)
    assert (seen["exit"], seen["problems"]) == (0, []), seen
    notes = "\n".join(seen["notes"])
    assert f"box2: within a day the firewall refused {moving.lab.bridge.host_address} at an engine's own port" in notes
    # This machine is allowed: the same table with one address more.
    allowed = walled(moving, str(moving.lab.bridge.host_address))
    assert moving.run("apply", "--yes", text=allowed).rc == 0
    assert knock(moving, "box2") == TAKEN
    # Back to the one without it, and then to none at all.
    moving.rollback()
    assert knock(moving, "box2") == REFUSED
    moving.rollback()
    assert (knock(moving, "box2"), loaded(moving, "box2"), moving.unit("box2", UNIT)[1]) == (TAKEN, False, "")
    assert moving.files("box2", "/etc/fleetctl/firewall.nft") == []
    assert {box: of_others(moving, box) for box in BOXES} == site
    assert healthy(moving, moving.text)


def test_a_move_does_not_change_it_and_a_reboot_brings_it_back(open_fleet: Moving) -> None:
    moving = open_fleet
    text = walled(moving)
    assert moving.run("apply", "--yes", text=text).rc == 0
    ran = moving.cutover("split", text)
    assert not [step for step in ran.steps() if "firewall" in step]
    assert "29500, 29501" in moving.sh("box1", "nft list table inet fleetctl")
    assert healthy(moving, text)
    moving.lab.reboot("box1")
    assert loaded(moving, "box1") and moving.unit("box1", UNIT) == ("active", "enabled")
    eventually(lambda: moving.status(text)["exit"] == 0, lambda: moving.status(text))
    assert knock(moving, "box1") == REFUSED
    # Out of the file, out of the boxes.
    ran = moving.run("cutover", "--to", "replicas", "--yes")
    assert ran.rc == 0, ran
    assert not any(loaded(moving, box) for box in BOXES)
    assert sorted(step for step in ran.steps() if "firewall" in step) == [
        f"settle.remove_firewall.{box}" for box in BOXES
    ]


def test_a_table_that_is_flushed_or_edited_is_seen_and_put_back(open_fleet: Moving) -> None:
    moving = open_fleet
    text = walled(moving)
    assert moving.run("apply", "--yes", text=text).rc == 0
    for harm, told in (
        ("nft delete table inet fleetctl", "the firewall is not loaded"),
        ("nft insert rule inet fleetctl input tcp dport 8000 accept", "or was edited"),
        (f"systemctl stop {UNIT}", "the firewall is not loaded"),
    ):
        moving.sh("box2", harm)
        seen = moving.status(text)
        assert (seen["exit"], [told in problem for problem in seen["problems"]]) == (9, [True]), (harm, seen)
        ran = moving.run("apply", "--yes", text=text)
        assert (ran.rc, ran.plan["diffs"]) == (0, []), ran
        assert [step for step in ran.steps() if "firewall" in step] == ["prepare.apply_firewall.box2"]
        assert knock(moving, "box2") == REFUSED
    assert healthy(moving, text)
    # Debian's own service flushes everything. Its first start tells nobody; from then on this one comes after it.
    moving.put("box2", "/etc/nftables.conf", f"flush ruleset\n{SITE}\n")
    moving.sh("box2", "systemctl start nftables")
    assert [problem for problem in moving.status(text)["problems"] if "is not loaded" in problem]
    assert moving.run("apply", "--yes", text=text).rc == 0
    for word in ("reload", "restart", "stop", "start"):
        moving.sh("box2", f"systemctl {word} nftables")
        wanted = [] if word == "stop" else ["table inet fleetctl", "table inet site"]
        eventually(lambda: sorted(tables(moving, "box2")) == wanted, lambda: tables(moving, "box2"))  # noqa: B023
    eventually(lambda: knock(moving, "box2") == REFUSED)
    moving.sh("box2", "systemctl stop nftables; rm /etc/nftables.conf")


def step_of(box: str) -> str:
    return f"prepare.apply_firewall.{box}"


def test_where_no_new_ssh_connection_comes_through_the_table_of_before_is_back_at_once(open_fleet: Moving) -> None:
    moving = open_fleet
    assert moving.run("apply", "--yes", text=walled(moving)).rc == 0
    before, site = moving.picture(), {box: of_others(moving, box) for box in BOXES}
    tables_before = {box: moving.sh(box, "nft list table inet fleetctl") for box in BOXES}
    with foreign(moving, "box2", "lockout", f"{NEW_SSH} reject with tcp reset"):
        ran = moving.run("apply", "--yes", text=walled(moving, "192.0.2.10"))
        assert (ran.rc, "there is no new SSH connection" in ran.said) == (6, True), ran
        assert moving.sh("box2", "systemctl list-units --all --plain --no-legend 'fleetctl-firewall-*'") == ""
    assert {box: moving.sh(box, "nft list table inet fleetctl") for box in BOXES} == tables_before
    assert {box: of_others(moving, box) for box in BOXES} == site
    moving.unscathed(before, "replicas")


def until_tried(moving: Moving, move: Running, box: str) -> None:
    """Wait until a table is on trial on a box."""
    move.until(step_of(box))
    eventually(lambda: loaded(moving, box))


def test_a_box_that_is_cut_off_takes_the_table_back_by_itself(open_fleet: Moving, short_trial: list[str]) -> None:
    moving = open_fleet
    before = moving.picture()
    with foreign(moving, "box2", "slow", f"{NEW_SSH} drop"):
        move = moving.start("apply", "--yes", *short_trial, text=walled(moving))
        until_tried(moving, move, "box2")
        with foreign(moving, "box2", "silence", "tcp dport 22 drop"):
            begin = time.monotonic()
            eventually(lambda: not loaded(moving, "box2"))
            print(f"\nwithout SSH the box had taken the table back after {time.monotonic() - begin:.1f} s")
            assert move.process.poll() is None, "the command has not given up yet"
    ran = move.finish()
    assert ran.rc == 6, ran
    assert not any(loaded(moving, box) for box in BOXES)
    moving.unscathed(before, "replicas")


def test_a_table_whose_client_is_killed_goes_away_and_the_same_command_puts_it_there(
    open_fleet: Moving, short_trial: list[str]
) -> None:
    moving = open_fleet
    text = walled(moving)
    with foreign(moving, "box2", "slow", f"{NEW_SSH} drop"):
        move = moving.start("apply", "--yes", *short_trial, text=text)
        until_tried(moving, move, "box2")
        move.process.kill()
        eventually(lambda: not loaded(moving, "box2"))
        assert knock(moving, "box2") == TAKEN
    assert moving.status(text)["exit"] == 8
    ran = moving.run("apply", "--yes", text=text)
    assert ran.rc == 0, ran
    assert all(loaded(moving, box) for box in BOXES) and knock(moving, "box2") == REFUSED
    assert healthy(moving, text)


def test_what_cannot_be_right_changes_nothing(open_fleet: Moving) -> None:
    moving = open_fleet
    before, text = moving.picture(), walled(moving)

    def fails(rc: int, told: str) -> None:
        ran = moving.run("apply", "--yes", text=text)
        assert (ran.rc, told in ran.said) == (rc, True), ran
        assert moving.same_as(before)

    with foreign(moving, "box2", "fleetctl", "tcp dport 9 drop"):
        fails(5, "there is a table inet fleetctl that fleetctl did not load")
    # The proxy would come from an address that is not its box's.
    net = moving.lab.box("box1").address.rpartition(".")[0]
    moving.sh("box1", f"ip address add {net}.99/24 dev host0; ip route add {net}.12/32 dev host0 src {net}.99")
    fails(6, f"from {net}.99, which the firewall of box2 would refuse")
    moving.sh("box1", f"ip route del {net}.12/32; ip address del {net}.99/24 dev host0")
    older = '#!/bin/sh\ncase $1 in -c) echo "what is reject?" >&2; exit 1; esac; exec /usr/sbin/nft "$@"\n'
    moving.put("box2", "/usr/local/sbin/nft", older, "755")
    fails(6, "what is reject?")
    moving.sh("box2", "rm /usr/local/sbin/nft")
    assert not any(loaded(moving, box) for box in BOXES)
    moving.unscathed(before, "replicas")
