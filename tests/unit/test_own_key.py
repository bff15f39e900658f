"""Which key of the operator a box is given."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fleetctl.run.own_key import make_key, own_keys
from fleetctl.run.setting_up import fleet_of_hosts
from fleetctl.spec.fleet import Fleet, Ssh


def _fleet(key: Path) -> Fleet:
    fleet = fleet_of_hosts(["ops@spark1"])
    box = fleet.boxes["spark1"].model_copy(update={"ssh": Ssh(user="ops", key=str(key))})
    return fleet.model_copy(update={"boxes": {"spark1": box}})


def test_the_public_half_of_the_boxs_own_key_is_given(tmp_path: Path) -> None:
    key = tmp_path / "keys" / "id"
    make_key(key, ask=False)
    line = (tmp_path / "keys" / "id.pub").read_text().strip()
    assert own_keys(_fleet(key), ["spark1"], None) == {"spark1": line}


def test_a_private_key_alone_is_enough_where_it_has_no_passphrase(tmp_path: Path) -> None:
    key = tmp_path / "id"
    make_key(key, ask=False)
    public = (tmp_path / "id.pub").read_text().split()[:2]
    (tmp_path / "id.pub").unlink()
    assert own_keys(_fleet(key), ["spark1"], None)["spark1"].split()[:2] == public


def test_no_key_is_no_key(tmp_path: Path) -> None:
    assert own_keys(_fleet(tmp_path / "none"), ["spark1"], None) == {}
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    (tmp_path / "locked.pub").unlink()
    assert own_keys(_fleet(locked), ["spark1"], None) == {}
