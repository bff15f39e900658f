"""A control group of its own for each box, in every hierarchy the host has.

Boxes that share control groups are not apart: stopping a unit in one kills processes of the other. So each
boot of a box begins in fresh groups, and the groups are also how the lab knows which processes are a box's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import LabError

TOP = "fleetctl-lab"


@dataclass(frozen=True)
class Hierarchy:
    """One mounted control-group hierarchy. ``unified`` is version 2; the others are version 1."""

    mount: Path
    unified: bool


def hierarchies(mounts: str | None = None) -> list[Hierarchy]:
    """The hierarchies mounted under /sys/fs/cgroup, from the text of /proc/self/mounts."""
    text = Path("/proc/self/mounts").read_text(errors="replace") if mounts is None else mounts
    found: dict[Path, Hierarchy] = {}
    for line in text.splitlines():
        _, point, kind, *_ = line.split(" ")
        if kind in ("cgroup", "cgroup2") and (point + "/").startswith("/sys/fs/cgroup/"):
            found[Path(point)] = Hierarchy(Path(point), kind == "cgroup2")
    return list(found.values())


@dataclass(frozen=True)
class Group:
    """The same relative path in every hierarchy, treated as one group."""

    path: str
    hierarchies: tuple[Hierarchy, ...]

    @classmethod
    def at(cls, path: str) -> Group:
        """The group at ``path`` on this host; LabError where control groups cannot be used."""
        found = tuple(hierarchies())
        if not found:
            raise LabError(
                "no control-group hierarchy is mounted under /sys/fs/cgroup",
                hint="In a container: start it with --privileged --cgroupns=host, or use a virtual machine.",
            )
        return cls(path, found)

    def child(self, name: str) -> Group:
        return Group(f"{self.path}/{name}", self.hierarchies)

    @property
    def folders(self) -> list[Path]:
        return [hierarchy.mount / self.path for hierarchy in self.hierarchies]

    @property
    def tracked(self) -> Path:
        """The folder that says which processes belong here: version 2 where there is one."""
        best = max(self.hierarchies, key=lambda one: (one.unified, one.mount.name == "systemd"))
        return best.mount / self.path

    def create(self) -> None:
        for hierarchy in self.hierarchies:
            folder = hierarchy.mount / self.path
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _inherit_cpuset(hierarchy.mount, self.path)
            except OSError as error:
                raise LabError(
                    f"cannot make the control group {folder}: {error.strerror}",
                    hint="The lab needs /sys/fs/cgroup writable: run it as root, not in a plain container.",
                ) from error

    def enter(self) -> None:
        """Move the calling process into the group."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def delegate(self) -> None:
        """Let children have the controllers that this group has, so that limits inside a box can work."""
        for hierarchy in self.hierarchies:
            folder = hierarchy.mount / self.path
            if not hierarchy.unified:
                continue
            for controller in (folder / "cgroup.controllers").read_text().split():
                # A controller the kernel will not pass on is one the box does without.
                with contextlib.suppress(OSError):
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")

    def pids(self) -> list[int]:
        """Processes in the group and in the groups below it."""
        found: list[int] = []
        for folder in _tree(self.tracked):
            with contextlib.suppress(OSError):
                found += [int(word) for word in (folder / "cgroup.procs").read_text().split()]
        return found

    def kill(self) -> None:
        """SIGKILL to everything in the group at once; returns when nothing is left (LabError after 10 s)."""
        switch = self.tracked / "cgroup.kill"

        def strike() -> bool:
            if not (pids := self.pids()):
                return True
            if switch.exists():
                switch.write_text("1")
            else:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            return False

        if not wait_for(strike, 10.0):
            raise LabError(f"processes survive SIGKILL in {self.tracked}: {self.pids()}")

    def remove(self) -> None:
        """Remove the group and the groups below it, in every hierarchy. They must hold no process."""

        def gone() -> bool:
            for folder in self.folders:
                for inner in reversed(_tree(folder)):
                    with contextlib.suppress(OSError):
                        inner.rmdir()
            return not any(folder.exists() for folder in self.folders)

        if not wait_for(gone, 10.0):
            left = [str(folder) for folder in self.folders if folder.exists()]
            raise LabError(f"control groups cannot be removed: {', '.join(left)}")


def of_process(pid: int) -> list[Path]:
    """The cgroup.procs files of the groups that ``pid`` is in, one per hierarchy."""
    text = Path(f"/proc/{pid}/cgroup").read_text()
    found = []
    for hierarchy in hierarchies():
        for line in text.splitlines():
            _, controllers, path = line.split(":", 2)
            name = hierarchy.mount.name
            if (hierarchy.unified and not controllers) or (
                not hierarchy.unified and controllers.removeprefix("name=") in (name, *_aliases(name))
            ):
                found.append(hierarchy.mount / path.lstrip("/") / "cgroup.procs")
    return found


def wait_for(condition: Callable[[], bool], seconds: float, pause: float = 0.02) -> bool:
    """Whether ``condition`` became true within ``seconds``; it is tried every ``pause`` seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def _aliases(name: str) -> tuple[str, ...]:
    """Controllers mounted together appear in either order (cpu,cpuacct)."""
    return (",".join(reversed(name.split(","))),)


def _tree(folder: Path) -> list[Path]:
    """``folder`` and all folders below it, parents first; empty when it is not there."""
    return [Path(where) for where, _, _ in os.walk(folder)] if folder.is_dir() else []


def _inherit_cpuset(mount: Path, path: str) -> None:
    """A new version 1 cpuset is empty and takes no process until it has CPUs and memory nodes."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        folder = mount
        if not (folder / name).exists() or (folder / "cgroup.controllers").exists():
            return
        for part in path.split("/"):
            value = (folder / name).read_text()
            folder = folder / part
            if not (folder / name).read_text().strip():
                (folder / name).write_text(value)
