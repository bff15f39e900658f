"""How much of the queue's store a job may take: lines are submitted only as far as they and their answers have room.

The submitter counts, and no limit is set on the streams: at ``max_bytes`` NATS 2.9 refuses new messages, as it is told
to, and yet removes old ones that it has acknowledged (tried with 2.9.10: of 107 accepted messages 106 are there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nats.js import JetStreamContext

from fleetctl.pool import wire

SHARE_OF_LINES = 0.1
SHARE_OF_ANSWERS = 0.3
"""Shares of the store for lines that wait and for answers; long bodies have their own, requests the rest."""
ANSWER = 16_384
"""Bytes that an answer is taken to have at least, for those that are to come."""
BESIDE = 400
"""Bytes of a stored line beside its body: envelope, subject, headers, and what the server adds."""
MOST = 1024
"""Lines that are published before the room is looked at again."""

Full = Literal["", "queue", "answers"]
"""What has no room: the queue for further lines, or the store for answers, with no line left that will be answered."""


@dataclass(frozen=True)
class Stored:
    """Messages of a stream and their bytes."""

    messages: int
    bytes: int


def lines_with_room(store: int, waiting: Stored, answers: Stored, size: float) -> tuple[int, Full]:
    """How many more lines of that size (bytes) to submit, at most :data:`MOST`, and what is full when it is none.

    ``store``: bytes that the server keeps at most; 0: not known, and no limit.
    """
    if store <= 0:
        return MOST, ""
    mean = max(ANSWER, answers.bytes / answers.messages if answers.messages else 0)
    by_lines = (SHARE_OF_LINES * store - waiting.bytes) / (size + BESIDE)
    by_answers = (SHARE_OF_ANSWERS * store - answers.bytes) / mean - waiting.messages
    if by_answers < 1 and not waiting.messages:
        return 0, "answers"
    found = int(max(0, min(by_lines, by_answers, MOST)))
    return found, "" if found else "queue"


async def look(js: JetStreamContext, store: int, size: float) -> tuple[int, Full]:
    """The same, of the streams as they are now."""
    if store <= 0:
        return MOST, ""
    found = [(await js.stream_info(name)).state for name in (wire.BATCH, wire.RESULTS)]
    waiting, answers = (Stored(state.messages, state.bytes) for state in found)
    return lines_with_room(store, waiting, answers, size)
