"""Lines of units' journal as they come, no faster than the client takes them."""

import json
import os
import re
import selectors
import subprocess
import time
from typing import Any, Dict, Iterator, List, Optional, Pattern, Sequence, Tuple

from fleetctl.onbox.main import Call, CancelledError, OpError, environment, op

FIELDS = "MESSAGE,_SYSTEMD_UNIT,UNIT,OBJECT_SYSTEMD_UNIT,COREDUMP_UNIT,SYSLOG_IDENTIFIER,_PID,PRIORITY"
PIECE = 1 << 17  # bytes read at a time
LONGEST_RECORD = 1 << 21  # bytes of a record; a longer one is left out
LONGEST_TEXT = 16384  # characters of a message; the rest of a longer one is cut off
BATCH = 256  # lines of one event
BATCH_TEXT = 1 << 17  # characters of one event, after which it is sent
WINDOW = 8  # events that the client may have to take still: journalctl waits then, and nothing piles up
FAR = 50_000  # records, after which no more of the newest lines are looked for, unless a pattern is
QUIET = 0.02  # seconds without a record after which what there is is sent

_taken: Dict[str, int] = {}  # stream → events that the client has taken

Line = List[Any]


@op("clock")
def clock(call: Call) -> float:
    """The time of this box (epoch seconds)."""
    return time.time()


@op("journal_taken")
def journal_taken(call: Call, stream: str, events: int) -> Dict[str, Any]:
    """The client has taken so many events of a stream."""
    if stream in _taken:
        _taken[stream] = events
    return {}


@op("journal_lines")
def journal_lines(
    call: Call,
    stream: str,
    units: List[str],
    cursor: Optional[str] = None,
    since: Optional[float] = None,
    until: Optional[float] = None,
    lines: Optional[int] = None,
    grep: Optional[str] = None,
    leave_out: Optional[str] = None,
    follow: bool = False,
) -> Dict[str, Any]:
    """Tell the journal of units in events, oldest line first; to the end, or with ``follow`` until cancelled.

    It begins after ``cursor``; without one ``since`` (epoch seconds), with the newest ``lines`` only. ``grep`` is a
    pattern that a message has to match; one without capitals matches any case, as journalctl has it. What matches
    ``leave_out`` does not count.
    An event has ``lines`` (``[microseconds, unit, identifier, pid, priority, message]``), the ``cursor`` of the last
    record that was looked at, ``at`` (its time), ``skipped`` (records too long to read) and ``live``: what follows was
    not there when it was asked for. The client tells with ``journal_taken`` how many it took.
    """
    sieve = Sieve(grep, leave_out)
    _taken[stream] = 0
    try:
        bounds = [] if until is None else ["--until", _at(until)]
        start: List[str]
        before = cursor
        if cursor is not None:
            start = ["--cursor", cursor]
        elif lines is not None:
            first, before = _newest(call, units, since, bounds, lines, sieve)
            start = ["--cursor", first or before or ""] if first or before else ["--since", _at(time.time())]
        else:
            start = [] if since is None else ["--since", _at(since)]
        _Telling(call, stream, units, sieve).tell([*start, *bounds], before, follow)
    finally:
        _taken.pop(stream, None)
    return {}


class Sieve:
    """Which messages are wanted."""

    def __init__(self, grep: Optional[str], leave_out: Optional[str]) -> None:
        self.searching = grep is not None
        self._wanted = None if grep is None else _pattern(grep)
        self._unwanted = None if leave_out is None else _pattern(leave_out)

    def keeps(self, text: str) -> bool:
        """The message is wanted."""
        if self._unwanted is not None and self._unwanted.search(text):
            return False
        return self._wanted is None or self._wanted.search(text) is not None


def _pattern(text: str) -> Pattern[str]:
    try:
        return re.compile(text, 0 if any(letter.isupper() for letter in text) else re.IGNORECASE)
    except re.error as error:
        raise OpError("%s is no regular expression for the python3 here: %s" % (text, error)) from None


def _at(moment: float) -> str:
    return "@%.6f" % moment


def _newest(
    call: Call,
    units: Sequence[str],
    since: Optional[float],
    bounds: List[str],
    lines: int,
    sieve: Sieve,
) -> Tuple[Optional[str], Optional[str]]:
    """Cursor of the oldest of the newest ``lines``, or else of the record after which to begin; None: there is none.

    Only the cursor is kept, however many lines that are.
    """
    end: Optional[str] = None
    for record in _records(call, ["--lines", "1", *bounds], "MESSAGE"):
        if record:
            end = record["__CURSOR"]
    if not lines:
        return None, end
    oldest: Optional[str] = None
    found = 0
    start = ["--reverse", *bounds, *([] if since is None else ["--since", _at(since)])]
    for looked, record in enumerate(_records(call, [*_of(units), *start], FIELDS)):
        if record and sieve.keeps(text_of(record.get("MESSAGE"))):
            oldest, found = record["__CURSOR"], found + 1
        if found == lines or (looked > FAR and not sieve.searching):
            break
    return oldest, None if oldest else end


