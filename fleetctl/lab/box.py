"""One box of the lab as something that runs: start, stop, pull the plug, look inside."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import fleetctl
from fleetctl.errors import LabError
from fleetctl.lab import cgroup
from fleetctl.lab.bridge import host_end, interface_exists
from fleetctl.lab.cgroup import Group, wait_for
from fleetctl.lab.disk import Disk
from fleetctl.lab.state import LabBox
from fleetctl.lab.supervise import Boot

_ENTER = (
    'leader=$1; shift; while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; '
    'exec nsenter --target "$leader" --mount --uts --ipc --net --pid --cgroup -- "$@"'
)
_INSIDE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "SYSTEMD_PAGER": "",
}
# systemd's PID 1 takes these as "reboot.target now" (systemd(1), SIGRTMIN+5).
CABLE_SECONDS = 30.0  # that the kernel may take to remove the network of a box, after a busy one longer
_REBOOT_SIGNAL = signal.SIGRTMIN + 5


@dataclass(frozen=True)
class Runner:
    """What runs (or does not) behind ``box``; everything is read from the kernel, nothing is remembered."""

    box: LabBox
    folder: Path
    bridge: str

    @property
    def disk(self) -> Disk:
        return Disk(self.folder)

    @property
    def machine(self) -> str:
        return f"{self.bridge}-{self.box.name}"

    @property
    def unit(self) -> str:
        return f"fleetctl-lab-{self.machine}.service"

    @property
    def group(self) -> Group:
        return Group.at(
            f"system.slice/{self.unit}" if _host_runs_systemd() else f"{cgroup.TOP}/{self.bridge}/{self.box.name}"
        )

    def leader(self) -> int | None:
        """The box's PID 1 as the host numbers it; None when the box is not running."""
        for pid in self.group.child("boot").pids():
            with suppress(OSError, StopIteration, ValueError):
                status = Path(f"/proc/{pid}/status").read_text()
                ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
                if len(ids) > 1 and ids[-1] == "1":
                    return pid
        return None

    def booted_at(self) -> float | None:
        """When the running box was booted, in seconds since the epoch."""
        leader = self.leader()
        if leader is None:
            return None
        with suppress(OSError):
            ticks = int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[19])
            up = time.clock_gettime(time.CLOCK_BOOTTIME)
            return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
        return None

    def start(self, binds: Sequence[str], *, keyrings: bool = False) -> None:
        """Boot the box; returns at once. Its disk must be ready. Containers want the kernel's ``keyrings``."""
        self.group.create()
        boot = Boot(
            machine=self.machine,
            hostname=self.box.name,
            rootfs=str(self.disk.rootfs),
            bridge=self.bridge,
            group=self.group.path,
            console=str(self.folder / "console.log"),
            binds=tuple(binds),
            keyrings=keyrings,
        )
        boot_file = self.folder / "boot.json"
        boot.save(boot_file)
        module = [sys.executable, "-m", "fleetctl.lab.supervise", str(boot_file)]
        # The package may run from a checkout that is not on the interpreter's own path.
        env = {
            **os.environ,
            "PYTHONPATH": str(Path(fleetctl.__file__).parent.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if _host_runs_systemd():
            # Started from a login session, a box must not end with it; a service of its own does not.
            module = [
                "systemd-run",
                "--quiet",
                "--collect",
                f"--unit={self.unit}",
                "--property=Delegate=yes",
                "--property=KillMode=mixed",
                "--property=TasksMax=infinity",
                f"--setenv=PYTHONPATH={env['PYTHONPATH']}",
                "--",
                *module,
                "--foreground",
            ]
        log = self.folder / "supervise.log"
        with open(log, "ab") as output:
            status = subprocess.run(
                module,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd="/",
                start_new_session=True,
                check=False,
            ).returncode
        if status != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise LabError(f"{self.box.name}: could not be started (exit {status}): {tail}")

    def wait_ready(self, seconds: float, other_than: int | None = None) -> None:
        """Until the box has finished booting and SSH answers.

        ``other_than`` is the PID 1 of a boot that is about to end. LabError with the console's last lines
        when the time runs out or the box stops.
        """
        deadline = time.monotonic() + seconds
        while True:
            leader = self.leader()
            if leader is not None and leader != other_than and self.ssh_answers(1.0) and self._booted():
                return
            if not self.group.pids():
                raise LabError(f"{self.box.name}: ended while booting\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise LabError(
                    f"{self.box.name}: not ready {seconds:.0f} s after it was started\n{self._last_words()}",
                    hint=f"Its console is in {self.folder / 'console.log'}.",
                )
            time.sleep(0.05)

    def _booted(self) -> bool:
        """Not is-system-running: an engine that is enabled keeps that at "starting" for as long as it loads."""
        return self.exec(["systemctl", "is-active", "multi-user.target"]).stdout.strip() == "active"

    def ssh_answers(self, seconds: float) -> bool:
        """Whether the box's SSH port greets within ``seconds``."""
        try:
            with socket.create_connection((self.box.address, 22), timeout=seconds) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def ask_to_stop(self) -> None:
        """Begin a clean power-off; returns at once."""
        leader = self.leader()
        for pid in self.group.child("supervise").pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                return
        if leader is not None:  # its supervisor was killed: ask the box itself
            with suppress(ProcessLookupError):
                os.kill(leader, signal.SIGRTMIN + 4)

    def wait_stopped(self, seconds: float) -> bool:
        group = self.group
        return wait_for(lambda: not group.pids(), seconds)

    def cut_power(self) -> None:
        """SIGKILL to everything in the box at once, and no trace of it left in the kernel."""
        self.group.kill()
        if _host_runs_systemd():
            # Returns when systemd has let go of the name, which the next boot needs.
            subprocess.run(["systemctl", "stop", self.unit], capture_output=True, check=False)
        # The kernel removes the cable a moment after the last process; the next boot needs its name.
        wait_for(lambda: not interface_exists(f"vb-{self.machine}"), CABLE_SECONDS)
        self.group.remove()
        self._forget_locks()

    def reboot(self) -> int:
        """Ask the box to reboot; the PID 1 that is going away."""
        leader = self.running_leader()
        os.kill(leader, _REBOOT_SIGNAL)
        return leader

    def running_leader(self) -> int:
        leader = self.leader()
        if leader is None:
            raise LabError(f"{self.box.name}: is not running", hint="Start it: fleetctl lab up")
        return leader

    def cable(self, leader: int | None) -> str | None:
        """The host's end of the box's network cable."""
        return host_end(leader) if leader is not None else None

    def exec(self, argv: Sequence[str], input: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` as root inside the box, in its control group, without SSH."""
        leader = self.running_leader()
        try:
            groups = [str(path) for path in cgroup.of_process(leader)]
        except OSError:
            raise LabError(f"{self.box.name}: went away while `{argv[0]}` was to be run in it") from None
        return subprocess.run(
            ["sh", "-c", _ENTER, "sh", str(leader), *groups, "--", *argv],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            env=_INSIDE_ENV,
            check=False,
        )

    def _last_words(self) -> str:
        try:
            return "\n".join((self.folder / "console.log").read_text(errors="replace").splitlines()[-8:])
        except OSError:
            return ""

    def _forget_locks(self) -> None:
        """systemd-nspawn cannot tidy up after itself when it is killed."""
        nspawn = Path("/run/systemd/nspawn")
        with suppress(OSError):
            (nspawn / "propagate" / self.machine).rmdir()
        with suppress(OSError):
            there = self.disk.rootfs.stat()
            (nspawn / "locks" / f"inode-{there.st_dev}:{there.st_ino}").unlink()
        (self.folder / f".#{self.disk.rootfs.name}.lck").unlink(missing_ok=True)


def _host_runs_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()
