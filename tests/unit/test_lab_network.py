"""A lab keeps the network it was made with, and labs in other folders do not meet."""

import os
from pathlib import Path

import pytest

from fleetctl.lab.engines import _write_fleet_file
from fleetctl.lab.lab import Lab
from fleetctl.lab.state import LabState, free_network, save


def test_a_lab_that_exists_keeps_its_network(tmp_path: Path) -> None:
    save(tmp_path / "lab.json", LabState((), ()), "fleetother0", "10.77.99.0/24", "10.78.99.0/24")
    lab = Lab(tmp_path)
    assert (lab.bridge.name, str(lab.bridge.subnet)) == ("fleetother0", "10.77.99.0/24")


def test_a_new_lab_gets_a_bridge_that_is_not_there_yet(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.bridge.name == free_network().bridge
    assert not (Path("/sys/class/net") / lab.bridge.name).exists()


def test_what_is_named_wins(tmp_path: Path) -> None:
    lab = Lab(tmp_path, bridge="mine0", subnet="10.77.98.0/24", link_subnet="10.78.98.0/24")
    assert (lab.bridge.name, str(lab.bridge.link_subnet)) == ("mine0", "10.78.98.0/24")


@pytest.mark.skipif(os.geteuid() != 0, reason="a lab's folder is root's")
def test_an_edited_fleet_file_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    lab, said = Lab(tmp_path), list[str]()
    _write_fleet_file(lab, "first\n", said.append)
    _write_fleet_file(lab, "second\n", said.append)
    assert lab.fleet_file.read_text() == "second\n"
    lab.fleet_file.write_text("mine\n")
    _write_fleet_file(lab, "third\n", said.append)
    assert lab.fleet_file.read_text() == "mine\n"
    assert len(said) == 1 and "was edited" in said[0]
