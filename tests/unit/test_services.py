"""What services take of a box's memory: read from control groups and /proc, kept by the guard at its worst."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fleetctl.guard.uses import MOST, Uses
from fleetctl.onbox.days import DAYS, kept_days
from fleetctl.onbox.others import merged
from fleetctl.onbox.services import Services, Use, memory_group

MIB = 2**20
CONTAINER = "ab" * 32


class Tree:
    """A box's /proc and /sys/fs/cgroup as files; ``version`` is that of its memory controller (0: it has none)."""

    def __init__(self, root: Path, version: int, own: str = "") -> None:
        self.root, self.version = root, version
        self._groups = root / "sys/fs/cgroup" / ("" if version == 2 else "memory") / own.lstrip("/")
        self._pid = 1
        (root / "proc/1").mkdir(parents=True)
        line = f"0::{own}/init.scope\n" if version == 2 else f"4:memory:{own}\n1:name=systemd:{own}/init.scope\n"
        (root / "proc/1/cgroup").write_text(line)
        if version:
            (self._groups / "system.slice").mkdir(parents=True)
        if version == 2:
            (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory pids\n")

    def group(self, path: str, use: int, cache: int, command: str = "postgres", environment: str = "") -> None:
        """A group with one process; ``use`` has the page cache in it, as the kernel charges it."""
        folder, self._pid = self._groups / path, self._pid + 1
        folder.mkdir(parents=True, exist_ok=True)
        current, peak = (
            ("memory.current", "memory.peak")
            if self.version == 2
            else ("memory.usage_in_bytes", "memory.max_usage_in_bytes")
        )
        (folder / current).write_text(f"{use}\n")
        (folder / peak).write_text(f"{use + MIB}\n")
        prefix = "" if self.version == 2 else "total_"
        (folder / "memory.stat").write_text(f"{prefix}active_file {cache // 2}\n{prefix}inactive_file {cache // 2}\n")
        (folder / "cgroup.procs").write_text(f"{self._pid}\n")
        self.process(self._pid, f"/{path}", command, environment)

    def process(self, pid: int, group: str, command: str, environment: str = "", use: int = 0, shared: int = 0) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"1:name=systemd:{group}\n0::{group}\n")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode())
        (folder / "environ").write_bytes(environment.encode())
        (folder / "status").write_text(
            f"Name: x\nRssAnon: {use // 1024} kB\nRssFile: 9 kB\nRssShmem: {shared // 1024} kB\n"
        )


