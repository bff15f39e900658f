"""One request under way in the queue, and the frames of its answer."""

from __future__ import annotations

import asyncio
from collections import deque

from fleetctl.pool import wire
from fleetctl.pool.gateway.refusals import broke_off

MOST_HELD = 32 << 20
"""Bytes of an answer that a slow client may leave with the gateway, before it is cut off."""
ASK_EVERY = 0.5
"""Seconds between two questions for an answer that another gateway had asked for."""
NEVER = float("inf")


class Answer:
    """What a handler waits on. Times are those of the event loop's clock, in seconds.

    Frames are put in by the queue and taken out by the handler. There is no timer per request: the queue looks at all
    answers several times a second, and at this one when :attr:`look_at` has come.
    """

    __slots__ = (
        "_failure",
        "_frames",
        "_held",
        "_loop",
        "_repeated",
        "_taken",
        "_waiter",
        "ask_at",
        "ask_every",
        "ask_growth",
        "asked",
        "begun",
        "deadline",
        "duplicate",
        "duplicate_of",
        "heard",
        "identity",
        "key",
        "look_at",
        "message",
        "model",
        "reply",
        "seconds",
        "sent",
        "sent_again",
        "subject",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, identity: str, subject: str, model: str) -> None:
        self.identity = identity
        self.subject = subject
        """Where the frames come."""
        self.key = subject.rpartition(".")[2]
        """Its last token, under which the queue keeps this."""
        self.reply = ""
        """Where the queue confirms the publication."""
        self.model = model
        self.message: bytes | None = None
        """What was published, until the queue has confirmed it."""
        self.sent = self.heard = 0.0
        self.seconds = 0.0
        """How long the request may take."""
        self.deadline = self.look_at = NEVER
        self.ask_at = NEVER
        """When workers are to be asked for the answer."""
        self.ask_every, self.ask_growth = ASK_EVERY, 1
        self.asked = False
        """They have been asked once."""
        self.begun = False
        """The answer has begun: it can no longer be had from elsewhere."""
        self.sent_again = False
        self.duplicate = False
        """Another gateway had published it before."""
        self.duplicate_of = 0
        """Where that one is in the stream; 0: nothing is known of it, or somebody has been heard of it."""
        self._loop = loop
        self._frames: deque[wire.Frame] = deque()
        self._held = 0
        self._taken = 0
        """Frames that have come, without those that came again."""
        self._repeated = 0
        """Frames that are about to come again."""
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> wire.Frame:
        """The next frame. Raises what :meth:`fail` was given when there will be none."""
        while not self._frames:
            if self._failure is not None:
                raise self._failure
            self._waiter = self._loop.create_future()
            await self._waiter
        frame = self._frames.popleft()
        self._held -= len(frame.body)
        return frame

    def put(self, frame: wire.Frame, now: float) -> None:
        """A frame has come."""
        self.heard = now
        if self._failure is not None:
            return
        self.duplicate_of = 0
        if frame.kind is wire.Kind.ALIVE:
            self.ask_growth = 2  # somebody has it at work; there is no hurry
            return
        if not self.begun and frame.kind in (wire.Kind.MORE, wire.Kind.END):
            self.ask(now, growth=2)  # its beginning was lost; asked for, it comes again from there
            return
        self.ask_at = NEVER
        if self.begun and frame.kind is wire.Kind.BEGIN:
            self._repeated = self._taken  # it was asked for in the moment in which it began
        if self._repeated:
            self._repeated -= 1
            return
        self.begun = self.begun or frame.kind is wire.Kind.BEGIN
        self._taken += 1
        self._frames.append(frame)
        self._held += len(frame.body)
        if self._held > MOST_HELD:
            self._frames.clear()
            self.fail(broke_off("the client takes it too slowly"))
        self._wake()

    def ask(self, first: float, growth: int) -> None:
        """Have the workers asked for this, first at a time, then each time ``growth`` times as late."""
        self.ask_every, self.ask_growth, self.ask_at = ASK_EVERY, growth, first
        self.look_at = min(self.deadline, first)

    def fail(self, failure: Exception) -> None:
        """There will be nothing more."""
        if self._failure is None:
            self._failure = failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