def _of(units: Sequence[str]) -> List[str]:
    return [word for unit in units for word in ("--unit", unit)]


class _Telling:
    """Gathers lines to events and sends them when the client has room."""

    def __init__(self, call: Call, stream: str, units: Sequence[str], sieve: Sieve) -> None:
        self._call, self._stream, self._units, self._sieve = call, stream, list(units), sieve
        self._lines: List[Line] = []
        self._size = self._skipped = self._sent = 0
        self._cursor: Optional[str] = None
        self._at: Optional[int] = None
        self._told: Optional[str] = None

    def tell(self, start: List[str], before: Optional[str], follow: bool) -> None:
        """Every record that journalctl shows, but for the one with the cursor ``before``, and then those that come."""
        self._cursor = before
        self._read(start, before)
        self._send(live=follow)
        if follow:  # a process of its own: the end of the first is the end of what was there
            last = self._cursor
            self._read(["--follow", "--no-tail", *(start if last is None else ["--cursor", last])], last)
            raise OpError("journalctl ended")

    def _read(self, argv: List[str], before: Optional[str]) -> None:
        for record in _records(self._call, [*_of(self._units), *argv], FIELDS):
            if record is None:
                if self._lines or self._cursor != self._told:
                    self._send(live=False)
            elif not record:
                self._skipped += 1
            elif record["__CURSOR"] != before:
                self._take(record)

    def _take(self, record: Dict[str, Any]) -> None:
        self._cursor, self._at = record["__CURSOR"], int(record["__REALTIME_TIMESTAMP"])
        text = text_of(record.get("MESSAGE"))
        if self._sieve.keeps(text):
            line = [
                self._at,
                _unit_of(record, self._units),
                _first(record.get("SYSLOG_IDENTIFIER")),
                _first(record.get("_PID")),
                _first(record.get("PRIORITY")),
                text[:LONGEST_TEXT],
            ]
            self._lines.append(line)
            self._size += min(len(text), LONGEST_TEXT)
        if len(self._lines) >= BATCH or self._size >= BATCH_TEXT:
            self._send(live=False)

    def _send(self, *, live: bool) -> None:
        while self._sent - _taken[self._stream] >= WINDOW:
            if self._call.cancelled.wait(0.01):
                raise CancelledError("cancelled")
        self._call.event(lines=self._lines, cursor=self._cursor, at=self._at, live=live, skipped=self._skipped)
        self._sent += 1
        self._told = self._cursor
        self._lines, self._size, self._skipped = [], 0, 0


def _records(call: Call, argv: Sequence[str], fields: str) -> Iterator[Optional[Dict[str, Any]]]:
    """Records as journalctl shows them; an empty one for one that is too long, None when no further comes for now.

    journalctl ends with the iteration, however that ends. Raises OpError when it fails, CancelledError.
    """
    words = ["journalctl", "--output", "json", "--all", "--no-pager", "--quiet", "--output-fields", fields, *argv]
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
    except OSError as error:
        raise OpError("journalctl cannot be run: %s" % (error.strerror or error)) from None
    said = b""
    try:
        assert process.stdout is not None and process.stderr is not None
        rest, too_long, idle = b"", False, False
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stderr, selectors.EVENT_READ)
            while selector.get_map():
                call.check()
                ready = selector.select(0.2 if idle else QUIET)
                if not ready and not idle:
                    idle = True
                    yield None
                for key, _ in ready:
                    piece = os.read(key.fd, PIECE)
                    if not piece:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        said = (said + piece)[-400:]
                    else:
                        idle = False
                        *whole, rest = (rest + piece).split(b"\n")
                        for raw in whole:
                            yield {} if too_long else _parsed(raw)
                            too_long = False
                        if len(rest) > LONGEST_RECORD:
                            rest, too_long = b"", True
        if process.wait() != 0:
            told = said.decode("utf-8", "replace").strip()
            raise OpError("journalctl: %s" % (told or "status %d" % process.returncode))
    finally:
        process.kill()
        process.communicate()


def _parsed(raw: bytes) -> Dict[str, Any]:
    try:
        record = json.loads(raw.decode("utf-8", "replace"))
        return record if "__CURSOR" in record and int(record["__REALTIME_TIMESTAMP"]) >= 0 else {}
    except (ValueError, TypeError, KeyError):
        return {}


def text_of(value: Any) -> str:
    """A field as text. journalctl shows one that is not UTF-8 as a list of bytes, and several of one name as a list."""
    if isinstance(value, list):
        if value and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
            return bytes(value).decode("utf-8", "replace")
        return "\n".join(text_of(one) for one in value)
    return "" if value is None else str(value)


def _first(value: Any) -> str:
    return text_of(value).split("\n", 1)[0][:200]


def _unit_of(record: Dict[str, Any], units: Sequence[str]) -> str:
    """The unit that a record is about: systemd's own words on a unit come from another."""
    for field in ("UNIT", "OBJECT_SYSTEMD_UNIT", "COREDUMP_UNIT", "_SYSTEMD_UNIT"):
        unit = _first(record.get(field))
        if unit in units:
            return unit
    return ""
