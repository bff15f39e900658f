"""Bare boxes become ready, serve for an account that may do little, and are given back as they were."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare import LINK, OPERATOR, Bare, bare_boxes, served, with_link
from moving import BOXES, FLEETCTL, eventually
from typing_in import typed

from fleetctl.lab import rootfs

PARTS = {"packages", "sudo", "earlyoom"}
RULES = "/etc/sudoers.d/fleetctl"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    with bare_boxes(tmp_path_factory.mktemp("bare")) as boxes:
        yield boxes


@pytest.fixture
def untouched(bare: Bare) -> Iterator[dict[str, str]]:
    """What the boxes are like before the test; the next one begins with fresh ones where they are not so again."""
    before = {box: bare.listing(box) for box in BOXES}
    yield before
    if bare.changed(before):
        bare.renew()


def _parts(ran: Any, state: str) -> set[str]:
    return {e["family"] for e in ran.events if e["type"] == "part" and e["state"] == state}


def _limited(bare: Bare) -> Path:
    """The file of an operator who gives no password."""

    def change(told: dict[str, Any]) -> None:
        for box in told["boxes"].values():
            del box["ssh"]["sudo_password"]

    return bare.write("limited.yaml", change)


def test_bare_boxes_become_ready_serve_for_a_limited_account_and_are_given_back(
    bare: Bare, untouched: dict[str, str]
) -> None:
    limited = _limited(bare)
    refused = bare.run("cutover", "--to", "replicas", "--yes", ok=False)
    assert "fleetctl setup box1 --only packages" in refused.said, "what is missing, and the command that brings it"

    for box in BOXES:
        bare.on(box, "apt-get -q update")
    before = {box: bare.listing(box) for box in BOXES}
    unasked = bare.run("setup", ok=False)
    assert unasked.rc == 2 and "nobody can be asked" in unasked.said
    assert bare.changed(before) == [], "to look and to show changes nothing"
    done = bare.run("setup", "--yes")
    assert _parts(done, "lacking") == PARTS
    assert _parts(done, "there") == {"key"}
    for box in BOXES:
        assert "enabled" not in bare.on(box, "systemctl is-enabled haproxy 2>&1 || true").split()
        assert bare.on(box, "systemctl is-active earlyoom; visudo -c >/dev/null && echo fine").split() == [
            "active",
            "fine",
        ]
    again = bare.run("setup", "--yes")
    assert again.nothing and _parts(again, "lacking") == set()

    for box in BOXES:  # from here on the account may nothing but what setup allowed
        bare.on(box, "mv /etc/sudoers.d/people /root/people")
    bare.run("cutover", "--to", "replicas", "--yes", fleet=limited)
    assert bare.run("status", fleet=limited).rc == 0
    beyond = bare.run("doctor", "--fix", "--yes", fleet=limited, ok=False)
    assert beyond.rc == 3 and "more than the sudo that setup gives" in beyond.said
    said = bare.on("box1", f"su {OPERATOR} -c 'sudo -n id' 2>&1 || true; su {OPERATOR} -c 'sudo -n -l'")
    assert "uid=0" not in said and "NOPASSWD" in said
    log = bare.on("box1", "journalctl -q -t fleetctl -o cat")
    assert f"{OPERATOR}: unit_start" in log
    bare.run("rollback", "--to", "0", "--yes", fleet=limited)

    for box in BOXES:
        bare.on(box, "mv /root/people /etc/sudoers.d/people")
    bare.run("cutover", "--to", "replicas", "--yes")
    for named, why in ((["box2"], "serves in the live layout"), (["box1"], "runs the proxy")):
        refused = bare.run("teardown", *named, "--yes", ok=False)
        assert refused.rc == 5 and why in refused.said
    bare.run("teardown", *BOXES, "--yes")
    assert bare.changed(untouched) == []
    assert bare.run("teardown", *BOXES, "--yes").nothing


def test_a_drained_box_can_be_given_back_while_the_other_serves(bare: Bare, untouched: dict[str, str]) -> None:
    bare.run("setup", "--only", "packages,sudo", "--yes")
    bare.run("cutover", "--to", "replicas", "--yes")
    bare.run("drain", "box2", "--yes")
    bare.run("teardown", "box2", "--yes")
    assert bare.changed({"box2": untouched["box2"]}) == []
    assert bare.on("box1", "systemctl is-active fleetctl-proxy fleetctl-replicas-standin").split() == ["active"] * 2
    bare.run("teardown", *BOXES, "--yes")


def test_what_somebody_has_changed_since_stays_and_is_said(bare: Bare, untouched: dict[str, str]) -> None:
    bare.run("setup", "box1", "--only", "sudo", "--yes")
    bare.on("box1", f"echo '# mine' >> {RULES}")
    ran = bare.run("teardown", *BOXES, "--yes")
    assert any("was changed since and stays" in json.dumps(event) for event in ran.events)
    assert "# mine" in bare.on("box1", f"cat {RULES}; rm {RULES}")
    assert bare.changed({"box1": untouched["box1"]}) == []


def test_a_setup_that_is_killed_is_told_and_finished_or_taken_back(bare: Bare, untouched: dict[str, str]) -> None:
    for ends in (("setup", "--only", "packages", "--yes"), ("rollback", "--yes")):
        running = bare.start("setup", "--only", "packages", "--yes")
        running.until("setup.set_up.box1", "progress")
        running.process.kill()
        running.process.wait()
        told = bare.run("status", ok=False)
        assert told.rc == 8 and "setup" in json.dumps(told.events)
        refused = bare.run("cutover", "--to", "replicas", "--yes", ok=False)
        assert refused.rc == 8 and "fleetctl setup" in refused.said
        bare.run(*ends)
        assert bare.run("status", ok=False).rc in (0, 9)
        there = "haproxy" in bare.on("box1", "dpkg-query -W -f '${Package} ${db:Status-Status}\n' haproxy 2>&1 || true")
        assert bare.run("setup", "--only", "packages", "--yes").nothing is (ends[0] == "setup") or not there
        bare.run("teardown", *BOXES, "--yes")
        assert bare.changed(untouched) == []


def _networkd(bare: Bare) -> None:
    for box in BOXES:
        bare.on(box, "ln -sf /dev/null /etc/systemd/network/80-container-host0.network")
        bare.on(box, "systemctl unmask -q systemd-networkd; systemctl start systemd-networkd")


def test_a_link_is_proved_and_stays_and_goes_with_teardown(bare: Bare, untouched: dict[str, str]) -> None:
    _networkd(bare)
    before = {box: bare.listing(box) for box in BOXES}
    linked = bare.write("link.yaml", with_link())
    ran = bare.run("setup", "--only", "link", "--yes", fleet=linked)
    assert [e for e in ran.events if e["type"] == "pair"], "the link is measured when it is there"
    for box in BOXES:
        assert "192.168.100." in bare.on(box, f"ip -brief address show {LINK}")
        assert bare.on(box, f"cat /sys/class/net/{LINK}/mtu").strip() == "9000"
    assert bare.run("setup", "--only", "link", "--yes", fleet=linked).nothing
    bare.run("teardown", *BOXES, "--yes", fleet=linked)
    assert bare.changed(before) == []


def test_a_link_with_a_wrong_address_is_taken_back(bare: Bare, untouched: dict[str, str]) -> None:
    _networkd(bare)
    before = {box: bare.listing(box) for box in BOXES}
    wrong = bare.write("wrong.yaml", with_link("192.168.101.2"))
    ran = bare.run("setup", "--only", "link", "--yes", fleet=wrong, ok=False)
    assert ran.rc == 6 and "does not answer" in ran.said
    bare.run("teardown", *BOXES, "--yes")
    assert bare.changed(before) == []


def test_a_link_on_trial_goes_by_itself_when_nobody_keeps_it(bare: Bare, untouched: dict[str, str]) -> None:
    _networkd(bare)
    running = bare.start("setup", "--only", "link", "--yes", fleet=bare.write("wrong.yaml", with_link("192.168.101.2")))
    running.until("link.link_try.box1", "done")
    running.process.kill()
    running.process.wait()
    assert "192.168.100.1" in bare.on("box1", f"ip -brief address show {LINK}")
    bare.on("box1", "systemctl start fleetctl-link-back.service")  # what its timer does when the time is over
    eventually(lambda: "192.168.100.1" not in bare.on("box1", f"ip -brief address show {LINK}"))
    assert bare.on("box1", "ls /run/systemd/network").strip() == ""


def test_a_box_without_python3_gets_it_first(bare: Bare, untouched: dict[str, str]) -> None:
    bare.on("box2", "dpkg --purge --force-depends python3 python3-minimal 2>&1; ! command -v python3")
    refused = bare.run("plan", "--to", "replicas", ok=False)
    assert "fleetctl setup box2 installs it" in refused.said
    bare.run("setup", "box2", "--only", "sudo", "--yes")
    assert bare.on("box2", "python3 -c 'print(1)'").strip() == "1"
    bare.run("teardown", *BOXES, "--yes")
    assert bare.changed({"box2": untouched["box2"]}) == []


def _wheel(folder: Path, version: str) -> None:
    """A package that pip takes for vLLM: a program that says its version."""
    info = f"vllm-{version}.dist-info"
    with zipfile.ZipFile(folder / f"vllm-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("vllm.py", f"def main():\n    print('{version}')\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nvllm = vllm:main\n")
        names = ["vllm.py", *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "entry_points.txt", "RECORD"))]
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))


def test_an_environment_is_made_with_the_version_that_is_named(
    bare: Bare, untouched: dict[str, str], tmp_path: Path
) -> None:
    for version in ("0.11.0", "0.11.1"):
        _wheel(tmp_path, version)

    def change(told: dict[str, Any]) -> None:
        told["models"]["standin"]["launch"] = {"venv": "/opt/engines/vllm"}

    fleet = bare.write("venv.yaml", change)
    unnamed = bare.run("setup", "--only", "engine", "--yes", fleet=fleet)
    assert "--engine vllm==VERSION" in json.dumps(unnamed.events)
    with served(tmp_path, str(bare.lab.bridge.host_address)) as url:
        bare.on(
            "box1", f"printf '[global]\\nno-index = true\\nfind-links = {url}\\ntrusted-host = *\\n' > /etc/pip.conf"
        )
        words = ("setup", "box1", "--only", "packages,engine", "--engine", "vllm==0.11.0", "--yes")
        bare.run(*words, fleet=fleet)
        assert bare.on("box1", "/opt/engines/vllm/bin/vllm").strip() == "0.11.0"
        assert bare.run(*words, fleet=fleet).nothing
        other = bare.run("setup", "box1", "--only", "engine", "--engine", "vllm==0.11.1", "--yes", fleet=fleet)
        assert "a path of its own" in json.dumps(other.events)
    bare.run("teardown", *BOXES, "--yes", fleet=fleet)
    bare.on("box1", "rm /etc/pip.conf; test ! -e /opt/engines")
    assert bare.changed({"box1": untouched["box1"]}) == []


def test_a_box_that_knows_only_a_password_is_taken_in_at_a_terminal(
    bare: Bare, untouched: dict[str, str], tmp_path: Path
) -> None:
    """Before there is a fleet.yaml: host key by its fingerprint, login and sudo by password, then the key is there."""
    bare.on("box1", "echo 'PasswordAuthentication yes' > /etc/ssh/sshd_config.d/a.conf; systemctl reload ssh")
    bare.on("box1", f"mv /home/{OPERATOR}/.ssh /root/ssh-of-operator")
    before = bare.listing("box1")
    address = bare.lab.boxes()[0].address
    key = tmp_path / "id_ed25519"
    os.system(f"ssh-keygen -q -t ed25519 -N '' -f {key}")
    config = tmp_path / "ssh_config"
    config.write_text(f"Host *\n  IdentityFile {key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {tmp_path}/known\n")
    argv = [
        FLEETCTL,
        "setup",
        f"{OPERATOR}@{address}",
        "--only",
        "key",
        "-F",
        str(config),
        "-f",
        str(tmp_path / "none"),
    ]
    password = rootfs.OPERATOR_PASSWORD
    env = {**os.environ, "TERM": "dumb"}
    answers = [
        ("Is it right? [y/N]", "y"),
        ("takes none of your keys yet; password:", password),
        ("sudo password on", password),
        (f"Set up key of {OPERATOR} on {address.replace('.', '-')}? [y/N]", "y"),
        ("Do it? [y/N]", "y"),
    ]
    rc, shown = typed(argv, env, answers, 120)
    assert rc == 0, shown
    assert "SHA256:" in shown and password not in shown
    rc, shown = typed(argv, env, [("sudo password on", password)], 120)
    assert rc == 0 and "already so" in shown and "nothing to do" in shown
    down = [FLEETCTL, "teardown", *argv[2:3], "--yes", *argv[5:]]
    rc, shown = typed(down, env, [("sudo password on", password)], 120)
    assert rc == 0, shown
    assert bare.changed({"box1": before}) == []
    bare.on("box1", f"mv /root/ssh-of-operator /home/{OPERATOR}/.ssh; rm /etc/ssh/sshd_config.d/a.conf")
    bare.on("box1", "systemctl reload ssh")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("setup", "box3"), "did you mean"),
        (("setup", "--only", "sudoo"), "did you mean sudo"),
        (("setup", "--only", "sudo", "--skip", "key"), "exclude each other"),
        (("setup", "--engine", "vllm"), "is not PACKAGE==VERSION"),
        (("setup", "--link", "nowhere"), "is not a network"),
        (("setup", "--link", "192.168.9.0/24"), "--interface NAME"),
        (("teardown", "box9"), "did you mean"),
    ],
)
def test_words_that_make_no_sense_change_nothing(bare: Bare, words: tuple[str, ...], said: str) -> None:
    ran = bare.run(*words, "--yes", ok=False)
    assert ran.rc == 2 and said in ran.said
