"""Boxes of the lab over SSH: sudo in its forms, jump hosts, pulled cables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from places import BASE

from fleetctl.errors import BoxError
from fleetctl.lab.lab import Lab
from fleetctl.remote import session
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import ConnectionLost, connect
from fleetctl.spec.fleet import Box, Fleet

PASSWORD = "lab-password"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    here = tmp_path_factory.mktemp("boxes")
    lab = Lab(
        here / "lab",
        bridge="fleetremote0",
        subnet="10.77.3.0/24",
        link_subnet="10.78.3.0/24",
        base=BASE,
    )
    try:
        lab.up(2)
        yield lab
    finally:
        lab.down()


def box(lab: Lab, name: str = "box1", **ssh: Any) -> Box:
    reach = {"user": "operator", "key": str(lab.key), "known_hosts": str(lab.known_hosts), **ssh}
    return Box.model_validate(
        {
            "address": lab.box(name).address,
            "memory": "1GiB",
            "reserve": "0GiB",
            "ssh": {key: value for key, value in reach.items() if value is not None},
        }
    )


def fleet(lab: Lab, **ssh: Any) -> Fleet:
    return cast(Fleet, SimpleNamespace(boxes={name: box(lab, name, **ssh) for name in ("box1", "box2")}))


@pytest.mark.parametrize("user", ["root", "fleet"])
def test_both_boxes_are_worked_on_as_root(lab: Lab, user: str) -> None:
    with Boxes.open(fleet(lab, user=user)) as boxes:
        told = boxes.each(lambda each: each.run("sh", "-c", "hostname; id -u; echo $HOME").out.split())
    assert told == {name: [name, "0", "/root"] for name in ("box1", "box2")}


def test_a_sudo_password_is_asked_for_once_per_box_and_never_seen_in_a_command_line(lab: Lab) -> None:
    asked: list[str] = []

    def ask(name: str) -> str:
        asked.append(name)
        return PASSWORD

    with Boxes.open(fleet(lab), ask_password=ask) as boxes:
        assert boxes.each(lambda each: each.run("id", "-u").out) == {"box1": "0\n", "box2": "0\n"}
        lines = boxes["box1"].run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").out
        boxes["box1"].close()
        boxes["box1"].reconnect()
        assert boxes["box1"].run("id", "-u").out == "0\n"
    assert sorted(asked) == ["box1", "box2"]
    assert "sudo -S" in lines and PASSWORD not in lines


def test_a_sudo_password_by_reference_is_not_asked_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOX_SUDO", PASSWORD)
    with connect("box1", box(lab, sudo_password={"env": "BOX_SUDO"})) as connection:
        assert connection.run("id", "-u").out == "0\n"


def test_a_wrong_sudo_password_is_tried_exactly_once(lab: Lab) -> None:
    before = refusals(lab)
    with pytest.raises(BoxError, match=r"^box1: sudo refused the password of operator"):
        connect("box1", box(lab), ask_password=lambda name: "wrong")
    assert refusals(lab) - before == 1


def test_nobody_to_ask_for_the_password_is_told(lab: Lab) -> None:
    with pytest.raises(BoxError, match="box1: sudo wants a password for operator, and there is nobody to ask"):
        connect("box1", box(lab))


def test_a_user_without_the_right_to_use_sudo_is_told(lab: Lab) -> None:
    user(lab, "guest")
    with pytest.raises(BoxError, match="box1: guest has no right to use sudo"):
        connect("box1", box(lab, user="guest"), ask_password=lambda name: PASSWORD)


def test_a_sudo_that_insists_on_a_terminal_is_told(lab: Lab) -> None:
    user(lab, "ttyonly", "ttyonly ALL=(ALL) NOPASSWD: ALL\nDefaults:ttyonly requiretty\n")
    with pytest.raises(BoxError, match="box1: sudo insists on a terminal") as caught:
        connect("box1", box(lab, user="ttyonly"))
    assert "!requiretty" in str(caught.value)


def test_a_box_without_sudo_is_told(lab: Lab) -> None:
    lab.exec("box2", ["mv", "/usr/bin/sudo", "/usr/bin/sudo.away"])
    try:
        with pytest.raises(BoxError, match="box2: there is no sudo, and fleet is not root"):
            connect("box2", box(lab, "box2", user="fleet"))
    finally:
        lab.exec("box2", ["mv", "/usr/bin/sudo.away", "/usr/bin/sudo"])


def test_a_password_is_not_sent_to_start_up_files_that_echo_the_command(lab: Lab) -> None:
    user(lab, "noisy", "noisy ALL=(ALL) ALL\n")
    lab.exec("box1", ["tee", "/home/noisy/.bashrc"], input="echo noise; printf 'no newline'; set -xv\n")
    with connect("box1", box(lab, user="noisy"), ask_password=lambda name: PASSWORD) as connection:
        assert connection.run("id", "-u").out == "0\n"


def test_one_box_is_reached_through_the_other(lab: Lab, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host behind\n  HostName {lab.box('box2').link_address}\n  HostKeyAlias {lab.box('box2').address}\n"
        f"  ProxyJump fleet@{lab.box('box1').address}\n"
        f"Host *\n  User fleet\n  IdentityFile {lab.key}\n  UserKnownHostsFile {lab.known_hosts}\n"
    )
    inner = box(lab, host="behind", user=None, key=None, known_hosts=None)
    with connect("box2", inner, config=config) as connection:
        assert connection.run("hostname").out == "box2\n"
        assert lab.box("box1").link_address in connection.run("sh", "-c", "ss -tn sport = 22").out


def test_a_box_that_vanishes_from_the_network_is_noticed_and_found_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "BEAT", 0.5)
    monkeypatch.setattr(session, "SILENCE_LIMIT", 2.0)
    with connect("box2", box(lab, "box2", user="fleet"), timeout=5) as connection:
        lab.vanish("box2")
        try:
            with pytest.raises(ConnectionLost, match="box2: no sign of life"):
                connection.run("true")
            with pytest.raises(BoxError, match=r"box2: (no answer from|cannot reach) .* port 22"):
                connection.reconnect()
        finally:
            lab.reappear("box2")
        connection.reconnect()
        assert connection.run("hostname").out == "box2\n"


def test_an_address_that_does_not_answer_is_told(lab: Lab) -> None:
    lab.exec("box1", ["true"])
    nobody = lab.box("box1").address.rpartition(".")[0] + ".99"
    with pytest.raises(BoxError, match=rf"box1: (no answer from|cannot reach) {nobody} port 22"):
        connect("box1", box(lab, host=nobody), timeout=1)


def user(lab: Lab, name: str, sudoers: str = "") -> None:
    """A user on box1 who can log in with the key and has the password of the lab."""
    lab.exec("box1", ["useradd", "-m", "-s", "/bin/bash", name])
    lab.exec("box1", ["chpasswd"], input=f"{name}:{PASSWORD}\n")
    lab.exec("box1", ["cp", "-rT", "/root/.ssh", f"/home/{name}/.ssh"])
    lab.exec("box1", ["chown", "-R", f"{name}:", f"/home/{name}/.ssh"])
    if sudoers:
        lab.exec("box1", ["tee", f"/etc/sudoers.d/{name}"], input=sudoers)


def refusals(lab: Lab) -> int:
    """How often sudo on box1 has logged a password it refused."""
    log = lab.exec("box1", ["journalctl", "-q", "--no-pager", "-t", "sudo"]).stdout
    return log.count("authentication failure")


def test_a_box_that_does_not_let_the_page_cache_be_dropped_says_so(lab: Lab) -> None:
    with Boxes.open(fleet(lab, user="root")) as boxes:
        rows = dict(line.split(":", 1) for line in boxes["box1"].run("cat", "/proc/meminfo").out.splitlines())
        free, available = (int(rows[key].split()[0]) * 1024 for key in ("MemFree", "MemAvailable"))
        told = boxes["box1"].call("drop_page_cache", need=free + (available - free) // 2)
        enough = boxes["box1"].call("drop_page_cache", need=1)
    # In a box of the lab /proc/sys is read-only. What is free on this machine moves between two looks.
    assert not told["dropped"] and ("Read-only" in told["why"] or available - free < 2**28), told
    assert not enough["dropped"] and "are free" in enough["why"]
