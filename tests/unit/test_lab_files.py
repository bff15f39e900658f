"""What the lab writes down and how it names things. Nothing here starts a box."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from fleetctl.errors import LabError
from fleetctl.lab import folder, furnish, state
from fleetctl.lab.bridge import Bridge
from fleetctl.lab.lab import Lab
from fleetctl.lab.state import Bind, LabBox, LabState
from fleetctl.lab.supervise import Boot

BOX = LabBox("box1", "10.77.0.11", "10.78.0.11", "fleet", Path("/lab/key"), Path("/lab/known_hosts"))


def test_boxes_are_numbered_from_eleven_in_both_networks() -> None:
    bridge = Bridge("fleetlab0", IPv4Network("10.77.0.0/24"), IPv4Network("10.78.0.0/24"), "/lab")
    assert (str(bridge.host_address), str(bridge.box_address(1)), str(bridge.link_address(2))) == (
        "10.77.0.1",
        "10.77.0.11",
        "10.78.0.12",
    )


@pytest.mark.parametrize("name", ["", "a-name-of-more-than-15", "with space", "with/slash"])
def test_a_bridge_name_the_kernel_would_refuse_is_refused_first(name: str) -> None:
    with pytest.raises(LabError, match="cannot be the name of a network interface"):
        Bridge(name, IPv4Network("10.77.0.0/24"), IPv4Network("10.78.0.0/24"), "/lab")


def test_a_folder_that_an_overlay_cannot_name_is_refused() -> None:
    with pytest.raises(LabError, match="cannot hold a lab"):
        Lab(Path("/tmp/a:b"))


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    saved = LabState((BOX,), (Bind(Path("/opt/vllm"), Path("/opt/engine")),))
    state.save(tmp_path / "lab.json", saved, "fleetlab0", "10.77.0.0/24", "10.78.0.0/24")
    assert state.load(tmp_path / "lab.json") == saved


def test_no_file_is_no_lab_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    assert state.load(tmp_path / "lab.json") is None
    (tmp_path / "lab.json").write_text('{"boxes": [')
    with pytest.raises(LabError, match=r"lab\.json is damaged"):
        state.load(tmp_path / "lab.json")


def test_a_bind_of_something_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="nowhere in the boxes: it does not exist"):
        state.checked_binds([Bind(tmp_path / "nowhere")])
    with pytest.raises(LabError, match="must be an absolute path, not opt"):
        state.checked_binds([Bind(tmp_path, Path("opt"))])


def test_a_colon_in_a_bind_is_escaped_for_nspawn() -> None:
    assert Bind(Path("/a:b"), Path("/c")).argument == "/a\\:b:/c"


def test_a_boot_file_reads_back_and_binds_are_read_only(tmp_path: Path) -> None:
    boot = Boot("m", "box1", "/r", "fleetlab0", "lab/box1", "/c", ("/opt:/opt",))
    boot.save(tmp_path / "boot.json")
    assert Boot.load(tmp_path / "boot.json") == boot
    assert "--bind-ro=/opt:/opt" in boot.argv()


def test_the_network_script_sets_both_addresses_and_no_default_route() -> None:
    script = furnish.network_script(BOX, IPv4Network("10.77.0.0/24"), IPv4Network("10.78.0.0/24"))
    assert "10.77.0.11/24 dev host0" in script and "10.78.0.11/24 dev host0" in script
    assert "route" not in script


@pytest.mark.parametrize(
    "names",
    [
        ["lab.json", "notes"],
        [".lock", "base", "keys"],  # an `up` that was cut off
        [".lab.json.4711", ".fleet.yaml.4711"],  # killed while it wrote
        [],
    ],
)
def test_a_folder_with_a_lab_in_it_may_be_taken_down(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    folder.refuse_foreign(tmp_path)


def test_a_folder_of_somebody_else_is_no_lab_whatever_it_has_in_it(tmp_path: Path) -> None:
    for name in ("keys", "base", "letters"):
        (tmp_path / name).mkdir()
    with pytest.raises(LabError, match="is not a lab: nothing was removed"):
        folder.refuse_foreign(tmp_path)


def test_only_what_a_lab_makes_is_removed_with_it(tmp_path: Path) -> None:
    for name in ("boxes", "base", "letters"):
        (tmp_path / name / "something").mkdir(parents=True)
    for name in ("lab.json", "fleet.yaml", ".known_hosts.4711", "notes", ".profile", ".lock"):
        (tmp_path / name).touch()
    folder.remove(tmp_path, {tmp_path / "base"})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", ".profile", "base", "letters", "notes"]
