"""What doctor wants to know of this box's memory: who holds it, what it fell short of, who would end something."""

import contextlib
import os
import re
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox import nvidia
from fleetctl.onbox.journalctl import read_back, read_matching
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.redacted import hidden
from fleetctl.onbox.units import comm_of, engine_processes
from fleetctl.onbox.waits import meminfo

DAYS = 7.0
LINES = 200_000  # of the kernel's journal that are looked at, the newest first
LOG_LINES = 50_000  # of an engine's journal
SECONDS = 8.0  # for each journal
LONGEST = 500  # characters of a line that are told
MATCHES = [  # the kernel; systemd's words on units that were killed; who else kills when memory is short
    "_TRANSPORT=kernel",
    "+",
    "MESSAGE_ID=fe6faa94e7774663a0da52717891d8ef",
    "+",
    "UNIT_RESULT=oom-kill",
    "+",
    "SYSLOG_IDENTIFIER=earlyoom",
    "SYSLOG_IDENTIFIER=systemd-oomd",
    "SYSLOG_IDENTIFIER=nohang",
]
# What is told of the journal: kind → what its lines have, and how many of them are told. All are counted.
KINDS = {
    "no_memory": (re.compile(rb"NV_ERR_NO_MEMORY"), 5),
    "xid": (re.compile(rb"NVRM: Xid \("), 60),
    "killed": (
        re.compile(
            rb"[Oo]ut of memory: Killed process|oom-kill:constraint=|killed by the OOM killer"
            rb"|Failed with result 'oom-kill'|earlyoom\S*: .*SIG(?:TERM|KILL) to process|systemd-oomd\S*: Killed "
            rb"|nohang\S*: .*Sending SIG"
        ),
        120,
    ),
}
REFUSED = re.compile(rb"on startup is less than desired GPU memory utilization")
DAEMONS = ("earlyoom", "nohang", "systemd-oomd")
PROPERTIES = "Id,LoadState,ActiveState,Slice,MemoryMin,ManagedOOMMemoryPressure,ManagedOOMSwap"


class Found:
    """Lines of a journal that are worth telling: ``count`` of all, and the newest of them."""

    def __init__(self, pattern: "re.Pattern[bytes]", most: int) -> None:
        self._pattern, self._most = pattern, most
        self.count = 0
        self.lines: List[Dict[str, Any]] = []

    def take(self, line: bytes) -> None:
        """Look at one line as journalctl prints it with ``-o short-unix``."""
        if not self._pattern.search(line):
            return
        self.count += 1
        when, _, rest = line.decode("utf-8", "replace").partition(" ")
        if len(self.lines) < self._most:
            # A line of an entry that has several has no time of its own.
            with contextlib.suppress(ValueError):
                self.lines.append({"at": float(when), "text": hidden(rest[:LONGEST])})

    def told(self) -> Dict[str, Any]:
        """``count``, and ``lines`` with ``at`` (epoch seconds) and ``text``, the newest first."""
        return {"count": self.count, "lines": self.lines}


@op("examine_memory")
def examine_memory(call: Call, engines: List[str], units: List[str]) -> Dict[str, Any]:
    """Sizes are bytes. ``engines`` are units of engines, ``units`` others whose protection is asked for.

    What a box does not have or does not tell is None. ``container``: the kernel's figures are those of the host.
    """
    apps = nvidia.query(call, "compute-apps", nvidia.APPS)
    return {
        "container": in_container(),
        "meminfo": meminfo(),
        "swaps": text_of("/proc/swaps") or "",
        "swappiness": number(text_of("/proc/sys/vm/swappiness")),
        "pressure": text_of("/proc/pressure/memory"),
        "unified_groups": os.path.exists("/sys/fs/cgroup/cgroup.controllers"),
        "processes": [
            {**process, **sizes} for process in engine_processes() if (sizes := sizes_of(process["pid"])) is not None
        ],
        "gpus": nvidia.query(call, "gpu", nvidia.GPUS),
        "apps": apps,
        "owners": nvidia.owners(apps),
        "daemons": daemons(),
        "units": shown(call, [*units, *engines, "system.slice", "-.slice"]),
        "journal": journal(call),
        "refused": {unit: refused(call, unit) for unit in engines},
    }


def in_container() -> bool:
    """This box shares its kernel with others."""
    return os.path.exists("/run/systemd/container") or os.path.exists("/.dockerenv")


def text_of(path: str, most: int = 65536) -> Optional[str]:
    """The beginning of a file; None when it cannot be read."""
    try:
        with open(path, "rb") as source:
            return source.read(most).decode("utf-8", "replace")
    except OSError:
        return None


def number(text: Optional[str]) -> Optional[int]:
    """A whole number in a text of its own."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def sizes_of(pid: int) -> Optional[Dict[str, int]]:
    """What a process has in memory that is no file, and in swap; None when it has ended."""
    try:
        with open("/proc/%d/status" % pid, encoding="utf-8", errors="replace") as source:
            rows = dict(line.split(":", 1) for line in source if line.startswith(("Rss", "VmSwap")))
        return {
            key: int(rows[row].split()[0]) * 1024
            for key, row in (("anonymous", "RssAnon"), ("shared", "RssShmem"), ("swap", "VmSwap"))
        }
    except (OSError, ValueError, KeyError, IndexError):
        return None


def daemons() -> Dict[str, List[str]]:
    """Programs that end others when memory is short, as far as they run → their command line."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and comm_of(int(name)) in DAEMONS:
            words = (text_of("/proc/%s/cmdline" % name) or "").rstrip("\0").split("\0")
            found[comm_of(int(name))] = words[:60]
    return {name: words for name, words in found.items() if name}


def shown(call: Call, units: List[str]) -> str:
    """What ``systemctl show`` prints of units, a block each; nothing where it cannot."""
    try:
        done = run(call, ["systemctl", "show", "--no-pager", "-p", PROPERTIES, "--", *units], timeout=20)
    except OpError:
        return ""
    return str(done["out"]) if done["rc"] == 0 else ""


def journal(call: Call) -> Dict[str, Any]:
    """What the journal of the last days has of each kind, and ``why`` it is not all (None: it is)."""
    found = {kind: Found(pattern, most) for kind, (pattern, most) in KINDS.items()}

    def take(line: bytes) -> None:
        for one in found.values():
            one.take(line)

    read = read_matching(call, MATCHES, time.time() - DAYS * 86400, take, LINES, SECONDS)
    return {**{kind: one.told() for kind, one in found.items()}, "why": read["why"]}


def refused(call: Call, unit: str) -> Dict[str, Any]:
    """Starts of a day that an engine gave up because too little memory was free."""
    found = Found(REFUSED, 3)
    read_back(call, unit, time.time() - 86400, found.take, LOG_LINES, SECONDS)
    return found.told()
