"""What was measured, as values. The boxes tell it as ``fleetctl/onbox/proxyfigures.py`` and ``proxylog.py`` have it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from fleetctl.spec.fleet_proxy import Proxy


class Told(BaseModel):
    """Base of what a box tells: unknown keys are ignored, so that a newer program does not break an older client."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Times(Told):
    """Durations: ``buckets`` are upper end (milliseconds) and count, in order; ``longest`` is exact (milliseconds)."""

    buckets: tuple[tuple[int, int], ...] = ()
    longest: int = 0

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(count for _, count in self.buckets)

    @property
    def longest_s(self) -> float:
        """The longest, in seconds; 0 when there was none."""
        return self.longest / 1000

    def quantile(self, share: float) -> float:
        """Seconds within which such a share of them was, up to 5 % too long; 0 when there was none."""
        left = math.ceil(self.count * share)
        for bound, count in self.buckets:
            left -= count
            if left <= 0:
                return min(bound, self.longest) / 1000
        return self.longest_s

    @classmethod
    def together(cls, several: Iterable[Times]) -> Times:
        """Durations of several boxes or backends as one."""
        counts, longest = Counter[int](), 0
        for times in several:
            counts.update(dict(times.buckets))
            longest = max(longest, times.longest)
        return cls(buckets=tuple(sorted(counts.items())), longest=longest)

    def above(self, seconds: float) -> int:
        """How many were longer, but for those in the bucket that it falls into."""
        return sum(count for bound, count in self.buckets if bound > seconds * 1000 * 1.05)


class Requests(Told):
    """Requests of one backend; see ``Requests`` in ``proxylog.py``."""

    held: Times = Times()
    idle: Times = Times()
    queue: Times = Times()
    connect: Times = Times()
    first_byte: Times = Times()
    run: Times = Times()
    left_queue: Times = Times()
    counts: dict[str, int] = {}
    statuses: dict[str, int] = {}
    ends: dict[str, int] = {}
    tries: dict[str, int] = {}

    @property
    def count(self) -> int:
        """How many there were."""
        return self.counts.get("requests", 0)

    @classmethod
    def together(cls, several: Iterable[Requests]) -> Requests:
        """Requests that several proxies had of one backend."""
        parts = list(several)
        figures = ("held", "idle", "queue", "connect", "first_byte", "run", "left_queue")
        counts = ("counts", "statuses", "ends", "tries")
        return cls.model_validate(
            {name: Times.together(getattr(part, name) for part in parts) for name in figures}
            | {name: _added(getattr(part, name) for part in parts) for name in counts}
        )


class Changes(Told):
    """Servers that went out and came back."""

    downs: dict[str, int] = {}
    false_alarms: int = 0
    relapses: int = 0
    checks: Times = Times()


class Log(Told):
    """The proxy's log. Times are epoch seconds; ``why`` says why it is not complete."""

    lines: int = 0
    damaged: int = 0
    oldest: float | None = None
    newest: float | None = None
    backends: dict[str, Requests] = {}
    changes: Changes = Changes()
    complete: bool = True
    why: str | None = None

    @classmethod
    def together(cls, several: Iterable[Log]) -> Log:
        """The logs of several proxies, among which a floating address goes, as one."""
        logs = list(several)
        names = dict.fromkeys(name for log in logs for name in log.backends)
        oldest = [log.oldest for log in logs if log.oldest is not None]
        newest = [log.newest for log in logs if log.newest is not None]
        changes = Changes(
            downs=_added(log.changes.downs for log in logs),
            false_alarms=sum(log.changes.false_alarms for log in logs),
            relapses=sum(log.changes.relapses for log in logs),
            checks=Times.together(log.changes.checks for log in logs),
        )
        return cls(
            lines=sum(log.lines for log in logs),
            damaged=sum(log.damaged for log in logs),
            oldest=min(oldest, default=None),
            newest=max(newest, default=None),
            backends={
                name: Requests.together(log.backends[name] for log in logs if name in log.backends) for name in names
            },
            changes=changes,
            complete=all(log.complete for log in logs),
        )

    @property
    def requests(self) -> int:
        """Requests of all backends."""
        return sum(requests.count for requests in self.backends.values())

    def counted(self, what: str) -> int:
        """A count of all backends together."""
        return sum(requests.counts.get(what, 0) for requests in self.backends.values())

    def ended(self, *ends: str) -> int:
        """How many requests ended so, in HAProxy's two letters."""
        return sum(requests.ends.get(end, 0) for requests in self.backends.values() for end in ends)


