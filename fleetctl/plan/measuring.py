"""What a move measures while an engine is out of the proxy, as values of the plan. Pure."""

from __future__ import annotations

from typing import Any

from fleetctl.render.release import Value
from fleetctl.render.trial import Trial


class Knee(Value):
    """A search for the knee: the highest concurrency, the most measurements, and where the knee is expected."""

    most: int
    probes: int
    expected: int | None = None


class Tried(Value):
    """One setting: what it is now (None: the engine's default), what is started, and what is not and why."""

    name: str
    present: float | None
    candidates: tuple[float, ...]
    skipped: tuple[tuple[float, str], ...] = ()


class Candidate(Value):
    """Values of all settings together, and the unit that has them."""

    values: dict[str, float | None]
    trial: Trial


class Measuring(Value):
    """``load`` is what is sent (fleetctl.bench.asked). With ``knee`` the engine itself is measured; otherwise it is
    stopped, and starts with one set of values after the other.

    ``windows``: measurements of each start, at ``concurrency``. ``usable``: bytes that it may take of the box's memory
    (None: the engine's memory is the GPU's own). ``starts``: most starts; ``seconds``: how long all takes at most, None
    where that is not known.
    """

    load: dict[str, Any]
    knee: Knee | None = None
    settings: tuple[Tried, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    concurrency: int = 1
    windows: int = 4
    usable: int | None = None
    starts: int = 0
    seconds: float | None = None
