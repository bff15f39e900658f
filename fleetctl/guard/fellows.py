"""What the guards of the other boxes say of an engine that has ranks there: asked in the proxy's own way."""

import socket
import threading
import time
from typing import Dict, Tuple

EVERY = 0.5  # seconds between two questions
PATIENCE = 1.0  # seconds for an answer
FRESH = 3.0  # seconds for which it counts


class Fellows:
    """Asks for one server, in a thread of its own. Whoever does not answer has nothing against it."""

    def __init__(self, server: str, guards: Tuple[Tuple[str, int], ...]) -> None:
        self.server = server
        self.guards = guards
        self._said: Dict[Tuple[str, int], Tuple[float, str]] = {}
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """Stop asking."""
        self._over.set()

    def why_out(self) -> str:
        """Why a rank on another box keeps the engine out of the proxy; empty: none does."""
        begin = time.monotonic() - FRESH
        return next((why for at, why in list(self._said.values()) if why and at >= begin), "")

    def _run(self) -> None:
        while not self._over.is_set():
            for guard in self.guards:
                try:
                    self._said[guard] = time.monotonic(), ask(guard, self.server)
                except OSError:
                    continue
            self._over.wait(EVERY)


def ask(guard: Tuple[str, int], server: str) -> str:
    """Why a guard has a server out; empty: it has not. Raises OSError when it does not answer."""
    with socket.create_connection(guard, timeout=PATIENCE) as sock:
        sock.sendall((server + "\n").encode())
        said = sock.makefile("r", encoding="utf-8", errors="replace").readline(512).strip()
    return said[len("down") :].strip(" #") or "out" if said.startswith("down") else ""
