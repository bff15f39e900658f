"""The logs of several boxes as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from fleetctl.errors import FleetError
from fleetctl.remote.connection import BoxConnection
from fleetctl.watch.logs.funnel import Funnel
from fleetctl.watch.logs.line import Line, Note
from fleetctl.watch.logs.names import Source
from fleetctl.watch.logs.stream import BoxStream, Wanted

LAST_WORDS = 2.0  # seconds that the boxes get to end their reading
TICK = 0.5  # seconds between two empty answers, in which the caller sees whether it is still wanted


class Reading:
    """Context manager: reads the sources on their boxes, and iterates over lines in the order of time and notes.

    It yields None when nothing more comes for now, and every TICK seconds while nothing does. ``connect`` connects a
    box anew; ``away`` are the boxes that could not be reached, and why.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        wanted: Wanted,
        boxes: Mapping[str, BoxConnection],
        connect: Callable[[str], BoxConnection] | None,
        away: Mapping[str, FleetError],
    ) -> None:
        units: dict[str, list[str]] = {}
        for source in sources:
            units.setdefault(source.box, []).append(source.unit)
        self._funnel = Funnel(units, patient=not wanted.follow)
        self._errors: list[FleetError] = []
        self._streams: list[BoxStream] = []
        for box, names in units.items():
            stream = BoxStream(
                box,
                replace(wanted, units=tuple(dict.fromkeys(names))),
                self._funnel,
                boxes.get(box),
                None if connect is None else partial(connect, box),
                away.get(box),
            )
            self._streams.append(stream)

    def __enter__(self) -> Reading:
        for stream in self._streams:
            stream.start()
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.stop()
        for stream in self._streams:
            stream.join(LAST_WORDS)

    def __iter__(self) -> Iterator[Line | Note | None]:
        while True:
            found = self._funnel.take(TICK)
            if found is None:
                return
            yield from found
            yield None

    def errors(self) -> list[FleetError]:
        """Why boxes could not be read, or not to the end."""
        return [stream.error for stream in self._streams if stream.error is not None]
