"""Answers HAProxy's agent checks: one word for the engine that is asked about, "up" or "down".

These two change what HAProxy calls the operational state of a server. Its administrative state (ready, drain, maint) is
fleetctl's, and neither disturbs the other. Requests that run on a server that is down go on.
"""

import ipaddress
import socket
import socketserver
import threading
import time
from typing import Callable, Dict, List, Sequence, Set, Tuple

PATIENCE = 2.0  # seconds for a question
ASKS = 3.0  # seconds without a question after which a proxy does not count: it asks twice a second


class Agent:
    """Listens on the box's own address. ``why_out`` says for BACKEND/SERVER why it is out; empty: it is not."""

    def __init__(self, address: str, port: int, proxies: List[str], why_out: Callable[[str], str]) -> None:
        self._allowed = addresses([address, *proxies])
        self._why_out = why_out
        self._told: Dict[str, Dict[str, Tuple[float, int]]] = {}
        self.refused: Set[str] = set()
        """Who asked and is not the proxy."""
        self.asked = 0
        agent = self

        class Handler(socketserver.StreamRequestHandler):
            timeout = PATIENCE

            def handle(self) -> None:
                agent._answer(self)

        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server_class = type(
            "Server",
            (socketserver.ThreadingTCPServer,),
            {"address_family": family, "allow_reuse_address": True, "daemon_threads": True, "request_queue_size": 64},
        )
        self._server: socketserver.ThreadingTCPServer = server_class((address, port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _answer(self, asked: socketserver.StreamRequestHandler) -> None:
        peer = str(asked.client_address[0])
        if peer not in self._allowed:
            if len(self.refused) < 16:
                self.refused.add(peer)
            return
        try:
            server = asked.rfile.readline(512).decode("utf-8", "replace").strip()
            why = self._why_out(server)
            asked.wfile.write(("down #%s\n" % why if why else "up\n").encode())
        except OSError:
            return  # it does not matter to a proxy that has gone
        self.asked += 1
        told = self._told.setdefault(server, {})
        told[peer] = (time.monotonic(), told.get(peer, (0.0, 0))[1] + 1 if why else 0)

    def told(self, server: str) -> int:
        """How often everyone who asks about a server was told that it is out, since it is."""
        return min(self._counts(server), default=0)

    def told_anyone(self, server: str) -> bool:
        """Somebody who asks about a server was told that it is out, and not yet that it is back."""
        return any(self._counts(server))

    def _counts(self, server: str) -> List[int]:
        begin = time.monotonic() - ASKS
        return [count for at, count in list(self._told.get(server, {}).values()) if at >= begin]

    def end(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def addresses(names: Sequence[str]) -> Set[str]:
    """IP addresses behind addresses and names; a name that is not known is left out."""
    found: Set[str] = set()
    for name in names:
        try:
            found.add(str(ipaddress.ip_address(name)))
        except ValueError:
            try:
                found |= {str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
            except OSError:
                continue
    return found
