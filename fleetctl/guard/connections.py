"""Requests of the proxies that an engine has, whatever it says of them itself: connections that are open to its port.

vLLM tells how many requests run and wait from its core's last step. A core that hangs while it has nothing to do goes
on saying that it has nothing to do, however many requests come. HAProxy opens a connection for each request.
"""

import ipaddress
import struct
from typing import Iterable, Set

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
ESTABLISHED = "01"


def open_from(peers: Set[str], port: int, tables: Iterable[str] = TABLES) -> int:
    """Connections that some of the addresses have open to a port of this box."""
    count = 0
    for table in tables:
        try:
            with open(table) as source:
                rows = [line.split() for line in source][1:]
        except OSError:
            continue
        for row in rows:
            if len(row) > 3 and row[3] == ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port:
                count += address(row[2].partition(":")[0]) in peers
    return count


def address(text: str) -> str:
    """An address as the kernel's tables write it, in words of this machine's order, as people write it."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    found = ipaddress.ip_address(struct.pack("=%dI" % len(words), *words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
