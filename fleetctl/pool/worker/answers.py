"""Answers on their way: as frames over NATS, kept for a while for a gateway that asks; as results of batch jobs."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from nats.aio.client import Client

from fleetctl.pool import wire

MOST_KEPT = 64 << 20
"""Bytes of all answers that are kept."""
MOST_ANSWERS = 100_000
MOST_OF_ONE = 4 << 20
"""Bytes of one of them."""
PIECE = wire.MOST_MESSAGE - 4096
"""Bytes of an answer in one frame."""


@dataclass(slots=True)
class Kept:
    """What of an answer has gone out."""

    key: str
    subjects: list[str]
    frames: list[bytes] = field(default_factory=list)
    size: int = 0
    finished: float = 0.0
    """When it was over (monotonic); 0: it goes on."""
    lost: bool = False
    """It was too long to keep."""


class Answers:
    """Of the requests that this worker has at work, or answered within the last minute; by their keys."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._kept: dict[str, Kept] = {}
        self._over: deque[Kept] = deque()
        """Those that are over, in that order."""
        self._whole: deque[Kept] = deque()
        """Those of them that have their frames yet."""
        self._size = 0

    def get(self, key: str) -> Kept | None:
        """What is kept of an answer."""
        return self._kept.get(key)

    def outlet(self, envelope: wire.Envelope, worker: str) -> QueueOutlet:
        """Where the frames of an answer go from now on."""
        key = wire.token(envelope.id)
        self.forget(key)
        kept = self._kept[key] = Kept(key, [envelope.answer])
        return QueueOutlet(self, kept, worker)

    def forget(self, key: str) -> None:
        """Nobody will ask for it: it was given back."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._drop(kept)

    async def asked(self, key: str, subject: str) -> bool:
        """Send what there is of an answer to one more gateway, and what follows. False: it is not known here."""
        kept = self._kept.get(key)
        if kept is None:
            return False
        if subject not in kept.subjects:
            kept.subjects.append(subject)
        # Also to one that is known: it asks because it may have missed what had gone out.
        for data in kept.frames:
            await self.client.publish(subject, data)
        if kept.lost:
            gone = wire.Frame(wire.Kind.FAILED, b'{"error":{"message":"the answer is over","code":502}}', 502)
            await self.client.publish(subject, gone.pack())
        if not kept.finished:
            await self.client.publish(subject, wire.Frame(wire.Kind.ALIVE).pack())
        return True

    def tidy(self, now: float) -> None:
        """Remove what is older than a minute."""
        while self._over and (now - self._over[0].finished > wire.ANSWERS_KEPT or len(self._over) > MOST_ANSWERS):
            kept = self._over.popleft()
            if self._kept.get(kept.key) is kept:
                self.forget(kept.key)
        while self._whole and self._whole[0].lost:
            self._whole.popleft()

    async def send(self, kept: Kept, frame: wire.Frame) -> None:
        """A frame to all who wait for it."""
        data = frame.pack()
        for subject in kept.subjects:
            await self.client.publish(subject, data)
        if frame.kind != wire.Kind.ALIVE and not kept.lost:
            kept.frames.append(data)
            kept.size += len(data)
            self._size += len(data)
            if kept.size > MOST_OF_ONE:
                self._drop(kept)
        if frame.kind in (wire.Kind.WHOLE, wire.Kind.END, wire.Kind.FAILED) and not kept.finished:
            kept.finished = time.monotonic()
            self._over.append(kept)
            self._whole.append(kept)
        while self._size > MOST_KEPT and self._whole:
            self._drop(self._whole.popleft())

    def _drop(self, kept: Kept) -> None:
        """Keep no more than that there was an answer."""
        self._size -= kept.size
        kept.size = 0
        kept.frames.clear()
        kept.lost = True


class QueueOutlet:
    """Frames over NATS to the gateway that asked, and to those that take over from it."""

    def __init__(self, answers: Answers, kept: Kept, worker: str) -> None:
        self._answers = answers
        self._kept = kept
        self._worker = worker

    async def send(self, frame: wire.Frame) -> None:
        """A frame; what is too long for a message goes in several."""
        frame = frame._replace(worker=self._worker)
        if len(frame.body) <= PIECE:
            await self._answers.send(self._kept, frame)
            return
        pieces = [frame.body[at : at + PIECE] for at in range(0, len(frame.body), PIECE)]
        first, last = wire.Kind.MORE, wire.Kind.MORE
        if frame.kind in (wire.Kind.WHOLE, wire.Kind.BEGIN, wire.Kind.FAILED):
            first = wire.Kind.BEGIN
        if frame.kind in (wire.Kind.WHOLE, wire.Kind.END, wire.Kind.FAILED):
            last = wire.Kind.END
        for number, piece in enumerate(pieces):
            kind = first if number == 0 else last if number == len(pieces) - 1 else wire.Kind.MORE
            await self._answers.send(self._kept, frame._replace(kind=kind, body=piece))
