"""What the proxy's log tells of its requests: counts and small histograms, made here so that no log leaves the box.

The log is the journal of the proxy's unit, read from its newest line backwards as journalctl writes it. However many
lines there are, what is kept of them is as small: buckets of durations, counts of statuses and ends. Addresses of
clients, names of keys and paths are not looked at. HAProxy's own words: `%Ti` idle_ms, `%Tw` queue_ms, `%Tc`
connect_ms, `%Tr` first_byte_ms, `%Ta` total_ms, `%rc` retries, `%ts` end.
"""

import bisect
import json
import re
from typing import Any, Dict, Iterable, List, Optional, Tuple

GROWTH = 1.05  # each bucket ends 5 % above the one before: that is how exact a quantile is
MOST = 10**11  # milliseconds, three years; a longer time is a damaged line
_BOUNDS = sorted({0, MOST, *(round(GROWTH**power) for power in range(519))})
_TIMES = ("held_ms", "idle_ms", "queue_ms", "connect_ms", "first_byte_ms", "total_ms")
_POST = b'"method":"POST"'  # what asks for a completion; in a path the quotes would be escaped
_CHANGE = re.compile(rb"Server ([^/\s]{1,80})/(\S{1,80}) is (UP|DOWN), reason: ([A-Za-z0-9 ]{1,40})")
_DURATION = re.compile(rb"check duration: ([0-9]{1,7})ms")
_END = re.compile("[A-Za-z-]{2}")
CHECK_LATE = (b"Layer4 timeout", b"Layer7 timeout")  # the check was not answered in time; the engine may be well
FALSE_ALARM = 30.0  # seconds within which an engine that was only late is back
RELAPSE = 10.0  # seconds within which an engine that came back was out again


class Times:
    """How often durations were seen, in buckets, and the longest."""

    def __init__(self) -> None:
        self.counts: Dict[int, int] = {}
        self.longest = 0

    def add(self, milliseconds: int) -> None:
        """Count one duration."""
        bound = _BOUNDS[bisect.bisect_left(_BOUNDS, milliseconds)]
        self.counts[bound] = self.counts.get(bound, 0) + 1
        self.longest = max(self.longest, milliseconds)

    def told(self) -> Dict[str, Any]:
        """``buckets``: upper end in milliseconds and count, in order; ``longest`` is exact."""
        return {"buckets": [list(bucket) for bucket in sorted(self.counts.items())], "longest": self.longest}


