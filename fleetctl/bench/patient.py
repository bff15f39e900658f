"""One client that asks small questions one after the other, while something is done to what it asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fleetctl.bench.connection import Asker
from fleetctl.bench.endpoint import Endpoint
from fleetctl.bench.exchange import Window
from fleetctl.bench.load import run
from fleetctl.bench.prompts import Prompts

_WORDS = 24  # of a question
_PAUSE = 0.2  # seconds between an answer and the next question
_PATIENCE = 3600.0  # seconds for one answer


@dataclass
class Patience:
    """What the client saw: how often it asked, the longest wait for an answer in seconds, and what failed, by kind."""

    asked: int = 0
    longest: float = 0.0
    failed: dict[str, int] = field(default_factory=dict)


@contextmanager
def patient_client(endpoint: Endpoint, prompts: Prompts) -> Iterator[Patience]:
    """Ask from a thread of its own for as long as the block runs; what is under way at its end does not count."""
    seen = Patience()
    stop = threading.Event()
    thread = threading.Thread(target=lambda: run(_ask(endpoint, prompts, seen, stop)), daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(timeout=5)


async def _ask(endpoint: Endpoint, prompts: Prompts, seen: Patience, stop: threading.Event) -> None:
    asker = Asker(endpoint, timeout=_PATIENCE)
    try:
        while not stop.is_set():
            asking = asyncio.ensure_future(asker.ask(prompts.probe(_WORDS), Window()))
            while not asking.done() and not stop.is_set():
                await asyncio.wait([asking], timeout=_PAUSE)
            if not asking.done():
                asking.cancel()
                await asyncio.wait([asking])
                return
            exchange = asking.result()
            seen.asked += 1
            if exchange.error is not None:
                seen.failed[exchange.error] = seen.failed.get(exchange.error, 0) + 1
            elif exchange.ended is not None:
                seen.longest = max(seen.longest, exchange.ended - exchange.sent)
            await asyncio.sleep(_PAUSE)
    finally:
        asker.close()
