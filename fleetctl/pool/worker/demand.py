"""What waits in the queue for models that this box has not loaded: their requests are not pulled, only counted."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import APIError

from fleetctl.pool import wire

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Waiting:
    """Requests of a model that wait in the queue."""

    requests: int = 0
    since: float = 0.0
    """When the first of them was noticed (monotonic)."""
    delivered: int = 0
    """Requests that had been delivered to anybody when it was last looked."""
    rate: float = 0.0
    """Requests per second that others take."""
    looked: float = 0.0
    returned: int = 0
    """Requests that this box has given back: the queue counts them as delivered, and they wait all the same."""
    mark: int = 0
    """The last delivery of one of those; when others have had as many since, these have gone to them."""

    def came_back(self, delivery: int) -> None:
        """One was given back, which was that delivery of the consumer."""
        self.returned, self.mark = self.returned + 1, max(self.mark, delivery)

    def still_out(self, delivered: int, unacknowledged: int) -> int:
        """Requests given back that nobody has taken yet."""
        self.returned = max(0, min(self.returned - max(0, delivered - self.mark), unacknowledged))
        self.mark = max(self.mark, delivered)
        return self.returned

    def oldest(self, now: float) -> float:
        """Seconds that the oldest has waited: since it was noticed, or for as long as others need for all of them."""
        if not self.requests:
            return 0.0
        waited = now - self.since
        return min(waited, self.requests / self.rate) if self.rate > 0 else waited

    def saw(self, requests: int, delivered: int, now: float) -> None:
        """So many wait, and so many were delivered so far."""
        if requests and not self.requests:
            self.since = now
        if self.looked and now > self.looked:
            self.rate = max(0, delivered - self.delivered) / (now - self.looked)
        self.requests, self.delivered, self.looked = requests, delivered, now


async def look(js: JetStreamContext, model: str, lane: wire.Lane, waiting: Waiting) -> None:
    """Find out what waits for a model."""
    stream = wire.WORK if lane == "work" else wire.BATCH
    try:
        info = await js.consumer_info(stream, wire.consumer(model, lane), timeout=2.0)
    except (nats.errors.Error, APIError) as error:
        log.debug("%s: what waits is not known: %s", model, error)
        return
    delivered = info.delivered.consumer_seq if info.delivered else 0
    back = waiting.still_out(delivered, info.num_ack_pending or 0)
    waiting.saw((info.num_pending or 0) + back, delivered, time.monotonic())
