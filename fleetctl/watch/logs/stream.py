"""The log of one box, from a thread of its own: read, lost, found again, without a line lost or told twice."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import FleetError, reason
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.watch.logs.clean import lines_of
from fleetctl.watch.logs.funnel import Funnel
from fleetctl.watch.logs.line import SECOND, Line
from fleetctl.watch.logs.merge import Phase

OP = "journal_lines"
LOOKS = 3  # at the clock of a box; the quickest answer tells most
TRUSTED = 0.05  # seconds: two clocks that are closer are the same, as far as this can tell
TRY_EVERY = (1.0, 5.0)  # seconds between two attempts to reach a box: at first, and after some
ACK_LIMIT = 30.0  # seconds


@dataclass(frozen=True)
class Wanted:
    """What to read of a box. Times are epoch seconds by the clock of this machine."""

    units: tuple[str, ...]
    follow: bool
    lines: int | None
    since: float | None
    until: float | None
    grep: str | None
    leave_out: str | None = None


class BoxStream:
    """Puts lines and notes of a box into a funnel until there are no more, or it is told to stop."""

    def __init__(
        self,
        box: str,
        wanted: Wanted,
        funnel: Funnel,
        connection: BoxConnection | None,
        connect: Callable[[], BoxConnection] | None,
        away: FleetError | None = None,
    ) -> None:
        self.box = box
        self.error: FleetError | None = None
        self._wanted, self._funnel, self._connect = wanted, funnel, connect
        self._connection, self._away = connection, away
        self._stop = threading.Event()
        self._name = secrets.token_hex(8)
        self._cursor: str | None = None
        self._events = 0
        self._ahead = 0.0
        self._thread = threading.Thread(target=self._run, name=f"{box}-log", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Have the reading end, also that on the box."""
        self._stop.set()
        if self._connection is not None:
            self._connection.cancel([OP])

    def join(self, limit: float) -> None:
        """Wait for its end, at most so many seconds."""
        self._thread.join(limit)

    def _run(self) -> None:
        away, tries = False, 0
        try:
            while not self._stop.is_set():
                try:
                    box = self._reached()
                    self._look_at_clock(box)
                    if away:
                        self._funnel.note(self.box, "is back")
                        self._funnel.expect(self.box, Phase.READING)
                    away, tries = False, 0
                    self._read(box)
                    return
                except FleetError as error:
                    if self._stop.is_set():
                        return
                    self._funnel.expect(self.box, Phase.AWAY)
                    hopeless = isinstance(error, OpFailed) and error.kind == "OpError" and not self._events
                    if hopeless or not self._wanted.follow:
                        self.error = error
                        self._funnel.note(self.box, reason(self.box, error))
                        return
                    if not away:
                        self._funnel.note(self.box, f"{reason(self.box, error)}; trying again until it is back")
                    away, tries = True, tries + 1
                    self._stop.wait(TRY_EVERY[0] if tries < 10 else TRY_EVERY[1])
        finally:
            self._funnel.expect(self.box, Phase.OVER)

    def _reached(self) -> BoxConnection:
        """The box, connected again where the connection is lost."""
        if self._away is not None:  # it could not be reached a moment ago; that is said before it is tried again
            error, self._away = self._away, None
            raise error
        if self._connection is None:
            if self._connect is None:
                raise ConnectionLost(self.box, "it is not connected")
            self._connection = self._connect()
        self._connection.reconnect()
        return self._connection

    def _look_at_clock(self, box: BoxConnection) -> None:
        """How far the clock of the box is ahead of this machine's, as far as the way there lets one tell."""
        best = float("inf")
        for _ in range(LOOKS):
            begin, began = time.time(), time.monotonic()
            told = float(box.call("clock", timeout=ACK_LIMIT))
            took = time.monotonic() - began
            if took < best:
                best, ahead = took, told - (begin + took / 2)
        self._ahead = ahead if abs(ahead) > max(TRUSTED, best) else 0.0
        if abs(self._ahead) >= 1:
            side = "ahead of" if self._ahead > 0 else "behind"
            text = f"its clock is {abs(self._ahead):.1f} s {side} this machine's; times are shown by this machine's"
            self._funnel.note(self.box, text)

    def _read(self, box: BoxConnection) -> None:
        wanted = self._wanted
        self._events = 0
        args: dict[str, Any] = {
            "stream": self._name,
            "units": list(wanted.units),
            "cursor": self._cursor,
            "since": None if wanted.since is None else wanted.since + self._ahead,
            "until": None if wanted.until is None else wanted.until + self._ahead,
            "lines": wanted.lines,
            "grep": wanted.grep,
            "leave_out": wanted.leave_out,
            "follow": wanted.follow,
        }
        box.call_with(OP, args, on_event=lambda event: self._take(box, event))

    def _take(self, box: BoxConnection, event: dict[str, Any]) -> None:
        """One event: it blocks while the funnel is full, and so in the end does the box."""
        at = event["at"]
        lines = [line for told in event["lines"] for line in self._lines(*told)]
        self._funnel.add(self.box, lines, None if at is None else at / SECOND - self._ahead, self._stop)
        self._cursor = event["cursor"] or self._cursor
        self._events += 1
        if event["skipped"]:
            self._funnel.note(
                self.box, f"{event['skipped']} records of the journal cannot be shown: too long, or damaged"
            )
        if event["live"]:
            self._funnel.expect(self.box, Phase.LIVE)
        if self._stop.is_set():
            raise ConnectionLost(self.box, "stopped")
        box.call("journal_taken", timeout=ACK_LIMIT, stream=self._name, events=self._events)

    def _lines(self, at: int, unit: str, identifier: str, pid: str, priority: str, message: str) -> list[Line]:
        moment = at / SECOND
        return [
            Line(self.box, unit, moment - self._ahead, moment, identifier, pid, priority, text)
            for text in lines_of(message)
        ]
