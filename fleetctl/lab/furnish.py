"""Names, addresses and keys that make a copy of the base system one particular box."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path

from fleetctl.lab.command import run
from fleetctl.lab.state import LabBox, write_whole


def ensure_key(path: Path, comment: str) -> Path:
    """An ed25519 key pair at ``path`` and ``path``.pub, made if it is not there."""
    public = path.with_name(path.name + ".pub")
    if not (path.exists() and public.exists()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
            doing="making a key",
        )
    return path


def write_known_hosts(path: Path, boxes: Sequence[LabBox], host_keys: Path) -> None:
    """The boxes' host keys under each of their addresses and names."""
    lines = []
    for box in boxes:
        kind, key, *_ = (host_keys / box.name / "ssh_host_ed25519_key.pub").read_text().split()
        lines.append(f"{box.address},{box.link_address},{box.name} {kind} {key}\n")
    write_whole(path, "".join(lines))


def furnish(
    rootfs: Path,
    box: LabBox,
    everyone: Sequence[LabBox],
    host_key: Path,
    subnet: IPv4Network,
    link_subnet: IPv4Network,
) -> None:
    """Write into ``rootfs`` what makes it ``box``: safe to repeat, and done before each boot."""
    _put(rootfs, "etc/hostname", f"{box.name}\n")
    hosts = "".join(f"{one.address} {one.name}\n{one.link_address} {one.name}-link\n" for one in everyone)
    _put(rootfs, "etc/hosts", f"127.0.0.1 localhost\n{hosts}")
    # Stable over resets, so that tools that tell machines apart by it see the same box.
    _put(rootfs, "etc/machine-id", uuid.uuid5(uuid.NAMESPACE_OID, host_key.read_text()).hex + "\n", 0o444)
    _put(rootfs, "etc/fleetctl-lab/network", network_script(box, subnet, link_subnet), 0o755)
    for suffix, mode in (("", 0o600), (".pub", 0o644)):
        name = host_key.name + suffix
        _put(rootfs, f"etc/ssh/{name}", host_key.with_name(name).read_text(), mode)
    public = box.key.with_name(box.key.name + ".pub").read_text()
    for home in ("root", "home/fleet", "home/operator"):
        _authorize(rootfs / home, public)


def network_script(box: LabBox, subnet: IPv4Network, link_subnet: IPv4Network) -> str:
    """No default route: a box reaches its own networks and nothing else, and finds out at once."""
    return (
        "set -e\n"
        f"ip address replace {box.address}/{subnet.prefixlen} dev host0\n"
        f"ip address replace {box.link_address}/{link_subnet.prefixlen} dev host0\n"
        "ip link set host0 up\n"
    )


def _put(rootfs: Path, name: str, text: str, mode: int = 0o644) -> None:
    path = rootfs / name
    if path.is_file() and not path.is_symlink() and path.read_text(errors="replace") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _authorize(home: Path, public: str) -> None:
    if not home.is_dir():
        return  # a box that has removed the user keeps it removed
    owner = home.stat()
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    keys = ssh / "authorized_keys"
    if not keys.exists() or public not in keys.read_text():
        with keys.open("a") as file:
            file.write(public)
    keys.chmod(0o600)
    for path in (ssh, keys):
        os.chown(path, owner.st_uid, owner.st_gid)