class Requests:
    """The requests of one backend."""

    FIGURES = ("held", "idle", "queue", "connect", "first_byte", "run", "left_queue")

    def __init__(self) -> None:
        self.times = {name: Times() for name in self.FIGURES}
        self.counts: Dict[str, int] = {}
        self.statuses: Dict[str, int] = {}
        self.ends: Dict[str, int] = {}
        self.tries: Dict[str, int] = {}

    def count(self, what: str) -> None:
        """One more of something."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def add(self, line: Dict[str, Any], servers: Iterable[str]) -> bool:
        """Count one request; False when its line is damaged and was not counted."""
        status, end, server = line.get("status"), line.get("end"), line.get("server")
        times = [_milliseconds(line.get(key, -1)) for key in _TIMES]
        tries = re.fullmatch(r"\+?([0-9]{1,3})", str(line.get("retries")))
        if not all(times) or tries is None or not isinstance(end, str) or not _END.fullmatch(end):
            return False
        if type(status) is not int or not -1 <= status <= 999:
            return False
        held, idle, queue, connect, first_byte, total = (one[0] for one in times)
        again = int(tries[1])
        _more(self.statuses, str(status))
        _more(self.ends, end)
        if again:
            _more(self.tries, str(again))
        self.count("requests")
        whole = 200 <= status <= 299 and end == "--"
        if held > 0:
            self.times["held"].add(held)
            if status == 503 and end == "PR":
                self.count("hold_over")
        if idle > 0:
            self.times["idle"].add(idle)
        if end == "CQ" and queue >= 0:
            self.times["left_queue"].add(queue)
        if server == "<lua.aloud>":
            self.count("aloud")
        if not isinstance(server, str) or server not in servers:
            return True
        if status >= 500 and again:
            self.count("lost_after_retries")
        if queue >= 0 and whole and not again:  # before another try HAProxy waits, which is in this time too
            self.times["queue"].add(queue)
        if connect >= 0 and not again:
            self.times["connect"].add(connect)
        if whole and first_byte >= 0:
            self.times["first_byte"].add(first_byte)
            self.times["run"].add(max(0, total - max(0, queue) - max(0, held)))
        return True

    def told(self) -> Dict[str, Any]:
        """All of it, for JSON."""
        return {
            **{name: times.told() for name, times in self.times.items()},
            "counts": self.counts,
            "statuses": self.statuses,
            "ends": self.ends,
            "tries": self.tries,
        }


class Changes:
    """How often a server was taken out by checks that were late, seen from the newest line backwards."""

    def __init__(self) -> None:
        self.downs: Dict[str, int] = {}
        self.false_alarms = 0
        self.relapses = 0
        self.checks = Times()
        self._up: Dict[Tuple[str, str], float] = {}
        self._down: Dict[Tuple[str, str], float] = {}

    def add(self, server: Tuple[str, str], state: bytes, reason: bytes, at: float, took: Optional[int]) -> None:
        """Count one change; ``took`` is the duration of the check in milliseconds, ``at`` is in epoch seconds."""
        late = reason in CHECK_LATE
        if took is not None and not late:
            self.checks.add(took)
        if state == b"UP":
            if server in self._down and 0 <= self._down[server] - at < RELAPSE:
                self.relapses += 1
            self._up[server] = at
            return
        _more(self.downs, reason.decode("ascii"))
        if late and server in self._up and 0 <= self._up[server] - at < FALSE_ALARM:
            self.false_alarms += 1
        self._down[server] = at

    def told(self) -> Dict[str, Any]:
        """All of it, for JSON."""
        return {
            "downs": self.downs,
            "false_alarms": self.false_alarms,
            "relapses": self.relapses,
            "checks": self.checks.told(),
        }


class Log:
    """Takes lines in the form of ``journalctl -o short-unix --reverse``; ``backends`` has the servers of each."""

    def __init__(self, backends: Dict[str, List[str]]) -> None:
        self._servers = {name: frozenset(servers) for name, servers in backends.items()}
        self.requests = {name: Requests() for name in backends}
        self.changes = Changes()
        self.lines = self.damaged = 0
        self.oldest: Optional[float] = None
        self.newest: Optional[float] = None

    def add(self, line: bytes) -> None:
        """Take one line, whatever is in it."""
        prefix, _, message = line.partition(b": ")
        at = _number(prefix.split(b" ", 1)[0])
        if at is None:
            return  # what journalctl says itself, or a further line of a message
        self.lines += 1
        self.newest = at if self.newest is None else self.newest
        self.oldest = at
        if _POST in message:
            if not self._request(message):
                self.damaged += 1
        elif message.startswith(b"Server "):
            self._change(message, at)

    def _request(self, message: bytes) -> bool:
        try:
            request = json.loads(message.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return False
        if not isinstance(request, dict) or not isinstance(request.get("backend"), str):
            return False
        backend = request["backend"]
        if backend not in self.requests:  # answered by the proxy itself, or of a model that is no more
            return True
        return self.requests[backend].add(request, self._servers[backend])

    def _change(self, message: bytes, at: float) -> None:
        found = _CHANGE.match(message)
        if found is None:
            return
        backend, server = (name.decode("utf-8", "replace") for name in found.group(1, 2))
        if server in self._servers.get(backend, ()):
            took = _DURATION.search(message)
            self.changes.add((backend, server), found[3], found[4], at, int(took[1]) if took else None)

    def told(self) -> Dict[str, Any]:
        """All of it, for JSON. Times are epoch seconds."""
        return {
            "lines": self.lines,
            "damaged": self.damaged,
            "oldest": self.oldest,
            "newest": self.newest,
            "backends": {name: requests.told() for name, requests in self.requests.items()},
            "changes": self.changes.told(),
        }


def _more(counts: Dict[str, int], what: str) -> None:
    """One more; a damaged log does not make endless kinds of things."""
    if what in counts or len(counts) < 100:
        counts[what] = counts.get(what, 0) + 1


def _milliseconds(value: Any) -> Tuple[int, ...]:
    """A time of the log, which is -1 for what was not reached; empty for what is no time."""
    return (value,) if type(value) is int and -1 <= value <= MOST else ()


def _number(text: bytes) -> Optional[float]:
    return float(text) if re.fullmatch(rb"[0-9]{1,12}\.[0-9]{1,9}", text) else None
