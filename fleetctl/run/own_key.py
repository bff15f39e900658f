"""The operator's own SSH key: which one a box would be given, and a new one where there is none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from fleetctl.errors import SpecError
from fleetctl.remote.target import resolve
from fleetctl.spec.fleet import Fleet

KINDS = ("ssh-ed25519", "ecdsa-", "ssh-rsa", "sk-")


def own_keys(fleet: Fleet, boxes: Iterable[str], config: Path | None) -> dict[str, str]:
    """Box → the public half of the first key that would be tried there; boxes for which there is none are left out."""
    found = {}
    for name in boxes:
        box = fleet.boxes[name]
        for path in resolve(name, box.ssh.host or box.address, box.ssh, config=config).keys:
            line = _public(path)
            if line is not None:
                found[name] = line
                break
    return found


def _public(path: Path) -> str | None:
    beside = path.with_name(path.name + ".pub")
    if beside.is_file():
        line = beside.read_text(errors="replace").strip()
        return line if line.startswith(KINDS) and "\n" not in line else None
    if not path.is_file():
        return None
    try:
        done = subprocess.run(
            ["ssh-keygen", "-y", "-P", "", "-f", str(path)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def new_key_path() -> Path:
    """Where a new key would be made."""
    return Path.home() / ".ssh" / "id_ed25519"


def make_key(path: Path, *, ask: bool) -> None:
    """Make a key pair; with ``ask`` ssh-keygen asks for a passphrase. Raises SpecError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-f", str(path), *([] if ask else ["-N", ""])]
    try:
        done = subprocess.run(words, stdin=None if ask else subprocess.DEVNULL, check=False)
    except OSError as error:
        raise SpecError(f"cannot make a key: ssh-keygen: {error.strerror}", hint="install OpenSSH's client") from error
    if done.returncode != 0:
        raise SpecError(f"ssh-keygen could not make {path} (status {done.returncode})")
