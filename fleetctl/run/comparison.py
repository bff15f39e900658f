"""Two layouts beside each other, and what is given up with each. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetctl.bench.stored import Figures, StoredRun
from fleetctl.plan.losses import Loss

ALIKE = 0.03  # throughputs within so much of each other are called the same
ALIKE_LATENCY = 0.10  # latencies scatter more


@dataclass(frozen=True)
class Room:
    """The KV cache of one engine in tokens: as it logged when it last started here, and as the sum of memory has it.

    ``about`` says why it is not known, or what the sum is.
    """

    engine: str
    context: int
    logged: int | None
    expected: int | None
    about: tuple[str, ...] = ()

    @property
    def tokens(self) -> int | None:
        """What the engine said, else what is expected."""
        return self.logged if self.logged is not None else self.expected

    @property
    def requests(self) -> float | None:
        """Requests of full context that it holds at once."""
        return None if self.tokens is None else self.tokens / self.context


@dataclass(frozen=True)
class MeasuredGap:
    """How long one move had no engine, in seconds; ``at`` is in epoch seconds. ``operation``: cutover or rollback."""

    at: float
    gap: float
    move: str
    operation: str


@dataclass(frozen=True)
class Way:
    """The move from one layout to the other. ``planned`` in seconds; None: not known, or refused for what ``why`` says.

    ``live``: the fleet is where it begins, so that it is the plan's own figure and not an estimate.
    """

    origin: str
    goal: str
    planned: float | None
    why: str
    live: bool
    measured: tuple[MeasuredGap, ...] = ()
    """Newest first."""


@dataclass(frozen=True)
class Side:
    """One of the layouts."""

    layout: str
    run: StoredRun | None
    rooms: tuple[Room, ...]
    losses: tuple[Loss, ...]
    live: bool = False

    @property
    def worst(self) -> float:
        """The largest part of the model's copies that the restart of one box takes away."""
        return max((loss.share for loss in self.losses), default=0.0)

    @property
    def room(self) -> Room | None:
        """The engine with the least cache: what a request can count on. None where one is not known."""
        known = [room for room in self.rooms if room.tokens is not None]
        whole = bool(known) and len(known) == len(self.rooms)
        return min(known, key=lambda room: room.tokens or 0) if whole else None

    @property
    def tokens(self) -> int | None:
        """Cache of all engines together."""
        sizes = [room.tokens for room in self.rooms]
        return sum(size or 0 for size in sizes) if sizes and None not in sizes else None


@dataclass(frozen=True)
class Comparison:
    """All that is known of two layouts, for one model."""

    fleet: str
    model: str
    sides: tuple[Side, Side]
    ways: tuple[Way, Way]
    notes: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    """Layout → the command that would measure it."""

    @property
    def conclusion(self) -> str:
        """What is to be had with the one, and what is given up for that, in sentences."""
        return conclude(self.sides, compared=not self.missing and all(side.run for side in self.sides))


@dataclass(frozen=True)
class _Point:
    """What speaks for a layout: how much it weighs, what is had with it, and what is given up without it."""

    weight: int
    had: str
    given_up: str


def conclude(sides: tuple[Side, Side], *, compared: bool) -> str:
    """The sentences. ``compared``: both have a run of the same load."""
    one, other = sides
    mine, its = _speaks_for(one, other, compared=compared), _speaks_for(other, one, compared=compared)
    if not mine and not its:
        told = f"Nothing that is known speaks for {one.layout} or {other.layout}."
    else:
        first = sum(point.weight for point in mine) >= sum(point.weight for point in its)
        better, worse = (one, other) if first else (other, one)
        gained, lost = (mine, its) if first else (its, mine)
        told = f"{better.layout} {_listed([point.had for point in gained])}."
        if lost:
            told += f" What is given up for that is {_listed([point.given_up for point in lost])}."
        else:
            told += f" Nothing that is known speaks for {worse.layout}."
    told += "" if compared else " Throughput and latency are not compared: there are no two runs of the same load."
    return told + _rule(sides)


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _speaks_for(one: Side, other: Side, *, compared: bool) -> list[_Point]:
    """What is better in one layout: throughput and restarts weigh more than latency and room."""
    found = _measured(one.run.figures, other.run.figures) if compared and one.run and other.run else []
    if one.worst < 1 <= other.worst:
        alone = next((loss.box for loss in one.losses if loss.proxy), None)
        but = f" (but {alone} has the only proxy)" if alone else ""
        which = "either" if len(one.losses) == 2 else "any"
        found.append(_Point(2, f"keeps a copy of the model when {which} box restarts{but}", "a copy on every box"))
    elif one.worst < other.worst < 1:
        told = f"{one.worst:.0%} of the throughput against {other.worst:.0%}"
        found.append(_Point(2, f"loses less when a box restarts ({told})", f"more when a box restarts ({told})"))
    if one.room and other.room and (one.room.tokens or 0) > 1.1 * (other.room.tokens or 0):
        mine, its = _cache(one.room), _cache(other.room)
        room = f"cache room: a request can use its own copy's alone, {its}, where {one.layout} has {mine}"
        found.append(_Point(1, f"has {mine} of cache for one request, where {other.layout} has {its}", room))
    return found


def _measured(mine: Figures, its: Figures) -> list[_Point]:
    """What is better in the figures of a run; ``mine`` are those of the layout that is spoken for."""
    found = []
    unit, high, low = "tokens/s", mine.tokens_out_rate, its.tokens_out_rate
    if not high and not low:  # embeddings
        unit, high, low = "requests/min", mine.requests_per_minute, its.requests_per_minute
    if high > low * (1 + ALIKE):
        share = f"{high / low - 1:.0%} more {unit}" if low else f"more {unit}"
        figures = f"({high:.0f} against {low:.0f})"
        found.append(_Point(3, f"makes {share} {figures}", f"throughput: {low:.0f} {unit} against {high:.0f}"))
    if mine.ttft and its.ttft and mine.ttft.p90 < its.ttft.p90 * (1 - ALIKE_LATENCY):
        had = f"has its first tokens sooner (p90 {mine.ttft.p90:.2f} s against {its.ttft.p90:.2f} s)"
        given_up = f"first tokens as soon: p90 {its.ttft.p90:.2f} s against {mine.ttft.p90:.2f} s"
        found.append(_Point(1, had, given_up))
    return found


def _cache(room: Room) -> str:
    return f"{room.tokens or 0:,} tokens ({room.requests or 0:.1f} full contexts)"


def _rule(sides: tuple[Side, Side]) -> str:
    """The rule of thumb, where one layout has whole copies and the other one engine over several boxes."""
    copies = [side for side in sides if side.worst < 1]
    if len(copies) != 1 or copies[0].room is None:
        return ""
    side, room = copies[0], copies[0].room
    rest = next(one.layout for one in sides if one is not side)
    if (room.requests or 0) < 1:
        return f" A copy of {side.layout} does not hold one request of full context: {rest} is for those who need it."
    return (
        f" If {room.tokens or 0:,} tokens of cache are enough for what a copy has at once, {side.layout} is the better "
        f"one; {rest} is for when they are not."
    )
