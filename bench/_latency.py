"""What a proxy adds to the wait for the first byte of an answer: paired calls, in turns, of the same engine."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from _common import BenchError, say
from _fleet import MODEL, PORT, PROXY_PORT, Fleet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _peers import Peer

    from fleetctl.lab.state import LabBox

ROUNDS, WARM_UP = 400, 20
QUESTION = json.dumps(
    {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What does the way cost?"}],
        "max_tokens": 1,
        "stream": True,
    }
).encode()


class Caller:
    """A client with one connection that it keeps."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.waits: list[float] = []
        self._connection = http.client.HTTPConnection(host, port, timeout=30)

    def call(self) -> float:
        """Ask for a stream; seconds until its first byte, which the engine sends before it does anything else."""
        begin = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", QUESTION, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        answer.read(1)
        took = time.perf_counter() - begin
        rest = answer.read()
        if answer.status != 200 or b"[DONE]" not in rest:
            raise BenchError(f"{self.name} answered {answer.status}: {rest[:200]!r}")
        return took


def waits(fleet: Fleet, box: LabBox, peers: Sequence[Peer]) -> dict[str, list[float]]:
    """``direct``, or the name of a proxy → seconds until the first byte, one for each round.

    A round is one direct call of the engine on ``box`` and one through each proxy in front of it, beginning with
    another of them each time.
    """
    with ExitStack() as running:
        callers = [Caller("direct", box.address, PORT), Caller("fleetctl", fleet.boxes[0].address, PROXY_PORT)]
        for peer in peers:
            url = urlsplit(running.enter_context(peer.before(fleet, [f"{box.address}:{PORT}"])))
            callers.append(Caller(peer.name, str(url.hostname), url.port or 80))
        say(f"latency through {', '.join(caller.name for caller in callers)}: {ROUNDS} rounds")
        for number in range(WARM_UP + ROUNDS):
            turn = number % len(callers)
            for caller in callers[turn:] + callers[:turn]:
                took = caller.call()
                if number >= WARM_UP:
                    caller.waits.append(took)
    return {caller.name: caller.waits for caller in callers}
