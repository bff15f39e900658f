"""Proxies on the box that are not fleetctl's: those that run, and those that would start at boot, with their files."""

import glob
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from fleetctl.onbox.main import Call
from fleetctl.onbox.units import comm_of, states, unit_of

PROGRAMS = {
    "haproxy": ("haproxy.service", ["/etc/haproxy/haproxy.cfg"]),
    "nginx": ("nginx.service", ["/etc/nginx/nginx.conf"]),
}
INCLUDED = ("/etc/nginx/conf.d/*", "/etc/nginx/sites-enabled/*", "/etc/nginx/*.conf", "/etc/nginx/stream.d/*")
MOST_FILES = 100
MOST_BYTES = 1 << 20  # of one proxy's files together


def other_proxies(call: Call) -> List[Dict[str, Any]]:
    """Each with program, unit, what systemd says of it, and the text of its configuration.

    nginx's text is in the form in which `nginx -T` prints it, so that includes are found again.
    """
    found: Dict[Tuple[str, str], int] = {}
    for pid, program in _running():
        unit = unit_of(pid)
        if not (unit or "").startswith("fleetctl-"):
            found.setdefault((program, unit or "process %d" % pid), pid)
    for program, (unit, _) in PROGRAMS.items():
        found.setdefault((program, unit), 0)
    services = sorted({unit for _, unit in found if unit.endswith(".service")})
    known = states(call, services)
    told = []
    for (program, unit), pid in sorted(found.items()):
        state = known.get(unit, {})
        enabled = str(state.get("enabled", "")).startswith("enabled")
        if pid or enabled:
            text = _text(program, pid)
            path, content = text if text is not None else (PROGRAMS[program][1][0], None)
            told.append(
                {
                    "program": program,
                    "unit": unit,
                    "running": bool(pid),
                    "enabled": enabled,
                    "path": path,
                    "text": content,
                }
            )
    return told


def _running() -> List[Tuple[int, str]]:
    """The first process of each that is there, by number: a master is older than its workers."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return [(pid, comm) for pid in pids for comm in (comm_of(pid),) if comm in PROGRAMS]


def _text(program: str, pid: int) -> Optional[Tuple[str, str]]:
    """Path and text, as the process sees them: in a container the root is another."""
    root = "/proc/%d/root" % pid if pid else ""
    paths = _named(pid, program) or PROGRAMS[program][1]
    parts = [(path, text) for path in paths for text in (_read(root + path),) if text is not None]
    if not parts:
        return None
    if program == "haproxy":
        return parts[0][0], "\n".join(text for _, text in parts)[:MOST_BYTES]
    included = sorted({name for pattern in INCLUDED for name in glob.glob(root + pattern)})[:MOST_FILES]
    for name in included:
        path = name[len(root) :]
        if path not in [known for known, _ in parts]:
            text = _read(name)
            if text is not None:
                parts.append((path, text))
    return parts[0][0], "".join("# configuration file %s:\n%s\n" % part for part in parts)[:MOST_BYTES]


def _named(pid: int, program: str) -> List[str]:
    """Files that the command line names, in full."""
    if not pid:
        return []
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as source:
            words = [os.fsdecode(word) for word in re.split(rb"[\0 ]", source.read(65536))]
    except OSError:
        return []
    option = "-f" if program == "haproxy" else "-c"
    named = [words[index + 1] for index, word in enumerate(words[:-1]) if word == option]
    return [path for path in named if path.startswith("/")]


def _read(path: str) -> Optional[str]:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
            return None
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read()
    except OSError:
        return None
