"""The process behind one box: boots it, boots it again when it reboots itself, ends when it powers off.

Run as ``python -m fleetctl.lab.supervise BOOT_FILE``. It outlives the command that started it and holds none
of that command's files or its terminal. SIGTERM asks the box to power off cleanly.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from fleetctl.errors import LabError
from fleetctl.lab.cgroup import Group
from fleetctl.lab.state import write_whole

# What systemd-nspawn exits with when the system inside has called reboot(2).
REBOOT_STATUS = 133


@dataclass(frozen=True)
class Boot:
    """How to boot one box. ``group`` is the path of its control group in each hierarchy.

    ``keyrings``: what runs in it may use bpf() and make keyrings, as runc and crun do for every container.
    """

    machine: str
    hostname: str
    rootfs: str
    bridge: str
    group: str
    console: str
    binds: tuple[str, ...]
    keyrings: bool = False

    def save(self, path: Path) -> None:
        write_whole(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Boot:
        fields = json.loads(path.read_text())
        return cls(**{**fields, "binds": tuple(fields["binds"])})

    def argv(self) -> list[str]:
        return [
            "systemd-nspawn",
            "--quiet",
            f"--directory={self.rootfs}",
            f"--machine={self.machine}",
            f"--hostname={self.hostname}",
            f"--network-bridge={self.bridge}",
            # The host may not run systemd, so there may be no machined to register with.
            "--register=no",
            "--keep-unit",
            # nftables, keepalived and container engines set up networks, mounts and namespaces of their own.
            # The lab keeps mistakes apart; it is no wall against what runs in a box.
            "--capability=all",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
            "--console=read-only",
            *(f"--bind-ro={bind}" for bind in self.binds),
            *(["--system-call-filter=@keyring bpf"] if self.keyrings else []),
            "--boot",
        ]


def environment(group: Group) -> dict[str, str]:
    """Environment of systemd-nspawn: a box sees version 2 control groups, as Debian 12 on metal does."""
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    if any(hierarchy.unified for hierarchy in group.hierarchies):
        env["UNIFIED_CGROUP_HIERARCHY"] = "1"
    return env


class Supervisor:
    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._group = Group.at(boot.group)
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def settle(self) -> None:
        """Take a place beside the box's own group: version 2 allows none above groups with controllers."""
        place = self._group.child("supervise")
        place.create()
        place.enter()
        self._group.delegate()

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while not self._stopping:
            status = self._boot_once()
            if status != REBOOT_STATUS:
                return status
        return 0

    def _boot_once(self) -> int:
        group = self._group.child("boot")
        group.kill()
        group.remove()
        group.create()
        with open(self._boot.console, "wb") as console:
            self._child = subprocess.Popen(
                self._boot.argv(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=environment(group),
                preexec_fn=group.enter,
            )
        if self._stopping:  # the request came while the child was being made
            self._child.terminate()
        status = self._child.wait()
        group.kill()
        group.remove()
        return status

    def _on_term(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()  # systemd-nspawn turns it into a clean power-off


def detach() -> None:
    """Leave the caller: own session, no terminal. The parent exits, so nobody has to wait for this one."""
    if os.fork():
        os._exit(0)
    os.setsid()


def main(argv: Sequence[str]) -> int:
    boot = Boot.load(Path(argv[0]))
    supervisor = Supervisor(boot)
    try:
        supervisor.settle()
    except (LabError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if "--foreground" not in argv:
        detach()
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
