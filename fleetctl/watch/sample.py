"""The fleet at one moment. None is "not known" everywhere, and never zero."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetctl.watch.pool_sample import PoolSample


@dataclass(frozen=True)
class Counts:
    """Counters of one engine, or of several together, since the watch began; they never go backwards.

    What an engine counted before the watch began is in them too. Tokens, requests, seconds.
    """

    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    requests: float | None = None
    """Requests that ended."""
    first_tokens: float | None = None
    """How many first tokens the next one sums up."""
    first_token_seconds: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    preemptions: float | None = None


@dataclass(frozen=True)
class Figures:
    """What people read. Rates are over the time since the sample before, and None in the first.

    Tokens/s, requests/min, seconds, parts of 1.
    """

    running: float | None = None
    waiting: float | None = None
    prompt_rate: float | None = None
    generation_rate: float | None = None
    request_rate: float | None = None
    first_token: float | None = None
    """Seconds to the first token, the mean of those since the sample before."""
    cache_usage: float | None = None
    """Of several engines: weighed by their caches where those are known, otherwise their mean."""
    prefix_hit_rate: float | None = None
    acceptance: float | None = None
    """Accepted of drafted tokens."""


@dataclass(frozen=True)
class Copy:
    """One engine. ``why`` says why it could not be read (``figures`` and ``counts`` are then the last known counters).

    ``server`` is what the proxy says of it in HAProxy's word (``UP``, ``DOWN``, ``DRAIN``, ``MAINT``; ``HUNG`` for one
    that is up and gets nothing because it leaves completions unanswered; several, joined by a slash, where proxies
    differ; ``unknown``). ``unit`` is systemd's word for its unit, with the box where one of several is not active.
    """

    id: str
    model: str
    boxes: tuple[str, ...]
    server: str
    unit: str
    figures: Figures
    counts: Counts
    restarts: int = 0
    """How often its counters began anew since the watch began."""
    why: str | None = None

    @property
    def known(self) -> bool:
        """It was read this time."""
        return self.why is None


@dataclass(frozen=True)
class BoxSample:
    """One box. Sizes are bytes; ``pressure`` is the share of the last 10 s (percent) that something waited for memory.

    ``drained``: an operator took it out of the proxy. ``why``: the box could not be asked.
    """

    memory: int | None = None
    available: int | None = None
    swap_used: int | None = None
    pressure: float | None = None
    drained: bool | None = None
    why: str | None = None


@dataclass(frozen=True)
class ProxySample:
    """The proxies together: requests that wait in the shared queue, those that are held, and those that run."""

    waiting: int | None = None
    running: int | None = None
    request_rate: float | None = None
    """Requests per second, as HAProxy counts its last second."""
    held: int | None = None
    """Requests whose model has no engine that takes them."""


@dataclass(frozen=True)
class Sample:
    """The fleet at ``at`` (epoch seconds). ``total`` is over the copies that are known; see ``unknown``.

    ``counts`` sums up all copies, also those of earlier layouts that were read since the watch began; ``models`` has
    the same for each model. ``changed`` is when the layout or its settings were last changed (epoch seconds, by a box).
    """

    at: float
    fleet: str
    layout: str | None
    generation: int | None
    copies: tuple[Copy, ...] = ()
    total: Figures = field(default_factory=Figures)
    counts: Counts = field(default_factory=Counts)
    models: dict[str, Counts] = field(default_factory=dict)
    boxes: dict[str, BoxSample] = field(default_factory=dict)
    proxy: ProxySample = field(default_factory=ProxySample)
    changed: float | None = None
    pool: PoolSample | None = None
    """The pool of the layout, where it has one."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Copies that could not be read."""
        return tuple(copy.id for copy in self.copies if not copy.known)

    @property
    def complete(self) -> bool:
        """Every copy was read: the sums lack nothing of now."""
        return bool(self.copies) and not self.unknown
