"""The base file system of every box: built once with mmdebstrap, kept, and shared read-only."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fleetctl.errors import LabError
from fleetctl.lab.mounts import mounts_mentioning
from fleetctl.lab.requirements import Say

SUITE = "bookworm"
PACKAGES: tuple[str, ...] = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "iproute2",
    "python3",
    "procps",
    "haproxy",
    "sudo",
    "libnuma1",
    "iputils-ping",
    "keepalived",
    "nats-server",
    "nftables",
)
CONTAINERS: dict[str, tuple[str, ...]] = {
    "podman": ("podman", "crun", "catatonit"),
    "docker": ("docker.io", "iptables"),
}
"""What boxes that run containers have besides: in a base system of their own, so that the usual one stays small."""

# Set inside the boxes only: the way to try a sudo that asks.
OPERATOR_PASSWORD = "lab-password"

# Useless in a box, or liable to wake up in the middle of a measurement.
MASKED_UNITS: tuple[str, ...] = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "man-db.timer",
    "console-getty.service",
    "getty.target",
    "getty@tty1.service",
    "systemd-pstore.service",
    "systemd-networkd.service",
    "systemd-networkd-wait-online.service",
    "modprobe@.service",
)
# Installed as tools: fleetctl brings units of its own, so Debian's must not serve or hold a port.
DISABLED_UNITS: tuple[str, ...] = ("haproxy.service", "keepalived.service", "nats-server.service")

FILES: dict[str, tuple[int, str]] = {
    "etc/sudoers.d/fleetctl-lab": (
        0o440,
        "fleet ALL=(ALL:ALL) NOPASSWD: ALL\noperator ALL=(ALL:ALL) ALL\n",
    ),
    "etc/ssh/sshd_config.d/fleetctl-lab.conf": (
        0o644,
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
        "PermitRootLogin prohibit-password\n"
        "PasswordAuthentication no\n"
        "UseDNS no\n"
        "PrintMotd no\n"
        # Many parallel sessions are normal here; random refusal of new ones would look like a fault.
        "MaxStartups 200\n"
        "MaxSessions 100\n",
    ),
    "etc/systemd/journald.conf.d/fleetctl-lab.conf": (
        0o644,
        "[Journal]\nStorage=persistent\nSystemMaxUse=32M\nRuntimeMaxUse=16M\nRateLimitIntervalSec=0\n",
    ),
    "etc/systemd/system/lab-network.service": (
        0o644,
        "[Unit]\n"
        "Description=Static addresses of this lab box\n"
        "DefaultDependencies=no\n"
        "Before=network.target network-online.target\n"
        "Wants=network.target\n\n"
        "[Service]\n"
        "Type=oneshot\n"
        "RemainAfterExit=yes\n"
        "ExecStart=/bin/sh /etc/fleetctl-lab/network\n\n"
        "[Install]\n"
        "WantedBy=sysinit.target network-online.target\n",
    ),
}


# The disk of a box is an overlay itself, on which the drivers of that name do not work. A box has no route to
# anywhere, and engines use its own network: Docker need not make one.
CONTAINER_FILES: dict[str, dict[str, tuple[int, str]]] = {
    "podman": {
        "etc/containers/storage.conf": (
            0o644,
            '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\n'
            'graphroot = "/var/lib/containers/storage"\n',
        ),
    },
    "docker.io": {
        "etc/docker/daemon.json": (
            0o644,
            '{"storage-driver": "vfs", "iptables": false, "bridge": "none", "ip-forward": false}\n',
        ),
    },
}


def files_for(packages: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Path → mode and content of what is put into a base system with these packages."""
    more = [files for package, files in CONTAINER_FILES.items() if package in packages]
    return {**FILES, **{name: file for files in more for name, file in files.items()}}


def digest(packages: Sequence[str], suite: str = SUITE) -> str:
    """Twelve hex digits that change when anything that goes into the base changes."""
    parts = [suite, sorted(packages), MASKED_UNITS, DISABLED_UNITS, files_for(packages), OPERATOR_PASSWORD]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def ensure(base: Path, say: Say, packages: Sequence[str] = PACKAGES) -> Path:
    """The folder of a complete base rootfs under ``base``, built now if it is not there yet.

    A build happens in a folder of its own and gets its final name (the digest of its inputs) in one rename:
    a folder with that name is complete, whatever happened to earlier builds.
    """
    base.mkdir(parents=True, exist_ok=True)
    final = base / digest(packages)
    if final.is_dir():
        return final
    with _building(base, say):
        if final.is_dir():  # somebody else built it while we waited
            return final
        _sweep(base, keep=final)
        say(f"building the base system of the boxes with mmdebstrap ({SUITE}, {len(packages)} packages)")
        partial = base / f"partial-{os.getpid()}"
        try:
            _bootstrap(partial, packages)
            _furnish(partial, packages)
            partial.rename(final)
        finally:
            if partial.exists():
                shutil.rmtree(partial)
    say(f"base system ready: {final}")
    return final


@contextmanager
def _building(base: Path, say: Say) -> Iterator[None]:
    with open(base / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is building the base system: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(base: Path, keep: Path) -> None:
    """Remove what interrupted builds left, and bases of other inputs that no box is mounted on."""
    for entry in base.iterdir():
        if entry.is_dir() and entry != keep and not mounts_mentioning(entry):
            shutil.rmtree(entry)


def _bootstrap(target: Path, packages: Sequence[str]) -> None:
    argv = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        SUITE,
        str(target),
    ]
    result = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode != 0:
        tail = "\n".join(result.stdout.strip().splitlines()[-8:])
        raise LabError(
            f"mmdebstrap could not build the base system in {target} (exit {result.returncode}):\n{tail}",
            hint="It downloads from deb.debian.org: check the network, proxy settings and free space.",
        )


def _furnish(rootfs: Path, packages: Sequence[str]) -> None:
    """Users, masks and files that are the same on every box of every lab."""
    for name, (mode, text) in files_for(packages).items():
        path = rootfs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    units = rootfs / "etc/systemd/system"
    for unit in MASKED_UNITS:
        link = units / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    # Debian ships a group "operator", so neither user gets a group of its own name.
    for user in ("fleet", "operator"):
        _chroot(rootfs, "useradd", "--create-home", "--gid", "users", "--shell", "/bin/bash", user)
    _chroot(rootfs, "chpasswd", input=f"operator:{OPERATOR_PASSWORD}\n")
    there = [unit for unit in DISABLED_UNITS if unit.removesuffix(".service") in packages]
    if there:
        _chroot(rootfs, "systemctl", "disable", *there)
    _chroot(rootfs, "systemctl", "enable", "ssh.service", "lab-network.service")
    # Every box gets keys and an identity of its own; the image must not carry any.
    for key in (rootfs / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    # nspawn is told not to manage this file; without one, look-ups of unknown names fail at once.
    resolv = rootfs / "etc/resolv.conf"
    resolv.unlink(missing_ok=True)
    resolv.write_text("")


def _chroot(rootfs: Path, *argv: str, input: str | None = None) -> None:
    result = subprocess.run(
        ["chroot", str(rootfs), *argv],
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        check=False,
    )
    if result.returncode != 0:
        raise LabError(f"preparing {rootfs}: {' '.join(argv)} failed: {result.stderr.strip()}")
