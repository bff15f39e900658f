"""Who asked an engine for what, by its own access log: counts, made here so that no log leaves the box.

uvicorn (vLLM, SGLang) writes a line for each request, with address and port of whoever asked:
``INFO:     192.0.2.7:53210 - "POST /v1/chat/completions HTTP/1.1" 200 OK``.
"""

import ipaddress
import re
from typing import Any, Dict, Iterable, Optional, Set, Tuple

UVICORN = re.compile(
    rb'(?:^|[\s:])([0-9a-fA-F.:\[\]]{2,45}):(\d{1,5}) - "([A-Z]{3,7}) (\S{1,400}) HTTP/[0-9.]+" (\d{3})'
)
MOST_CONNECTIONS = 3000
MOST = 200  # addresses; a fleet has fewer clients, and a port scan has more


class Asked:
    """Takes lines in the form of ``journalctl -o short-unix --reverse``.

    ``known`` are addresses of which nothing is counted. What was asked over a connection is told of those in ``ports``
    (address and port), and of all since ``recent`` (epoch seconds). Asking for completions, embeddings and the like is
    work; a GET is not, and neither is a question that was refused.
    """

    def __init__(self, known: Iterable[str], ports: Set[Tuple[str, int]], recent: float) -> None:
        self._known = set(known)
        self._recent = recent
        self._ports = ports
        self.lines = 0
        self.oldest: Optional[float] = None
        self.clients: Dict[str, Dict[str, Any]] = {}
        self.connections: Dict[str, str] = {}

    def add(self, line: bytes) -> None:
        """Take one line, whatever is in it."""
        prefix, _, message = line.partition(b": ")
        at = _time(prefix.split(b" ", 1)[0])
        request = _request(message) if at is not None else None
        if request is None or at is None:
            return
        self.lines += 1
        self.oldest = at
        address, port, method, status = request
        kind = "work" if method == "POST" and status < 400 else "reads" if method in ("GET", "HEAD") else "other"
        if (address, port) in self._ports or (at >= self._recent and len(self.connections) < MOST_CONNECTIONS):
            name = "%s %d" % (address, port)
            self.connections[name] = "work" if "work" in (kind, self.connections.get(name)) else kind
        if address in self._known or (address not in self.clients and len(self.clients) >= MOST):
            return
        client = self.clients.setdefault(address, {"work": 0, "reads": 0, "other": 0, "last": at, "worked": None})
        client[kind] += 1
        if kind == "work":
            client["worked"] = client["worked"] or at  # newest first

    def told(self) -> Dict[str, Any]:
        """All of it, for JSON. Times are epoch seconds."""
        return {
            "lines": self.lines,
            "oldest": self.oldest,
            "clients": self.clients,
            "connections": self.connections,
        }


def _request(message: bytes) -> Optional[Tuple[str, int, str, int]]:
    """Address, port, method and status of a line. Port 0 is an address from a header: anybody's word."""
    found = UVICORN.search(message)
    if found is None or not int(found[2]):
        return None
    try:
        address = ipaddress.ip_address(found[1].decode("ascii").strip("[]"))
    except ValueError:
        return None
    # An IPv4 client of an engine that listens on IPv6 is known by its IPv4 address.
    plain = str(getattr(address, "ipv4_mapped", None) or address)
    return plain, int(found[2]), found[3].decode("ascii"), int(found[5])


def _time(text: bytes) -> Optional[float]:
    return float(text) if re.fullmatch(rb"[0-9]{1,12}\.[0-9]{1,9}", text) else None
