"""What `fleetctl setup` and `teardown` want to know of a box before anything is decided."""

import os
import pwd
import shutil
from typing import Any, Dict, List, Optional

from fleetctl.onbox import setup_keys, setup_link, setup_packages, setup_venv
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.setup_record import records
from fleetctl.onbox.survey import addresses

DROP_IN = "/etc/sudoers.d/fleetctl"


@op("setup_look")
def setup_look(
    call: Call,
    packages: List[str],
    venvs: Dict[str, List[str]],
    images: List[List[str]],
    interface: Optional[str],
) -> Dict[str, Any]:
    """Login user, packages, sudo, environments, images, the link's interface, and what setup did before.

    ``venvs`` has path → package and program. Nothing is changed; apt is asked what it would install.
    """
    user = os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    there = setup_packages.versions(call, packages)
    manager = setup_packages.manager()
    missing = [name for name, version in there.items() if version is None]
    return {
        "user": user,
        "keys_trouble": _keys_trouble(call, user),
        "system": _system(),
        "manager": manager,
        "packages": there,
        "offers": {name: setup_packages.offer(call, [name]) for name in missing} if manager == "apt" else {},
        "earlyoom": setup_packages.candidate(call, "earlyoom") if manager == "apt" else None,
        "sudo": _first_line(call, ["sudo", "--version"]),
        "rules": _text(DROP_IN),
        "includes": _includes(),
        "venvs": {
            path: {
                "there": os.path.lexists(path),
                "version": setup_venv.version_in(path, package),
                "program": os.access(os.path.join(path, "bin", program), os.X_OK),
                "free": setup_venv.free(path),
            }
            for path, (package, program) in venvs.items()
        },
        "venv_module": _has_ensurepip(call),
        "images": {
            image: bool(shutil.which(engine)) and run(call, [engine, "image", "inspect", image], timeout=60)["rc"] == 0
            for engine, image in images
        },
        "programs": {name: shutil.which(name) is not None for name in ("docker", "podman", "haproxy", "keepalived")},
        "addresses": addresses(call),
        "link": _link(call, interface) if interface else None,
        "record": records(),
    }


def _keys_trouble(call: Call, user: str) -> Optional[str]:
    try:
        setup_keys.file_of(call, user)
    except OpError as error:
        return str(error)
    return None


def _system() -> str:
    for line in (_text("/etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return "unknown"


def _text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read()
    except OSError:
        return None


def _includes() -> bool:
    """sudo reads /etc/sudoers.d."""
    words = [line.split() for line in (_text("/etc/sudoers") or "").splitlines()]
    return any(line[:1] in (["@includedir"], ["#includedir"]) and line[1:2] == ["/etc/sudoers.d"] for line in words)


def _first_line(call: Call, argv: List[str]) -> Optional[str]:
    if shutil.which(argv[0]) is None:
        return None
    done = run(call, argv, timeout=20)
    return str(done["out"] or done["err"]).partition("\n")[0].strip()


def _has_ensurepip(call: Call) -> bool:
    """python3 -m venv works: Debian ships a part of it in a package of its own."""
    return bool(run(call, ["/usr/bin/python3", "-c", "import ensurepip, venv"], timeout=30)["rc"] == 0)


def _link(call: Call, interface: str) -> Dict[str, Any]:
    found = setup_link.state(call, interface)
    names = sorted(name for name in os.listdir("/sys/class/net") if name != "lo")
    managed = setup_link.manager(call, interface) if found else {"kind": None, "uses": None}
    return {"interface": interface, "state": found, **managed, "interfaces": names}
