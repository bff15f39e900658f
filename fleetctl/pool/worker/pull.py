"""Taking requests of one model from JetStream, as many as there is room for.

A *standing* pull asks for as many requests as engines could start at once; the server answers it the moment one comes,
and shares what comes among the workers that have one. A pull *ahead* takes what waits already, and only when something
waits: with no standing pull for it, a busy worker never takes what an idle one could begin with.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from nats.aio.client import Client
from nats.aio.msg import Msg

from fleetctl.pool import wire

log = logging.getLogger(__name__)

STANDS = 5.0
"""Seconds that a standing pull lasts. One that the server has forgotten (it was restarted) is missed for no longer, and
a worker that stops can wait until nothing that it asked for is outstanding."""
LATE = 0.5
"""Seconds that the end of a pull may be heard late."""
AT_ONCE = 2.0
"""Seconds for the answer to a pull of what waits."""


SLOTS = 6
"""Pulls of a model and lane at once, the first of which is kept for what waits. Each has a subscription of its own:
only so it is known which pull a request has come for."""


@dataclass(slots=True)
class _Slot:
    number: int
    asked: int = 0
    """Which pull it is, counted."""
    left: int = 0
    """Requests that have not come."""
    until: float = 0.0
    """When it is over at the latest (monotonic)."""


class Pull:
    """The pulls of one model and lane. ``take`` gets each request, ``changed`` is called when more may be asked for."""

    def __init__(
        self, client: Client, model: str, lane: wire.Lane, take: Callable[[Msg], None], changed: Callable[[], None]
    ) -> None:
        self.model = model
        self.lane = lane
        self.waiting = 0
        """Requests that waited in the queue when it was last heard of."""
        self.empty = False
        """Nothing waited a moment ago, and nothing has come since."""
        self.missing = False
        """The server does not know the consumer (any more)."""
        self._client = client
        self._take = take
        self._changed = changed
        stream = wire.WORK if lane == "work" else wire.BATCH
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{wire.consumer(model, lane)}"
        self._inbox = client.new_inbox()
        self._slots = [_Slot(number) for number in range(SLOTS)]
        self._listens = False

    async def begin(self) -> None:
        """Listen for requests. There is no way back: what the server is just about to send to a subscription that ends
        would be lost until its acknowledgement is overdue."""
        if not self._listens:
            self._listens = True
            for slot in self._slots:
                # No limit of what may wait here: it is no more than was asked for.
                await self._client.subscribe(
                    f"{self._inbox}.{slot.number}.*",
                    cb=partial(self._came, slot),
                    pending_msgs_limit=0,
                    pending_bytes_limit=0,
                )

    def outstanding(self) -> int:
        """Requests that were asked for and have not come."""
        now = time.monotonic()
        for slot in self._slots:
            if slot.left > 0 and slot.until <= now:
                # The server ends each pull with a word, unless it does not know the consumer.
                slot.left = 0
                self.missing = True
        return sum(slot.left for slot in self._slots)

    @property
    def looking(self) -> bool:
        """Whether the answer to a pull of what waits is on its way."""
        return self._slots[0].left > 0

    def lost(self) -> None:
        """The connection was away: what was asked for is forgotten."""
        for slot in self._slots:
            slot.left = 0

    async def stand(self, count: int) -> None:
        """Ask for requests that come from now on, and those that wait; not at all while too many pulls stand."""
        self.empty = False
        told = {"batch": count, "expires": int(STANDS * 1e9)}
        await self._ask(self._slots[1:], count, STANDS + LATE, told)

    async def ahead(self, count: int) -> None:
        """Ask for requests that wait already, unless that has been done just now."""
        await self._ask(self._slots[:1], count, AT_ONCE, {"batch": count, "no_wait": True})

    async def _ask(self, slots: list[_Slot], count: int, seconds: float, told: Mapping[str, object]) -> None:
        now = time.monotonic()
        slot = next((one for one in slots if one.left <= 0), None)
        if slot is not None:
            slot.asked, slot.left, slot.until = slot.asked + 1, count, now + seconds
            reply = f"{self._inbox}.{slot.number}.{slot.asked}"
            await self._client.publish(self._next, json.dumps(told).encode(), reply=reply)

    async def _came(self, slot: _Slot, message: Msg) -> None:
        headers = message.headers or {}
        if "Status" in headers and not message.reply.startswith("$JS.ACK."):
            self._hear(slot, int(message.subject.rsplit(".", 1)[-1]), headers)
            return
        slot.left -= 1
        self.missing = self.empty = False
        self.waiting = fields(message.reply)[2]
        self._take(message)

    def _hear(self, slot: _Slot, asked: int, headers: dict[str, str]) -> None:
        """A pull has ended without all that it asked for."""
        status, said = headers["Status"], headers.get("Description", "")
        if asked == slot.asked:
            slot.left = 0
        if status == "404":
            self.waiting, self.empty = 0, True
        elif status == "503" or "Consumer Deleted" in said:
            self.missing = True
        elif status != "408":
            log.debug("%s: a pull ended: %s %s", self.model, status, said)
        self._changed()


def fields(reply: str) -> tuple[int, int, int]:
    """How often a request was delivered, its number in the stream, and how many waited, from its reply subject.

    ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<time>.<pending>``, or since NATS
    2.10 with domain and account before the stream and a token at the end.
    """
    parts = reply.split(".")
    at = 4 if len(parts) == 9 else 6
    try:
        return int(parts[at]), int(parts[at + 1]), int(parts[at + 4])
    except (IndexError, ValueError):
        return 1, 0, 0


class Delivered:
    """What is said to JetStream about one request. ``reply`` changes when it is delivered again meanwhile."""

    __slots__ = ("client", "reply")

    def __init__(self, client: Client, reply: str) -> None:
        self.client = client
        self.reply = reply

    @property
    def number(self) -> int:
        """Which delivery of the consumer it was; 0: not known."""
        parts = self.reply.split(".")
        number = parts[6 if len(parts) == 9 else 8] if len(parts) >= 9 else ""
        return int(number) if number.isdigit() else 0

    async def ack(self) -> None:
        """It is finished with."""
        await self.client.publish(self.reply, b"+ACK")

    async def ack_surely(self) -> None:
        """The same; returns when the server has noted it. Tries until then."""
        while True:
            try:
                await self.client.request(self.reply, b"+ACK", timeout=2.0)
                return
            except Exception as error:  # away, or slow: there is nothing else to do than to try again
                if self.client.is_closed:
                    raise
                log.debug("an acknowledgement is tried again: %s", error or type(error).__name__)
                await asyncio.sleep(0.2)

    async def back(self) -> None:
        """Somebody else may have it, now."""
        await self.client.publish(self.reply, b"-NAK")

    async def at_work(self) -> None:
        """It is in good hands for another while."""
        await self.client.publish(self.reply, b"+WPI")
