"""From what a box is like to the parts of its setup."""

from __future__ import annotations

import configparser
from dataclasses import replace
from typing import Any

import pytest
import yaml

from fleetctl.errors import SpecError
from fleetctl.facts.setup import SetupFacts
from fleetctl.plan.setup import SUDOERS, SUDOERS_HEAD, drafts, sudoers
from fleetctl.plan.setup_wish import Draft, Remark, Wish
from fleetctl.render.link import MANAGERS, Link, link_part
from fleetctl.run.setting_up import Choices, fleet_of_hosts, wishes

PROGRAM = "/usr/local/lib/fleetctl/onbox-0123456789abcdef"
WISH = Wish(key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIabc me@desk", program=PROGRAM, program_sha256="ab" * 32)
LINK = Link("enp1s0f0np0", "192.168.100.1/24", 9000)
NEW = {"new": ["haproxy", "liblua5.3-0"], "size": "Need to get 2 MB of archives.", "unknown": False}
SEEN: dict[str, Any] = {
    "user": "ops",
    "keys_trouble": None,
    "system": "Debian GNU/Linux 12 (bookworm)",
    "manager": "apt",
    "packages": {"haproxy": None, "keepalived": None, "earlyoom": None},
    "offers": {"haproxy": NEW, "keepalived": NEW, "earlyoom": NEW},
    "earlyoom": "1.8.2-1",
    "sudo": "Sudo version 1.9.13p3",
    "rules": None,
    "includes": True,
    "venvs": {},
    "venv_module": True,
    "images": {},
    "programs": {},
    "addresses": [{"interface": "eth0", "address": "10.0.0.5", "prefix": 24, "default": True}],
    "link": None,
    "record": {},
}
INTERFACE = {
    "interface": LINK.interface,
    "state": {"addresses": [], "mtu": 1500, "most": 9978, "up": True},
    "kind": "netplan",
    "uses": None,
    "interfaces": ["enp1s0f0np0", "eth0"],
}


def _told(wish: Wish, **seen: Any) -> list[Draft | Remark]:
    return drafts("spark1", wish, SetupFacts.model_validate({**SEEN, **seen}))


def _of(family: str, wish: Wish, **seen: Any) -> Draft | Remark:
    (one,) = (told for told in _told(wish, **seen) if told.family == family)
    return one


def test_a_bare_box_gets_its_parts_in_an_order_in_which_each_can_rest_on_those_before() -> None:
    wish = replace(WISH, proxy=True, link=LINK)
    assert [one.family for one in _told(wish, link=INTERFACE)] == ["key", "packages", "sudo", "link", "earlyoom"]


@pytest.mark.parametrize(
    ("family", "wish", "seen", "said"),
    [
        ("key", WISH, {"keys_trouble": "sshd takes keys elsewhere"}, "elsewhere"),
        ("sudo", WISH, {"user": "root"}, "log in as root"),
        ("sudo", WISH, {"sudo": None}, "there is no sudo"),
        ("sudo", WISH, {"includes": False}, "does not include"),
        ("sudo", WISH, {"rules": "ops ALL=(ALL) ALL\n"}, "is not fleetctl's"),
        ("sudo", WISH, {"user": "ops, ALL"}, "cannot be written"),
        ("packages", replace(WISH, proxy=True), {"manager": "dnf install"}, "as root: dnf install haproxy"),
        ("packages", replace(WISH, proxy=True), {"manager": None}, "install haproxy"),
        ("earlyoom", replace(WISH, guard=True), {}, "the guard"),
        ("earlyoom", WISH, {"packages": {"earlyoom": "1.7-1"}}, "left alone"),
        ("earlyoom", WISH, {"earlyoom": "1.7-1"}, "would end engines first"),
        ("earlyoom", WISH, {"earlyoom": None}, "apt-get update"),
        ("guard", replace(WISH, guard=True), {}, "fleetctl guard install"),
        ("link", replace(WISH, link=LINK), {"link": {**INTERFACE, "kind": None}}, "ip address add"),
        (
            "link",
            replace(WISH, link=replace(LINK, mtu=9000)),
            {
                "link": {
                    **INTERFACE,
                    "kind": None,
                    "state": {"addresses": [LINK.address], "mtu": 1500, "most": 9978, "up": True},
                }
            },
            f"until the next boot: ip link set dev {LINK.interface} mtu 9000: nothing was changed",
        ),
        ("link", replace(WISH, link=LINK), {"link": {**INTERFACE, "state": None}}, "it has enp1s0f0np0, eth0"),
        (
            "link",
            replace(WISH, link=replace(LINK, mtu=16000)),
            {"link": INTERFACE},
            "takes an MTU of 9978 at most",
        ),
        (
            "link",
            replace(WISH, link=replace(LINK, address="10.0.0.77/24")),
            {"link": INTERFACE},
            "overlaps with 10.0.0.0/24 of eth0",
        ),
        (
            "link",
            replace(WISH, link=replace(LINK, interface="eth0")),
            {"link": {**INTERFACE, "interface": "eth0"}},
            "where the default route",
        ),
        (
            "link",
            replace(WISH, link=LINK),
            {"link": {**INTERFACE, "state": {"addresses": [LINK.address], "mtu": 9000, "most": 9978, "up": True}}},
            "not by fleetctl: it is left alone",
        ),
        (
            "engine",
            replace(WISH, venvs={"/opt/vllm": ("vllm", "vllm")}),
            {"venvs": {"/opt/vllm": {"there": False, "version": None, "free": 10**12}}},
            "--engine vllm==VERSION makes it",
        ),
        (
            "engine",
            replace(WISH, venvs={"/opt/vllm": ("vllm", "vllm")}, versions={"vllm": "0.11.0"}),
            {"venvs": {"/opt/vllm": {"there": False, "version": None, "free": 10**9}}},
            "are free there",
        ),
        (
            "engine",
            replace(WISH, venvs={"/opt/vllm": ("vllm", "vllm")}, versions={"vllm": "0.11.0"}),
            {"venvs": {"/opt/vllm": {"there": True, "version": None, "free": 10**12}}},
            "left alone",
        ),
        (
            "engine",
            replace(WISH, venvs={"/opt/vllm": ("vllm", "vllm")}, versions={"vllm": "0.11.0"}),
            {"venvs": {"/opt/vllm": {"there": True, "version": "0.10.1", "free": 10**12}}},
            "a path of its own",
        ),
        ("engine", replace(WISH, images=(("podman", "vllm/vllm-openai:v1"),)), {}, "podman is not installed"),
    ],
)
def test_what_cannot_be_done_is_said(family: str, wish: Wish, seen: dict[str, Any], said: str) -> None:
    told = _of(family, wish, **seen)
    assert isinstance(told, Remark)
    assert said in told.text


def test_the_sudo_rule_names_one_program_by_its_digest_and_shows_what_that_is_worth() -> None:
    told = _of("sudo", WISH)
    assert isinstance(told, Draft)
    program, rule = told.part["files"]
    assert (program["path"], program["mode"]) == (PROGRAM, 0o755)
    assert (rule["path"], rule["mode"], rule["verify"][0]) == (SUDOERS, 0o440, "visudo")
    assert f"ops ALL=(root) NOPASSWD: sha256:{'ab' * 32} {PROGRAM}\n" in rule["content"]
    assert any("can become root" in line for line in told.lines)


def test_other_peoples_rules_stay_and_ones_own_is_replaced() -> None:
    before = f"{SUDOERS_HEAD}\nanna ALL=(root) NOPASSWD: sha256:cd /x\nops ALL=(root) NOPASSWD: sha256:ef /old\n"
    text = sudoers("ops", PROGRAM, "ab", before, digests=False)
    assert text.splitlines() == [
        SUDOERS_HEAD,
        "anna ALL=(root) NOPASSWD: sha256:cd /x",
        f"ops ALL=(root) NOPASSWD: {PROGRAM}",
    ]
    assert sudoers("ops", PROGRAM, "ab", text, digests=False) == text


def test_packages_are_shown_in_apts_own_words_with_what_they_bring() -> None:
    told = _of("packages", replace(WISH, proxy=True, floating=True))
    assert isinstance(told, Draft)
    assert told.part["packages"] == ["haproxy", "keepalived"]
    assert any("liblua5.3-0" in line and "Need to get" in line for line in told.lines)
    assert any("systemctl disable --now haproxy.service keepalived.service" in line for line in told.lines)


def test_earlyoom_leaves_engines_alone() -> None:
    told = _of("earlyoom", WISH)
    assert isinstance(told, Draft)
    (file,) = told.part["files"]
    assert '--ignore "^(vllm|VLLM::.*|' in file["content"]


def test_an_environment_is_made_with_one_version_and_shown_with_its_room() -> None:
    wish = replace(WISH, venvs={"/opt/vllm": ("vllm", "vllm")}, versions={"vllm": "0.11.0"})
    told = _of("engine", wish, venvs={"/opt/vllm": {"there": False, "version": None, "free": 10**12}})
    assert isinstance(told, Draft)
    assert told.part["version"] == "0.11.0"
    assert any("pip install vllm==0.11.0" in line for line in told.lines)


@pytest.mark.parametrize("kind", MANAGERS)
def test_the_links_file_says_the_same_to_every_manager(kind: str) -> None:
    part = link_part(LINK, kind, None)
    text = part["file"]["content"]
    assert text.startswith("# Made by fleetctl setup")
    if kind == "netplan":
        (one,) = yaml.safe_load(text)["network"]["ethernets"].values()
        assert (one["addresses"], one["mtu"]) == ([LINK.address], 9000)
    elif kind == "ifupdown":
        assert f"address {LINK.address}" in text and "mtu 9000" in text
    else:
        parser = configparser.ConfigParser()
        parser.read_string(text)
        found = {value for section in parser.sections() for value in parser[section].values()}
        assert {LINK.address, "9000"} <= found
    if kind != "ifupdown":
        assert part["trial"]["path"].startswith("/run/"), "what is on trial must not survive a boot"


def test_an_interface_that_networkd_knows_gets_a_drop_in_to_its_own_file() -> None:
    part = link_part(LINK, "systemd-networkd", "/etc/systemd/network/10-lan.network")
    assert part["file"]["path"] == "/etc/systemd/network/10-lan.network.d/fleetctl-link.conf"
    assert "[Match]" not in part["file"]["content"]


def test_hosts_without_a_file_are_a_fleet_whose_first_box_has_the_proxy() -> None:
    fleet = fleet_of_hosts(["ops@spark1", "spark2"])
    assert fleet_of_hosts(["ops@10.0.0.5"]).boxes["10-0-0-5"].address == "10.0.0.5"
    assert (fleet.boxes["spark1"].ssh.user, fleet.boxes["spark2"].ssh.user) == ("ops", None)
    found = wishes(fleet, fleet.boxes, Choices(), named=False)
    assert [wish.proxy for wish in found.values()] == [True, False]
    assert not any(wish.venvs for wish in found.values())


@pytest.mark.parametrize("hosts", [["ops@"], ["-oProxyCommand=x"], ["a@spark1", "b@spark1"], ["..."]])
def test_hosts_that_are_none_are_refused(hosts: list[str]) -> None:
    with pytest.raises(SpecError):
        fleet_of_hosts(hosts)
