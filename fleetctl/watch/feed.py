"""One look at the fleet for all who watch: it begins with the first viewer and ends with the last."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from fleetctl.errors import FleetError
from fleetctl.watch.sample import Sample

EVERY = 2.0  # seconds from one sample to the next
STATE_EVERY = 15.0  # seconds between two looks at what changes seldom, unless a sample shows that something did
LINGER = 10.0  # seconds without a viewer until the boxes are left alone: a page that is loaded again comes at once
QUIET = 60.0  # seconds without a sample after which what was before is of another time
KEPT = 150  # samples of which the figures are kept for those who come later
MOST = 32  # viewers at a time

Event = tuple[str, str]
"""Name and JSON."""


class TooManyViewersError(FleetError):
    """There is no room for another viewer."""


class Feed:
    """Events of three kinds: ``sample`` every few seconds, ``state`` when there is a new one, ``past`` first of all.

    ``sample`` and ``state`` look at the fleet; they are called from threads of the feed, one call of each at a time.
    """

    def __init__(
        self,
        sample: Callable[[], Sample],
        state: Callable[[], dict[str, Any]],
        *,
        every: float = EVERY,
        state_every: float = STATE_EVERY,
        linger: float = LINGER,
    ) -> None:
        self._sample, self._state = sample, state
        self._every, self._state_every, self._linger = every, state_every, linger
        self._news = threading.Condition()
        self._viewers = 0
        self._left = 0.0
        self._running: set[str] = set()
        self._events: dict[str, tuple[int, str]] = {}
        self._number = 0
        self._past: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._signs: tuple[Any, ...] | None = None
        self._state_due = threading.Event()
        self._over = threading.Event()
        self._asking = threading.Lock()
        self._asked: tuple[float, dict[str, Any]] | None = None

    @property
    def at_work(self) -> bool:
        """The boxes are being asked."""
        return bool(self._running)

    def close(self) -> None:
        """End it, and with it every viewer."""
        self._over.set()
        self._state_due.set()
        with self._news:
            self._news.notify_all()

    def now(self) -> dict[str, Any]:
        """``state`` and ``sample`` as they are: those of the last seconds, or after a look of its own."""
        with self._asking:
            if self._asked is None or time.monotonic() - self._asked[0] > self._every:
                with self._news:
                    events = dict(self._events) if self._running else {}
                told: dict[str, Any] = {kind: json.loads(text) for kind, (_, text) in events.items()}
                if "state" not in told:
                    told["state"] = self._look()
                if "sample" not in told:
                    told["sample"] = asdict(self._sample())
                self._asked = (time.monotonic(), told)
            return self._asked[1]

    @contextmanager
    def viewer(self) -> Iterator[Iterator[list[Event]]]:
        """What there is to see: first all that is known, then what is new, until the feed is closed.

        An empty list comes when there was nothing new for a while. Raises TooManyViewersError.
        """
        with self._news:
            if self._viewers >= MOST:
                raise TooManyViewersError(f"{MOST} viewers are there already")
            self._viewers += 1
            for kind, work in (("sample", self._samples), ("state", self._states)):
                if kind not in self._running:
                    self._running.add(kind)
                    threading.Thread(target=work, name=f"feed {kind}", daemon=True).start()
        try:
            yield self._seen()
        finally:
            with self._news:
                self._viewers -= 1
                self._left = time.monotonic()

    def _seen(self) -> Iterator[list[Event]]:
        with self._news:
            past = list(self._past)
        yield [("past", json.dumps(past))]
        known = 0
        while not self._over.is_set():
            with self._news:
                if self._number <= known:
                    self._news.wait(3 * self._every)
                fresh = sorted((number, kind, text) for kind, (number, text) in self._events.items() if number > known)
                known = self._number
            yield [(kind, text) for _, kind, text in fresh]

    def _tell(self, kind: str, value: dict[str, Any]) -> None:
        text = json.dumps(value, default=str)
        with self._news:
            self._number += 1
            self._events[kind] = (self._number, text)
            self._news.notify_all()

    def _wanted(self, kind: str) -> bool:
        """Somebody watches, or did a moment ago. The thread of that kind ends when nobody does."""
        with self._news:
            if self._viewers or time.monotonic() - self._left < self._linger:
                return not self._over.is_set()
            self._running.discard(kind)
            self._events.clear()
            return False

    def _samples(self) -> None:
        due = time.monotonic()
        while self._wanted("sample"):
            sample = self._sample()
            if self._past and sample.at - self._past[-1]["at"] > QUIET:
                self._past.clear()  # nobody watched meanwhile
            if not self._past or sample.at > self._past[-1]["at"]:
                self._past.append(point(sample))
            self._tell("sample", asdict(sample))
            signs = (sample.changed, sample.unknown, [name for name, box in sample.boxes.items() if box.why])
            if self._signs is not None and signs != self._signs:
                self._state_due.set()
            self._signs = signs
            due = max(due + self._every, time.monotonic())
            self._over.wait(due - time.monotonic())

    def _states(self) -> None:
        while self._wanted("state"):
            self._state_due.clear()
            self._tell("state", self._look())
            end = time.monotonic() + self._state_every
            while time.monotonic() < end and not self._state_due.wait(min(1.0, self._state_every)):
                if not self._viewers:
                    break

    def _look(self) -> dict[str, Any]:
        try:
            return self._state()
        except FleetError as error:
            return {"error": error.message}


def point(sample: Sample) -> dict[str, Any]:
    """What a line over time needs of a sample; None where nothing was known."""
    total = sample.total
    return {
        "at": sample.at,
        "running": total.running,
        "waiting": total.waiting,
        "generation_rate": total.generation_rate,
        "prompt_rate": total.prompt_rate,
        "request_rate": total.request_rate,
        "first_token": total.first_token,
        "queue": sample.proxy.waiting,
        "held": sample.proxy.held,
        "copies": {copy.id: copy.figures.generation_rate for copy in sample.copies},
    }
