"""A watch on the fleet of a command."""

from __future__ import annotations

import threading
from dataclasses import asdict
from types import TracebackType
from typing import Any

from fleetctl.errors import FleetError
from fleetctl.facts.history import gather_history
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection
from fleetctl.run.history import changes
from fleetctl.run.overview import state_of
from fleetctl.run.subject import Subject
from fleetctl.watch.sample import Sample
from fleetctl.watch.watcher import Watcher


def watcher_of(subject: Subject) -> Watcher:
    """Reads the fleet; boxes that could not be connected are tried again in the background."""
    return Watcher(subject.boxes, subject.fleet, away=subject.unreachable, connect=subject.connect)


class Watched:
    """A fleet that is looked at again and again. A box that was away at first is looked at once it can be reached."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._late: dict[str, BoxConnection] = {}
        self._lock = threading.Lock()
        connect = None if subject.connect is None else self._connect
        self._watcher = Watcher(subject.boxes, subject.fleet, away=subject.unreachable, connect=connect)

    def sample(self) -> Sample:
        """What engines, proxy and boxes say now."""
        return self._watcher.sample()

    def state(self, last: int = 10) -> dict[str, Any]:
        """What `status` tells, without the samples, and the ``last`` changes, as JSON values. Raises FleetError."""
        subject = self._now()
        seen = state_of(subject, file=False)
        told, _ = gather_history(subject.boxes, last)
        state = seen.as_json() | {"changes": [asdict(change) for change in changes(told, last)]}
        state.pop("sample")
        return state

    def __enter__(self) -> Watched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.close()

    def _connect(self, name: str) -> BoxConnection:
        connect = self._subject.connect
        assert connect is not None
        connection = connect(name)
        with self._lock:
            self._late[name] = connection
        return connection

    def _now(self) -> Subject:
        with self._lock:
            late = dict(self._late)
        subject = self._subject
        away: dict[str, FleetError] = {name: why for name, why in subject.unreachable.items() if name not in late}
        return Subject(subject.fleet, subject.text, Boxes({**subject.boxes, **late}), away)
