"""Files that make a box take LoRA adapters from a user who may do nothing else there."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

from fleetctl import __version__
from fleetctl.errors import SpecError
from fleetctl.remote.program import sources_and_index
from fleetctl.resources import root_text

PROGRAM = "/usr/local/sbin/fleetctl-loras"
_LOGIN = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def program() -> str:
    """The program for /usr/local/sbin, with what it needs of ``fleetctl/onbox`` in it."""
    packed = base64.b64encode(zlib.compress(json.dumps(sources_and_index()).encode(), 9)).decode("ascii")
    lines = "\n".join(packed[at : at + 100] for at in range(0, len(packed), 100))
    return root_text("systemd", "loras_only.py").replace("@VERSION@", __version__).replace("@SOURCES@", lines)


def write_role(user: str, folder: Path) -> list[Path]:
    """Write program, sudoers, sshd's drop-in and a README. Raises SpecError for what is no login name."""
    if not _LOGIN.fullmatch(user) or user == "root":
        raise SpecError(f"{user} is no login name for this", hint="a name of its own, such as loras; never root")
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "fleetctl-loras": (program(), 0o755),
        "sudoers": (root_text("templates", "loras.sudoers").replace("@USER@", user), 0o440),
        "sshd.conf": (root_text("templates", "loras.sshd").replace("@USER@", user), 0o644),
        "README": (root_text("templates", "loras.README").replace("@USER@", user), 0o644),
    }
    for name, (text, mode) in texts.items():
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
    return [folder / name for name in texts]
