"""What the lab asks of the host, and how it says what is missing. Nothing here starts a box."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fleetctl.errors import LabError
from fleetctl.lab import cgroup, requirements, rootfs
from fleetctl.lab.disk import Disk


def test_only_the_packages_of_missing_commands_are_named_each_once() -> None:
    there = {"ip": "/usr/sbin/ip", "mount": "/bin/mount", "nsenter": "/usr/bin/nsenter"}
    assert requirements.missing_packages(there.get, lambda path: True) == [
        "mmdebstrap",
        "openssh-client",
        "systemd-container",
    ]


def test_a_host_without_debians_keys_is_asked_for_them() -> None:
    assert requirements.missing_packages(lambda name: name, lambda path: False) == ["debian-archive-keyring"]


def test_a_user_who_is_not_root_is_told_to_use_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"(?s)needs root.*uid 1000.*sudo"):
        requirements.check_host()


def test_another_system_than_linux_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(LabError, match="needs Linux, and this is Darwin"):
        requirements.check_host()


def test_without_apt_the_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(requirements, "missing_packages", lambda: ["mmdebstrap", "systemd-container"])
    with pytest.raises(LabError, match="no apt-get to install them: mmdebstrap systemd-container"):
        requirements.install_missing(lambda line: None)


def test_every_kind_of_hierarchy_under_sys_fs_cgroup_is_found() -> None:
    mounts = (
        "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
        "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
        "cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        "cgroup2 /elsewhere cgroup2 rw 0 0\n"
    )
    found = cgroup.hierarchies(mounts)
    assert [(one.mount.name, one.unified) for one in found] == [
        ("cpu,cpuacct", False),
        ("systemd", False),
        ("unified", True),
    ]
    assert cgroup.Group("lab/box1", tuple(found)).tracked == Path("/sys/fs/cgroup/unified/lab/box1")


def test_a_pure_version_2_host_has_one_hierarchy() -> None:
    found = cgroup.hierarchies("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    assert found == [cgroup.Hierarchy(Path("/sys/fs/cgroup"), True)]


def test_a_host_without_control_groups_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "hierarchies", list)
    with pytest.raises(LabError, match="no control-group hierarchy"):
        cgroup.Group.at("lab")


def test_the_base_has_another_name_when_its_packages_change_but_not_their_order() -> None:
    assert rootfs.digest(["a", "b"]) == rootfs.digest(["b", "a"])
    assert rootfs.digest(["a", "b"]) != rootfs.digest(["a", "b", "c"])


@pytest.mark.parametrize(("kind", "file"), [("podman", "storage.conf"), ("docker", "daemon.json")])
def test_only_boxes_that_run_containers_have_what_those_need(kind: str, file: str) -> None:
    plain = rootfs.files_for(rootfs.PACKAGES)
    more = rootfs.files_for((*rootfs.PACKAGES, *rootfs.CONTAINERS[kind]))
    assert {name.rpartition("/")[2] for name in more.keys() - plain.keys()} == {file}


def test_a_complete_base_is_used_and_an_interrupted_build_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bootstrap(target: Path, packages: object) -> None:
        target.mkdir()
        if fail:
            raise LabError("the network went away")

    monkeypatch.setattr(rootfs, "_bootstrap", bootstrap)
    monkeypatch.setattr(rootfs, "_furnish", lambda target, files: None)
    (tmp_path / "partial-1").mkdir()  # what a build that was killed leaves
    fail = True
    with pytest.raises(LabError, match="went away"):
        rootfs.ensure(tmp_path, lambda line: None)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == []
    fail = False
    said: list[str] = []
    built = rootfs.ensure(tmp_path, said.append)
    assert built.is_dir() and len(said) == 2
    assert rootfs.ensure(tmp_path, said.append) == built and len(said) == 2


def test_where_overlays_are_refused_the_base_is_copied_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "file").write_text("base\n")
    refuse = subprocess.CompletedProcess([], 32, "", "wrong fs type")
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda argv, **how: refuse if argv[0] == "mount" else real(argv, **how))
    said: list[str] = []
    disk = Disk(tmp_path / "box1")
    disk.ready(base, said.append)
    (disk.rootfs / "file").write_text("changed\n")
    disk.ready(base, said.append)
    assert (disk.rootfs / "file").read_text() == "changed\n"
    assert said == [f"overlay mount refused (wrong fs type): copying the base to {disk.rootfs} instead"]
    disk.discard()
    assert not disk.rootfs.exists() and (base / "file").read_text() == "base\n"
