"""Where the threads of the boxes bring their lines, and one takes them in order. It holds no more than so many."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from fleetctl.watch.logs.line import Line, Note
from fleetctl.watch.logs.merge import Merge, Phase

ROOM = 2000  # lines of a box that are held; whoever brings more waits
LOOK = 0.1  # seconds between two looks at the time, while lines wait for others


class Funnel:
    """A merge that is safe to use from any thread."""

    def __init__(self, boxes: Iterable[str], *, patient: bool) -> None:
        self._merge = Merge(boxes, patient=patient)
        self._notes: list[Note] = []
        self._changed = threading.Condition()

    def add(self, box: str, lines: list[Line], read_to: float | None, stop: threading.Event) -> None:
        """Bring lines of a box; waits for room unless stopped."""
        with self._changed:
            while self._merge.held(box) >= ROOM and not stop.is_set():
                self._changed.wait(LOOK)
            self._merge.add(box, lines, read_to, time.time())
            self._changed.notify_all()

    def expect(self, box: str, phase: Phase) -> None:
        """See :meth:`Merge.expect`."""
        with self._changed:
            self._merge.expect(box, phase, time.time())
            self._changed.notify_all()

    def note(self, box: str, text: str) -> None:
        """Say something of a box; it comes out at once."""
        with self._changed:
            self._notes.append(Note(box, text))
            self._changed.notify_all()

    def take(self, wait: float) -> list[Line | Note] | None:
        """What can go out, waiting for it so many seconds; None when there will never be more."""
        end = time.monotonic() + wait
        with self._changed:
            while True:
                lines = self._merge.take(time.time())
                out: list[Line | Note] = [*self._notes, *lines]
                self._notes.clear()
                if lines:
                    self._changed.notify_all()
                if out:
                    return out
                if self._merge.over():
                    return None
                rest = end - time.monotonic()
                if rest <= 0:
                    return []
                self._changed.wait(min(rest, LOOK))
