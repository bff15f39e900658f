"""The process behind a socket: who it is, and whether it is a part of fleetctl."""

import os
import re
import time
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from fleetctl.onbox.services import CONTAINER
from fleetctl.onbox.units import comm_of, environment_of, unit_of

EVERY = 1.0  # seconds between two looks at all processes: reading what they have open is the dear part
# In the command line of fleetctl's program on a box; tests/unit/test_onbox_callers.py holds it against the launcher.
PROGRAM = b"exec(zlib.decompress(binascii.a2b_base64(f.readline())))"
INTERPRETERS = re.compile(r"(python|node|ruby|perl|php|bash|dash|sh|java|deno|bun)[0-9.]*")


class Callers:
    """Finds the processes that have sockets open; what was found is remembered."""

    def __init__(self) -> None:
        self._of: Dict[int, Dict[str, Any]] = {}  # inode → the process
        self._likely: List[int] = []  # processes that had a socket of interest: they are looked at first
        self._looked = 0.0
        self._others: Dict[int, Tuple[float, Dict[str, Any]]] = {}

    def of(self, inodes: Iterable[int]) -> Dict[int, Dict[str, Any]]:
        """Inode → process, for those that are found at this moment."""
        wanted = set(inodes)
        missing = wanted - set(self._of)
        if missing:
            self._search(missing, self._likely)
            missing -= set(self._of)
        if missing and time.monotonic() - self._looked >= EVERY:
            self._looked = time.monotonic()
            self._search(missing, (int(name) for name in os.listdir("/proc") if name.isdigit()))
        self._of = {inode: process for inode, process in self._of.items() if inode in wanted}
        return dict(self._of)

    def described(self, pid: int) -> Dict[str, Any]:
        """What there is to say of a process that is known otherwise."""
        known = self._others.get(pid)
        if known is None or time.monotonic() - known[0] > EVERY:
            known = self._others[pid] = (time.monotonic(), described(pid, _carriers()))
        return known[1]

    def _search(self, missing: Set[int], pids: Iterable[int]) -> None:
        carriers: Optional[Set[int]] = None
        known: Dict[int, Dict[str, Any]] = {process["pid"]: process for process in self._of.values()}
        for pid in list(pids):
            for inode in _sockets(pid) & missing:
                if carriers is None:
                    carriers = _carriers()
                process = known.get(pid) or described(pid, carriers)
                known[pid] = self._of[inode] = process
                if pid not in self._likely:
                    self._likely = [pid, *self._likely[:31]]


def described(pid: int, carriers: Set[int]) -> Dict[str, Any]:
    """What there is to say of a process. ``ours``: it is the proxy, a guard, an engine or fleetctl's program."""
    unit = unit_of(pid) or _container(pid)
    ours = pid in carriers or (unit or "").startswith("fleetctl-") or "FLEETCTL_ENGINE" in environment_of(pid)
    return {"pid": pid, "comm": comm_of(pid), "unit": unit, "command": command_of(pid), "ours": ours}


def command_of(pid: int) -> str:
    """Program and script of a process; no other word of its command line, since one may be a secret."""
    words = [os.fsdecode(word) for word in _command_line(pid).split(b"\0") if word]
    if not words:
        return ""
    program = os.path.basename(words[0].split(" ")[0])
    if not INTERPRETERS.fullmatch(program):
        return program
    if "-m" in words[1:4]:
        module = words[words.index("-m") + 1 :][:1]
        return " ".join([program, "-m", *module])
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    inline = {"-c", "-e"} & set(words[1:4])
    return program if inline or not script else "%s %s" % (program, script)


def _command_line(pid: int) -> bytes:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as source:
            return source.read(65536)
    except OSError:
        return b""


def _sockets(pid: int) -> Set[int]:
    """Inodes of the sockets that a process has open; none when it is gone."""
    found = set()
    try:
        for name in os.listdir("/proc/%d/fd" % pid):
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, name))
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    except OSError:
        return found
    return found


def _carriers() -> Set[int]:
    """Every program of fleetctl on this box, and the processes of sshd that carry it: tunnels begin in those.

    The one that listens is among them; it has no tunnel.
    """
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and PROGRAM in _command_line(int(name)):
            pid = int(name)
            found.add(pid)
            for _ in range(16):
                pid = _parent(pid)
                if pid <= 1:
                    break
                if comm_of(pid).startswith("sshd"):
                    found.add(pid)
    return found


def _parent(pid: int) -> int:
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as source:
            return int(source.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _container(pid: int) -> Optional[str]:
    """A container that has no unit of its own, by the first digits of its id."""
    try:
        with open("/proc/%d/cgroup" % pid, encoding="utf-8") as source:
            parts = [part for line in source for part in line.strip().split("/")]
    except OSError:
        return None
    found = next((match for match in map(CONTAINER.fullmatch, parts) if match), None)
    return "container " + found.group(1)[:12] if found else None