class Checks(Told):
    """Health checks over a moment; ``failed`` and ``qmax`` (longest queue) are since HAProxy's last reload."""

    took: Times = Times()
    checked: int = 0
    failed: int = 0
    qmax: dict[str, int] = {}

    @classmethod
    def together(cls, several: Iterable[Checks]) -> Checks:
        """What several proxies say: each checks every engine."""
        parts = list(several)
        names = dict.fromkeys(name for part in parts for name in part.qmax)
        return cls(
            took=Times.together(part.took for part in parts),
            checked=max((part.checked for part in parts), default=0),
            failed=sum(part.failed for part in parts),
            qmax={name: max(part.qmax.get(name, 0) for part in parts) for name in names},
        )


def _added(several: Iterable[dict[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for counts in several:
        total.update(counts)
    return dict(total)


class ProxyTold(Told):
    """What the box with the proxy tells of it. ``checks`` is None when it does not run."""

    log: Log = Log()
    checks: Checks | None = None


class MoveTold(Told):
    """What a finished move measured, in seconds."""

    gap: float | None = None
    loads: dict[str, float] | None = None
    stops: dict[str, float] | None = None


class HistogramsTold(Told):
    """Histograms of an engine since it started: upper end (None: no end) and count."""

    time_to_first_token_seconds: tuple[tuple[float | None, float], ...] = ()
    request_prompt_tokens: tuple[tuple[float | None, float], ...] = ()


class EngineTold(Told):
    """An engine of the layout that a box is in."""

    id: str
    backend: str
    context: int
    concurrency: int


class BoxTold(Told):
    """All that one box tells. ``settings`` are those of the proxy that the box is in, under the keys of fleet.yaml."""

    layout: str | None = None
    generation: int | None = None
    layout_engines: tuple[EngineTold, ...] = ()
    settings: dict[str, float | None] = {}
    proxy: ProxyTold | None = None
    engines: dict[str, HistogramsTold | None] = {}
    moves: tuple[MoveTold, ...] = ()


@dataclass(frozen=True)
class EngineFigures:
    """One engine of the live layout. ``context`` is in tokens; ``told`` None: it did not answer."""

    id: str
    backend: str
    context: int
    concurrency: int
    told: HistogramsTold | None = None

    @property
    def first_token(self) -> tuple[float, int] | None:
        """Upper end, in seconds, of the slowest bucket of first tokens that has an end, and how many it rests on."""
        return _top(self.told.time_to_first_token_seconds) if self.told else None

    @property
    def prompt(self) -> float | None:
        """Upper end, in tokens, of the bucket with the longest prompts; at most the context."""
        top = _top(self.told.request_prompt_tokens) if self.told else None
        return None if top is None else min(top[0], float(self.context))


def _top(buckets: Iterable[tuple[float | None, float]]) -> tuple[float, int] | None:
    ends = [(end, count) for end, count in buckets if end is not None and count > 0]
    return (max(end for end, _ in ends), round(sum(count for _, count in ends))) if ends else None


@dataclass(frozen=True)
class Worst:
    """A duration (seconds) of the backend in which it is longest."""

    seconds: float
    backend: str
    count: int


@dataclass(frozen=True)
class Measured:
    """The settings of now, and all that is known of how the fleet uses them."""

    settings: Proxy
    engines: tuple[EngineFigures, ...] = ()
    log: Log = field(default_factory=Log)
    checks: Checks | None = None
    loads: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Engine → seconds of each of its starts."""
    stops: tuple[float, ...] = ()

    @property
    def copies(self) -> dict[str, int]:
        """Backend → engines of the live layout."""
        backends = [engine.backend for engine in self.engines]
        return {backend: backends.count(backend) for backend in backends}

    def worst(self, figure: str, share: float = 1.0) -> Worst | None:
        """The longest (or a quantile) of a figure of :class:`Requests`, in the backend that needs most."""
        found = [
            Worst(times.quantile(share) if share < 1 else times.longest_s, name, times.count)
            for name, requests in self.log.backends.items()
            if (times := getattr(requests, figure)).count
        ]
        return max(found, key=lambda one: one.seconds, default=None)
