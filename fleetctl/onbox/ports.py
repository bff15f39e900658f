"""Who listens on which TCP port of the box."""

import os
from typing import Any, Dict, Iterator, List

from fleetctl.onbox.connections import LISTENS, rows
from fleetctl.onbox.units import comm_of, environment_of, unit_of


def listeners(ports: List[int]) -> Dict[int, List[int]]:
    """Those of the TCP ports that something listens on, on any address, with the inodes of the sockets."""
    wanted = set(ports)
    found: Dict[int, List[int]] = {}
    for row in rows() if wanted else ():
        if row.state == LISTENS and row.local_port in wanted:
            found.setdefault(row.local_port, []).append(row.inode)
    return found


def _process(pid: int) -> Dict[str, Any]:
    return {
        "pid": pid,
        "comm": comm_of(pid),
        "unit": unit_of(pid),
        "engine": environment_of(pid).get("FLEETCTL_ENGINE"),
    }


def _holders(sockets: Dict[str, int]) -> Dict[int, int]:
    """Port → the first process that has its socket open; ``sockets`` are link targets such as ``socket:[123]``."""
    found: Dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            for link in open_files(name):
                if link in sockets:
                    found.setdefault(sockets[link], int(name))
    return found


def open_files(pid: str) -> Iterator[str]:
    """What the descriptors of a process lead to. A busy process opens and closes some meanwhile."""
    try:
        numbers = os.listdir("/proc/%s/fd" % pid)
    except OSError:
        return
    for number in numbers:
        try:
            yield os.readlink("/proc/%s/fd/%s" % (pid, number))
        except OSError:
            continue


def port_owners(ports: List[int]) -> Dict[str, Dict[str, Any]]:
    """Port → the process that listens on it, for those that are taken; pid 0 where it cannot be told."""
    taken = listeners(ports)
    holders = _holders({"socket:[%d]" % inode: port for port, inodes in taken.items() for inode in inodes})
    unknown = {"pid": 0, "comm": "", "unit": None, "engine": None}
    return {str(port): _process(holders[port]) if port in holders else unknown for port in taken}
