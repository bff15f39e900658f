"""What doctor asks of a box about processes: those of engines, whoever started them, and what they hold."""

import os
import re
from typing import Any, Dict, List, Optional

from fleetctl.onbox import nvidia
from fleetctl.onbox.main import Call, op
from fleetctl.onbox.ports import listeners, open_files
from fleetctl.onbox.units import comm_of, environment_of, unit_of

PAGE = os.sysconf("SC_PAGE_SIZE")
TITLES = ("VLLM::", "sglang::")  # what engines call their workers; the kernel keeps 15 characters of it
MOST = 200


@op("examine_processes")
def examine_processes(call: Call, ports: List[int]) -> Dict[str, Any]:
    """Processes of engines, and who listens on the ports.

    Those that carry FLEETCTL_ENGINE and those that look like an engine without it. ``resident`` are bytes of memory,
    ``started`` is in clock ticks since boot. ``apps`` is what the GPUs' driver says of its processes.
    """
    found: List[Dict[str, Any]] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and len(found) < MOST:
            told = _process(int(name))
            if told is not None:
                found.append(told)
    return {
        "processes": sorted(found, key=lambda one: one["pid"]),
        "ports": _ports(ports),
        "apps": nvidia.query(call, "compute-apps", nvidia.APPS),
    }


def _process(pid: int) -> Optional[Dict[str, Any]]:
    command = _command(pid)
    engine = environment_of(pid).get("FLEETCTL_ENGINE")
    title = comm_of(pid)
    if not engine and not title.startswith(TITLES) and not looks_like_engine(command):
        return None
    parent, started = _parent_and_start(pid)
    if not started:
        return None
    return {
        "pid": pid,
        "comm": title,
        "program": " ".join(os.path.basename(word) for word in command[:2])[:80] or title,
        "engine": engine,
        "unit": unit_of(pid),
        "group": _group(pid),
        "parent": parent,
        "parent_comm": comm_of(parent) if parent else "",
        "started": started,
        "resident": _resident(pid),
    }


def looks_like_engine(command: List[str]) -> bool:
    """A command line that serves a model: `vllm serve`, `python3 -m sglang.launch_server`, `llama-server`, …"""
    words = [os.path.basename(word) for word in command[:6]]
    if not words:
        return False
    if words[0].startswith(TITLES) or words[0] in ("llama-server", "text-embeddings-router"):
        return True
    if re.match(r"python[\d.]*$", words[0]):
        words = words[1:]
    if words[:1] == ["-m"]:
        return bool(re.match(r"vllm\.entrypoints\.|sglang\.launch_server|llama_cpp\.server", " ".join(words[1:2])))
    return words[:1] == ["infinity_emb"] or words[:2] in (["vllm", "serve"], ["sglang", "serve"])


def _command(pid: int) -> List[str]:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as source:
            return [word.decode("utf-8", "replace") for word in source.read(8192).split(b"\0") if word]
    except OSError:
        return []


def _parent_and_start(pid: int) -> "tuple[int, int]":
    """Parent and start in clock ticks; 0 and 0 for one that is gone or has ended and is not reaped."""
    try:
        with open("/proc/%d/stat" % pid) as source:
            words = source.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0, 0
    return (0, 0) if words[0] in "ZX" else (int(words[1]), int(words[19]))


def started(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 when it has ended."""
    return _parent_and_start(pid)[1]


def _resident(pid: int) -> int:
    try:
        with open("/proc/%d/statm" % pid) as source:
            return int(source.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _group(pid: int) -> str:
    """The control group that systemd knows it by."""
    try:
        with open("/proc/%d/cgroup" % pid) as source:
            rows = [line.rstrip("\n").split(":", 2) for line in source]
    except OSError:
        return ""
    named = [row[2] for row in rows if row[1] == "name=systemd"] + [row[2] for row in rows if row[1] == ""]
    return named[0] if named else ""


def _ports(ports: List[int]) -> Dict[str, List[int]]:
    """Port → every process that has it open to listen, for those that are taken."""
    taken = listeners(ports)
    sockets = {"socket:[%d]" % inode: port for port, inodes in taken.items() for inode in inodes}
    found: Dict[str, List[int]] = {str(port): [] for port in taken}
    for name in os.listdir("/proc") if sockets else []:
        if name.isdigit():
            for link in set(open_files(name)) & set(sockets):
                found[str(sockets[link])].append(int(name))
    return found
