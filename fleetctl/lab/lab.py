"""The lab: boxes under one folder and one bridge, and nothing of it left after ``down``.

Example::

    lab = Lab()
    boxes = lab.up(2, say=print)
    lab.exec("box1", ["systemctl", "is-system-running"])
    lab.down(print)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path

from fleetctl.errors import LabError, SpecError
from fleetctl.lab import cgroup, faults, folder, rootfs, state
from fleetctl.lab.box import Runner
from fleetctl.lab.bridge import Bridge
from fleetctl.lab.furnish import ensure_key, furnish, write_known_hosts
from fleetctl.lab.mounts import mounts_under, unmount_under
from fleetctl.lab.requirements import Say, check_host, install_missing
from fleetctl.lab.state import Bind, Containers, LabBox, LabState

CONTAINERS: tuple[Containers, ...] = ("podman", "docker")
DEFAULT_ROOT = Path("/var/lib/fleetctl-lab")
MOST_BOXES = 40
BOOT_SECONDS = 90.0
STOP_SECONDS = 20.0


def _quiet(_line: str) -> None:
    return None


@dataclass(frozen=True)
class BoxStatus:
    """What a box is doing. ``uptime`` in seconds and ``since`` (epoch seconds) are None when it is off."""

    name: str
    address: str
    running: bool
    ssh_ok: bool
    uptime: float | None
    since: float | None


class Lab:
    """A lab in ``root``. Without a ``bridge`` it has the one it was made with, or the next that is free.

    ``base`` is the folder of the cached base systems; outside ``root`` it survives ``down``. Beside it lie those
    for boxes that run containers. ``packages`` are the Debian packages in the boxes; another list makes another base
    system.
    """

    def __init__(
        self,
        root: Path = DEFAULT_ROOT,
        *,
        bridge: str | None = None,
        subnet: str | None = None,
        link_subnet: str | None = None,
        base: Path | None = None,
        packages: Sequence[str] = rootfs.PACKAGES,
    ) -> None:
        self.root = root.absolute()
        if set(str(self.root)) & set(":,\\ \n"):
            raise LabError(f"{self.root} cannot hold a lab: overlay mounts take no ':', ',', '\\' or space in a path")
        self.base = (base or self.root / "base").absolute()
        self.packages = tuple(packages)
        usual = state.load_network(self._state_file) or state.free_network()
        self.bridge = Bridge(
            bridge or usual.bridge,
            IPv4Network(subnet or usual.subnet),
            IPv4Network(link_subnet or usual.link_subnet),
            str(self.root),
        )

    @property
    def fleet_file(self) -> Path:
        return self.root / "fleet.yaml"

    @property
    def key(self) -> Path:
        return self.root / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    def up(
        self,
        boxes: int | None = None,
        say: Say = _quiet,
        *,
        binds: Sequence[Bind] | None = None,
        containers: Containers = None,
    ) -> list[LabBox]:
        """Bring the lab up with ``boxes`` boxes (default: those it has, or 2) and wait until all answer SSH.

        ``binds`` replaces the read-only binds of every box (boxes that run with others are booted again);
        None keeps what the lab has. ``containers`` is what runs containers in new boxes; None for a lab that has boxes
        keeps what they have. Safe to repeat, also after a restart of the machine or an earlier ``up`` that was killed.
        """
        check_host()
        with self._locked(say):
            before = state.load(self._state_file) or LabState((), ())
            count = boxes if boxes is not None else len(before.boxes) or 2
            if not 1 <= count <= MOST_BOXES:
                raise LabError(f"a lab has 1 to {MOST_BOXES} boxes, not {count}")
            if count < len(before.boxes):
                raise SpecError(
                    f"this lab already has {len(before.boxes)} boxes, and {count} were asked for",
                    hint="To make it smaller: fleetctl lab down, then up.",
                )
            containers = containers or before.containers
            if before.boxes and containers != before.containers:
                raise SpecError(
                    f"the boxes of this lab have {before.containers or 'nothing to run containers with'}, "
                    f"and {containers} was asked for",
                    hint="To change that: fleetctl lab down, then up.",
                )
            wanted = before.binds if binds is None else state.checked_binds(binds)
            install_missing(say)
            base = self._base_system(containers, say)
            after = LabState(tuple(self._box(index) for index in range(1, count + 1)), wanted, containers)
            ensure_key(self.key, "fleetctl-lab")
            for box in after.boxes:
                ensure_key(self._host_key(box), box.name)
            write_known_hosts(self.known_hosts, after.boxes, self.root / "keys")
            self._save(after)
            self.bridge.up()
            runners = [self._runner(box) for box in after.boxes]
            if wanted != before.binds:
                self._stop([runner for runner in runners if runner.leader()], say)
            for runner in runners:
                if runner.leader() is None:
                    self._boot(runner, base, after, say)
                elif runner.cable(runner.leader()):  # none yet: it is booting, and comes up plugged in
                    faults.plug_in(runner)
            for runner in runners:
                runner.wait_ready(BOOT_SECONDS)
                say(f"{runner.box.name} is up at {runner.box.address}")
            return list(after.boxes)

    def down(self, say: Say = _quiet, *, keep_base: bool = False) -> None:
        """Power the boxes off and remove everything the lab made; ``keep_base`` keeps its downloads."""
        check_host()
        if not self.root.exists():
            self.bridge.down()
            return
        folder.refuse_foreign(self.root)
        with self._locked(say):
            runners = [self._runner(replace(self._box(1), name=name)) for name in self._names_on_disk()]
            self._stop(runners, say)
            self.bridge.down()
            self._remove_groups()
            unmount_under(self.root)
            if left := mounts_under(self.root):
                raise LabError(f"still mounted: {', '.join(map(str, left))}; nothing was removed from {self.root}")
            # Engines installed into the lab are large downloads, as the base is.
            bases = {self._base_folder(None), *(self._base_folder(kind) for kind in CONTAINERS)}
            kept = {*bases, self.root / "engines"} if keep_base else set()
            folder.remove(self.root, kept)
            self._lock_file.unlink(missing_ok=True)
        if not any(self.root.iterdir()):
            self.root.rmdir()
        say("the lab is gone" if not keep_base else f"the lab is gone; the downloads in {self.root} are kept")

    def reset(self, names: Sequence[str] | None = None, say: Say = _quiet) -> None:
        """Throw away what the boxes have written and boot them fresh, with the same keys and addresses."""
        check_host()
        with self._locked(say):
            current = self._state()
            runners = [self._runner(self.box(name)) for name in names or [box.name for box in current.boxes]]
            base = self._base_system(current.containers, say)
            self.bridge.up()
            for runner in runners:
                runner.cut_power()
                runner.disk.discard()
                self._boot(runner, base, current, say)
            for runner in runners:
                runner.wait_ready(BOOT_SECONDS)
                say(f"{runner.box.name} is fresh")

    def status(self) -> list[BoxStatus]:
        """The real state of every box, boxes asked in parallel; a silent box costs about a second."""
        boxes = self.boxes()
        if not boxes:
            return []
        with ThreadPoolExecutor(len(boxes)) as pool:
            return list(pool.map(self._status, boxes))

    def boxes(self) -> list[LabBox]:
        """The boxes this lab has, running or not; empty when there is no lab."""
        current = state.load(self._state_file)
        return list(current.boxes) if current else []

    def box(self, name: str) -> LabBox:
        for box in self._state().boxes:
            if box.name == name:
                return box
        names = ", ".join(box.name for box in self.boxes())
        raise SpecError(f"the lab has no box {name}", hint=f"It has: {names}.")

    def reboot(self, name: str) -> None:
        """Reboot the box as ``systemctl reboot`` does, and wait until it is back."""
        runner = self._runner(self.box(name))
        runner.wait_ready(BOOT_SECONDS, other_than=runner.reboot())

    def power_off(self, name: str) -> None:
        """Pull the plug: everything in the box is killed at once. What it wrote stays."""
        self._runner(self.box(name)).cut_power()

    def power_on(self, name: str) -> None:
        """Boot a box that is off, with the disk it had, and wait until it answers."""
        runner = self._runner(self.box(name))
        if runner.leader() is None:
            current = self._state()
            self._boot(runner, self._base_system(current.containers, _quiet), current, _quiet)
        runner.wait_ready(BOOT_SECONDS)

    def vanish(self, name: str) -> None:
        """Pull the box's network cable: packets are lost, nothing is refused. A reboot plugs it in again."""
        faults.unplug(self._runner(self.box(name)))

    def reappear(self, name: str) -> None:
        faults.plug_in(self._runner(self.box(name)))

    def limit_disk(self, name: str, path: str, size_bytes: int) -> None:
        """Give ``path`` in the box a file system of its own of ``size_bytes``, with what is in it now."""
        faults.limit_disk(self._runner(self.box(name)), path, size_bytes)

    def unlimit_disk(self, name: str, path: str) -> None:
        """Take the small file system away again; what was written to it stays at ``path``."""
        faults.unlimit_disk(self._runner(self.box(name)), path)

    def exec(self, name: str, argv: Sequence[str], input: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` as root inside the box without SSH; the output is text, and no status is an error."""
        return self._runner(self.box(name)).exec(argv, input)

    def copy_in(self, name: str, source: Path, path: str) -> None:
        """Put a file of this machine onto the disk of a box (not under /run or /tmp: those are not on its disk)."""
        target = self._runner(self.box(name)).disk.rootfs / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

    def copy_out(self, name: str, path: str, target: Path) -> None:
        """Take a file from the disk of a box to this machine."""
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(self._runner(self.box(name)).disk.rootfs / path.lstrip("/"), partial)
        partial.replace(target)

    @property
    def containers(self) -> Containers:
        """What runs containers in the boxes of this lab."""
        current = state.load(self._state_file)
        return current.containers if current is not None else None

    def base_system(self) -> Path:
        """The root file system that the boxes of this lab begin with."""
        return self._base_system(self.containers, _quiet)

    def network(self, name: str) -> Path:
        """The network namespace of a running box, for a program of this machine that is to have the box's addresses."""
        return Path(f"/proc/{self._runner(self.box(name)).running_leader()}/ns/net")

    def ssh_argv(self, name: str, user: str = "fleet") -> list[str]:
        """The command line that logs in to the box; add a command, or exec it as it is."""
        box = self.box(name)
        options = {
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(box.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
        }
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return ["ssh", "-F", "/dev/null", "-i", str(box.key), *flags, f"{user}@{box.address}"]

    # -- how it is done --------------------------------------------------------------------------------------

    @property
    def _state_file(self) -> Path:
        return self.root / folder.STATE

    @property
    def _lock_file(self) -> Path:
        return self.root / folder.LOCK

    def _base_folder(self, containers: Containers) -> Path:
        return self.base.with_name(f"{self.base.name}-{containers}") if containers else self.base

    def _base_system(self, containers: Containers, say: Say) -> Path:
        more = rootfs.CONTAINERS[containers] if containers else ()
        return rootfs.ensure(self._base_folder(containers), say, (*self.packages, *more))

    def _state(self) -> LabState:
        current = state.load(self._state_file)
        if current is None:
            raise LabError(f"there is no lab in {self.root}", hint="Make one: fleetctl lab up")
        return current

    def _save(self, new: LabState) -> None:
        state.save(self._state_file, new, self.bridge.name, str(self.bridge.subnet), str(self.bridge.link_subnet))

    def _box(self, index: int) -> LabBox:
        return LabBox(
            name=f"box{index}",
            address=str(self.bridge.box_address(index)),
            link_address=str(self.bridge.link_address(index)),
            user="fleet",
            key=self.key,
            known_hosts=self.known_hosts,
        )

    def _host_key(self, box: LabBox) -> Path:
        return self.root / "keys" / box.name / "ssh_host_ed25519_key"

    def _runner(self, box: LabBox) -> Runner:
        return Runner(box, self.root / "boxes" / box.name, self.bridge.name)

    def _boot(self, runner: Runner, base: Path, current: LabState, say: Say) -> None:
        # A start that was cut off, or a supervisor between two boots, must not meet the new one.
        runner.cut_power()
        runner.disk.ready(base, say)
        subnets = (self.bridge.subnet, self.bridge.link_subnet)
        furnish(runner.disk.rootfs, runner.box, current.boxes, self._host_key(runner.box), *subnets)
        runner.start([bind.argument for bind in current.binds], keyrings=current.containers is not None)

    def _stop(self, runners: Sequence[Runner], say: Say) -> None:
        for runner in runners:
            runner.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for runner in runners:
            if not runner.wait_stopped(max(0.0, deadline - time.monotonic())):
                say(f"{runner.box.name} does not power off: cutting its power")
            runner.cut_power()

    def _status(self, box: LabBox) -> BoxStatus:
        runner = self._runner(box)
        since = runner.booted_at()
        running = since is not None
        return BoxStatus(
            name=box.name,
            address=box.address,
            running=running,
            ssh_ok=running and runner.ssh_answers(1.0),
            uptime=None if since is None else time.time() - since,
            since=since,
        )

    def _names_on_disk(self) -> list[str]:
        """Every box there is a folder for: more than lab.json knows when ``up`` was cut off."""
        boxes = self.root / "boxes"
        return sorted(entry.name for entry in boxes.iterdir()) if boxes.is_dir() else []

    def _remove_groups(self) -> None:
        group = cgroup.Group.at(f"{cgroup.TOP}/{self.bridge.name}")
        group.kill()
        group.remove()
        for top in cgroup.Group.at(cgroup.TOP).folders:
            # Another lab's groups may still be in there.
            if top.is_dir() and not any(entry.is_dir() for entry in top.iterdir()):
                top.rmdir()

    @contextmanager
    def _locked(self, say: Say) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self._lock_file, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another command is changing this lab: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not os.path.samestat(os.fstat(lock.fileno()), self._lock_file.stat()):
                    raise LabError("the lab was taken down meanwhile", hint="Run the command again.") from None
            yield
