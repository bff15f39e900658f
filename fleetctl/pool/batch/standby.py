"""Whether it is this box's turn: the runner of batch lines runs on every box of a proxy, and works beside the address.

Where the floating address is, requests come in: that box's proxy alone knows who waits. keepalived decides where that
is, and moves it when a box dies. Lines that were at work on a box that lost it are finished there, or come again.
"""

from __future__ import annotations

import socket
from pathlib import Path

NET = Path("/proc/net")


def has_address(address: str, net: Path = NET) -> bool:
    """Whether an interface of this box has an IP address.

    It is read from the kernel's tables: with ``net.ipv4.ip_nonlocal_bind`` any address can be bound to.
    """
    if ":" in address:
        wanted = socket.inet_pton(socket.AF_INET6, address).hex()
        return any(line.split()[:1] == [wanted] for line in _lines(net / "if_inet6"))
    found = ""
    for line in _lines(net / "fib_trie"):
        words = line.split()
        if words[:1] == ["|--"]:
            found = words[1]
        elif found == address and words == ["/32", "host", "LOCAL"]:
            return True
    return False


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
