"""TCP connections of this box as the kernel's tables have them.

The guard lands on a box with this module too: it counts with it the requests that the proxies have open to an engine,
whatever the engine says of them itself. vLLM tells how many requests run and wait from its core's last step. A core
that hangs while it has nothing to do goes on saying that it has nothing to do, however many requests come. HAProxy
opens a connection for each request.
"""

import functools
import ipaddress
import struct
from typing import Iterable, Iterator, NamedTuple, Set

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
# States, in the kernel's numbers. One that WAITS is over: the side that closed first keeps it for a minute.
ESTABLISHED, WAITS, LISTENS = "01", "06", "0A"


class Row(NamedTuple):
    """One line of a table. Hosts are as the kernel writes them, which ``address`` reads."""

    state: str
    local: str
    local_port: int
    remote: str
    remote_port: int
    inode: int
    """Of the socket; 0: no process has it any more."""


def rows(tables: Iterable[str] = TABLES) -> Iterator[Row]:
    """Every socket of the tables that can be read."""
    for table in tables:
        try:
            with open(table) as source:
                next(source, None)
                for line in source:
                    words = line.split(None, 10)
                    if len(words) > 9:
                        local, _, local_port = words[1].partition(":")
                        remote, _, remote_port = words[2].partition(":")
                        yield Row(words[3], local, int(local_port, 16), remote, int(remote_port, 16), int(words[9]))
        except OSError:
            continue  # no IPv6 here; or the process whose table it is has ended


def open_from(peers: Set[str], port: int, tables: Iterable[str] = TABLES) -> int:
    """Connections that some of the addresses have open to a port of this box."""
    mine = (row for row in rows(tables) if row.state == ESTABLISHED and row.local_port == port)
    return sum(address(row.remote) in peers for row in mine)


@functools.lru_cache(maxsize=4096)
def address(text: str) -> str:
    """An address as the kernel's tables write it, in words of this machine's order, as people write it."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    found = ipaddress.ip_address(struct.pack("=%dI" % len(words), *words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
