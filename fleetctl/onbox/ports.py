"""Who listens on which TCP port of the box."""

import os
from typing import Any, Dict, List, Optional

from fleetctl.onbox.units import comm_of, environment_of, unit_of


def listening(port: int) -> List[int]:
    """Socket inodes that listen on a TCP port, on any address."""
    inodes = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as source:
                rows = [line.split() for line in source][1:]
        except OSError:
            continue
        inodes += [int(row[9]) for row in rows if row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port]
    return inodes


def owner_of(inodes: List[int]) -> Optional[Dict[str, Any]]:
    """The process that has one of the sockets open."""
    wanted = {"socket:[%d]" % inode for inode in inodes}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            for descriptor in os.listdir("/proc/%s/fd" % name):
                if os.readlink("/proc/%s/fd/%s" % (name, descriptor)) in wanted:
                    pid = int(name)
                    return {
                        "pid": pid,
                        "comm": comm_of(pid),
                        "unit": unit_of(pid),
                        "engine": environment_of(pid).get("FLEETCTL_ENGINE"),
                    }
        except OSError:
            continue
    return None


def port_owners(ports: List[int]) -> Dict[str, Dict[str, Any]]:
    """Port → the process that listens on it, for those that are taken."""
    owners = {}
    for port in ports:
        inodes = listening(port)
        if inodes:
            owners[str(port)] = owner_of(inodes) or {"pid": 0, "comm": "", "unit": None, "engine": None}
    return owners
