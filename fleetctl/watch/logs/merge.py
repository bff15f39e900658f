"""Lines of several boxes, each in its own order, as one log in the order of time. Pure: it is told the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from fleetctl.watch.logs.line import Line

# Seconds that a line waits for earlier ones of boxes that are followed: journald wakes its readers once in 0.25 s.
WINDOW = 0.6
LONGEST = 1.5  # seconds after which it waits no more, whatever the clocks of the boxes say
STALL = 3.0  # seconds of silence after which a box that should have more is not waited for


class Phase(Enum):
    """What is to be expected of a box."""

    READING = "it has more that was there before"
    LIVE = "lines come as they are written"
    AWAY = "nothing for now"
    OVER = "nothing any more"


@dataclass
class _Queue:
    phase: Phase = Phase.READING
    lines: deque[tuple[Line, float]] = field(default_factory=deque)
    """Lines, and when each came."""
    read_to: float = float("-inf")
    """All before this time has come."""
    heard: float = float("-inf")


class Merge:
    """Where lines of the boxes come in as they come and go out in order, each at most LONGEST later.

    ``patient``: a box that has more to tell is waited for however long it is silent (a log that is not followed).
    """

    def __init__(self, boxes: Iterable[str], *, patient: bool) -> None:
        self._queues = {box: _Queue() for box in boxes}
        self._patient = patient

    def add(self, box: str, lines: Iterable[Line], read_to: float | None, now: float) -> None:
        """Further lines of a box, which has been read up to a time (epoch seconds).

        Within a box the order stays, also where its clock was set back.
        """
        queue = self._queues[box]
        queue.heard = now
        for line in lines:
            at = max(line.at, queue.read_to)
            queue.lines.append((line if at == line.at else replace(line, at=at), now))
            queue.read_to = at
        if read_to is not None:
            queue.read_to = max(queue.read_to, read_to)

    def expect(self, box: str, phase: Phase, now: float) -> None:
        """What is to be expected of a box from now on."""
        self._queues[box].phase = phase
        self._queues[box].heard = now

    def held(self, box: str) -> int:
        """How many lines of a box have not gone out."""
        return len(self._queues[box].lines)

    def take(self, now: float) -> list[Line]:
        """The lines that can go out, in order."""
        out: list[Line] = []
        while True:
            heads = [queue for queue in self._queues.values() if queue.lines]
            if not heads:
                return out
            first = min(heads, key=lambda queue: queue.lines[0][0].at)
            line, came = first.lines[0]
            if not all(self._past(queue, line.at, came, now) for queue in self._queues.values() if not queue.lines):
                return out
            out.append(line)
            first.lines.popleft()

    def over(self) -> bool:
        """No box has anything more."""
        return all(queue.phase is Phase.OVER and not queue.lines for queue in self._queues.values())

    def _past(self, queue: _Queue, at: float, came: float, now: float) -> bool:
        """A box without a line here will have none before ``at``, as far as one can wait for that."""
        if queue.phase in (Phase.AWAY, Phase.OVER) or queue.read_to >= at:
            return True
        if queue.phase is Phase.READING:
            return not self._patient and now - max(queue.heard, came) > STALL
        return at <= now - WINDOW or now - came >= LONGEST