def sizes(tree: Tree) -> dict[str, int]:
    return {name: use.now // MIB for name, use in Services(str(tree.root)).look().items()}


@pytest.mark.parametrize(("version", "own"), [(2, ""), (1, ""), (1, "/lab/box1"), (2, "/lab/box1")])
def test_a_service_takes_what_is_charged_to_it_without_the_page_cache(tmp_path: Path, version: int, own: str) -> None:
    tree = Tree(tmp_path, version, own)
    tree.group("system.slice/system-postgresql.slice/postgresql@15-main.service", 700 * MIB, 200 * MIB)
    tree.group("user.slice", 90 * MIB, 40 * MIB)
    tree.group("system.slice/cron.service/below", 5 * MIB, 0)
    tree.group("system.slice/cron.service", 5 * MIB, 0)
    assert sizes(tree) == {"postgresql@15-main.service": 500, "user.slice": 50, "cron.service": 5}
    uses = Services(str(tmp_path)).look()
    assert uses["cron.service"].peak == 6 * MIB


def test_engines_of_fleetctl_are_no_services_and_others_are_told_apart(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    tree.group("system.slice/fleetctl-replicas-qwen.service", 900 * MIB, 0, "vllm serve", "A=1\0FLEETCTL_ENGINE=x")
    tree.group("system.slice/fleetctl-split-qwen.service", 900 * MIB, 0, "title that hides the environment")
    tree.group(f"system.slice/docker-{CONTAINER}.scope", 900 * MIB, 0, "docker-init", "FLEETCTL_ENGINE=x")
    tree.group("system.slice/old.service", 300 * MIB, 0, "/opt/vllm/bin/python /opt/vllm/bin/vllm serve")
    tree.group("system.slice/fleetctl-proxy.service", 40 * MIB, 0, "haproxy")
    uses = Services(str(tmp_path)).look()
    assert {name: (use.now // MIB, use.engine) for name, use in uses.items()} == {
        "old.service": (300, True),
        "fleetctl-proxy.service": (40, False),
    }


def test_containers_have_the_names_that_docker_and_podman_gave_them(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    other, third = "cd" * 32, "ef" * 32
    tree.group(f"system.slice/docker-{CONTAINER}.scope", 30 * MIB, 0)
    tree.group(f"machine.slice/libpod-{other}.scope", 20 * MIB, 0)
    tree.group(f"docker/{third}", 10 * MIB, 0)
    config = tmp_path / f"var/lib/docker/containers/{CONTAINER}/config.v2.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"Name": "/gitlab"}))
    podman = tmp_path / "var/lib/containers/storage/overlay-containers/containers.json"
    podman.parent.mkdir(parents=True)
    podman.write_text(json.dumps([{"id": other, "names": ["wiki"]}]))
    assert sizes(tree) == {"container gitlab": 30, "container wiki": 20, f"container {third[:12]}": 10}


def test_without_groups_for_memory_processes_are_summed_up_and_shared_memory_counts_once(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 0)
    assert memory_group(str(tmp_path)) is None
    tree.process(10, "/system.slice/postgresql.service", "postgres", use=100 * MIB, shared=64 * MIB)
    tree.process(11, "/system.slice/postgresql.service", "postgres", use=50 * MIB, shared=64 * MIB)
    tree.process(12, "/system.slice/fleetctl-a-b.service", "python3", "FLEETCTL_ENGINE=x", use=900 * MIB)
    tree.process(13, "/user.slice/user-0.slice/session-1.scope", "bash", use=3 * MIB)
    tree.process(14, "/user.slice/user-0.slice/session-2.scope", "bash", use=4 * MIB)
    assert sizes(tree) == {"postgresql.service": 214, "user.slice": 7}


def test_what_is_damaged_or_ends_meanwhile_is_not_there(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    tree.group("system.slice/gone.service", 30 * MIB, 0)
    (tmp_path / "sys/fs/cgroup/system.slice/gone.service/memory.stat").write_text("nonsense")
    (tmp_path / "proc/99").mkdir()
    assert sizes(tree) == {}
    assert Services(str(tmp_path / "nowhere")).look() == {}


def test_the_worst_of_each_and_of_all_at_one_time_is_kept_by_the_day(tmp_path: Path) -> None:
    path, day = str(tmp_path / "services.json"), time.time() - 3 * 86400
    uses = Uses(path)
    uses.see({"a": Use(500), "b": Use(10)}, 1000, day, 5.0)
    uses.see({"a": Use(100), "b": Use(300), "old": Use(9000, None, True)}, 800, day + 5, 5.0)
    uses.save(day + 6)
    again = Uses(path)  # a guard that is started anew goes on
    again.see({"a": Use(200), "b": Use(250)}, 900, day + 86400, 5.0)
    again.save(day + 86401)
    found = merged(kept_days(path, time.time()), {"c": Use(1, 7)})
    assert found["services"] == {"a": 500, "b": 300, "c": 1}
    assert (found["together"], found["total"], found["lowest"], found["measured"]) == (510, 801, 800, 15)
    assert found["foreign"] == {"old": 9000} and found["since"] == round(day) and found["peak"] == 7


def test_the_notes_stay_small_and_old_days_are_forgotten(tmp_path: Path) -> None:
    path, now = str(tmp_path / "services.json"), time.time()
    uses = Uses(path)
    for age in range(40, -1, -1):
        many = {f"run-{age}-{number}.service-with-a-long-name.scope": Use(number) for number in range(300)}
        uses.see(many, 1, now - age * 86400, 5.0)
    uses.save(now)
    days = kept_days(path, now)
    assert len(days) <= DAYS and all(len(day["services"]) == MOST for day in days)
    assert Path(path).stat().st_size < 128 * 1024


@pytest.mark.parametrize("text", ["", "{", "[]", '{"days": 3}', '{"days": [{}]}', '{"days": [{"day": 1}]}', "null"])
def test_damaged_notes_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "services.json").write_text(text)
    assert kept_days(str(tmp_path / "services.json"), time.time()) == []
