"""What a machine must offer before it can hold a lab, and the packages that supply it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fleetctl.errors import LabError

Say = Callable[[str], None]

# What the lab runs or reads on the host, and the Debian/Ubuntu package that brings it.
COMMANDS: Mapping[str, str] = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
    "mount": "mount",
}
# Ubuntu does not install Debian's archive keys by itself; without them the rootfs cannot be verified.
FILES: Mapping[str, str] = {
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}


def missing_packages(
    find: Callable[[str], str | None] = shutil.which,
    exists: Callable[[str], bool] = lambda path: Path(path).exists(),
) -> list[str]:
    """Names of the packages that this host lacks, sorted, each once."""
    lacking = {package for command, package in COMMANDS.items() if find(command) is None}
    lacking |= {package for path, package in FILES.items() if not exists(path)}
    return sorted(lacking)


def check_host() -> None:
    """Raise LabError where no lab can run: not Linux, not root, no control groups, no namespaces."""
    if platform.system() != "Linux":
        raise LabError(
            f"the lab needs Linux, and this is {platform.system()}",
            hint="Run it on a Debian or Ubuntu machine, or in a virtual machine with one.",
        )
    if os.geteuid() != 0:
        raise LabError(
            f"the lab needs root (it mounts, makes a bridge and boots boxes), and this is uid {os.geteuid()}",
            hint="Run the same command with sudo.",
        )
    if not Path("/proc/self/ns/net").exists() or not Path("/proc/self/ns/pid").exists():
        raise LabError("the kernel has no network or PID namespaces", hint="Use a kernel with CONFIG_NAMESPACES.")


def install_missing(say: Say) -> list[str]:
    """Install the packages the lab needs and this host lacks, by name, with apt-get; return their names."""
    packages = missing_packages()
    if not packages:
        return []
    install_packages(packages, say)
    still = missing_packages()
    if still:
        raise LabError(
            f"still missing after apt-get reported success: {' '.join(still)}",
            hint="Check that PATH contains /usr/sbin and /usr/bin.",
        )
    return packages


def install_packages(packages: Sequence[str], say: Say) -> None:
    """Install packages by name with apt-get. Raises LabError."""
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise LabError(
            f"these packages are missing and there is no apt-get to install them: {names}",
            hint="It installs them by itself on Debian and Ubuntu; elsewhere install their equivalents.",
        )
    say(f"installing on this machine: {names}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    result = _apt(install, env)
    if result.returncode != 0:
        # The usual reason on a fresh machine: its package lists were never fetched.
        update = _apt(["apt-get", "update", "-q"], env)
        result = _apt(install, env)
        if result.returncode != 0:
            tail = "\n".join((update.stdout + result.stdout).strip().splitlines()[-8:])
            raise LabError(
                f"apt-get could not install {names} (exit {result.returncode}):\n{tail}",
                hint=f"Try it by hand: apt-get update && apt-get install {names}",
            )


def _apt(argv: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
