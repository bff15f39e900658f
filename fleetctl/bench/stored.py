"""A load on a layout that was measured and kept, and which of those that are kept can be compared. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fleetctl.bench.mix import Mix
from fleetctl.bench.replay import Recording
from fleetctl.bench.summary import Summary, Target
from fleetctl.spec.units import seconds


class Kept(BaseModel):
    """Base of what is kept on a box: keys that a newer version wrote are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Latencies(Kept):
    """A distribution in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class Figures(Kept):
    """What a load measured; times are seconds, rates per second unless the name says otherwise."""

    requests: int
    answered: int
    errors: dict[str, int] = {}
    requests_per_minute: float
    tokens_in_rate: float
    tokens_out_rate: float
    ttft: Latencies | None = None
    tpot: Latencies | None = None
    total: Latencies | None = None
    good_per_minute: float | None = None
    good_share: float | None = None
    saturated: bool = False
    """The generator itself did not keep up."""


class Load(Kept):
    """What was sent: two loads that are equal can be compared. ``clients``, ``rate`` or ``recording`` is set.

    ``digest`` is of the mix as it was, tokens that all prompts share included: a file of the same name may change.
    """

    model: str
    mix: str
    digest: str
    shared: int = 0
    seed: int = 0
    clients: int | None = None
    rate: float | None = None
    recording: str | None = None
    faster: float = 1.0
    stream: bool = True

    @property
    def how_much(self) -> str:
        """How many at once, or how often, in words."""
        if self.clients is not None:
            return f"{self.clients} at once"
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        return f"recording {self.recording}" + (f", {self.faster:g} times as fast" if self.faster != 1.0 else "")

    @property
    def command(self) -> str:
        """The command that sends the same to the layout that is live."""
        parts = [f"fleetctl bench {self.model} --through-proxy --mix {self.mix}"]
        if self.clients is not None:
            parts.append(f"--concurrency {self.clients}")
        elif self.rate is not None:
            parts.append(f"--rate {self.rate:g}")
        else:
            parts.append("--replay FILE" + (f" --faster {self.faster:g}" if self.faster != 1.0 else ""))
        parts += [f"--seed {self.seed}"] if self.seed else []
        parts += [f"--shared-prefix {self.shared}"] if self.shared else []
        parts += [] if self.stream else ["--whole"]
        return " ".join(parts)

    def __str__(self) -> str:
        more = f", {self.shared} tokens shared" if self.shared else ""
        whole = "" if self.stream else ", answers in one piece"
        return f"{self.mix} ({self.digest[:6]}), {self.how_much}, seed {self.seed}{more}{whole}"


class Goal(Kept):
    """The target that answers had to keep; seconds."""

    ttft: float | None = None
    tpot: float | None = None
    total: float | None = None

    def __str__(self) -> str:
        parts = (("ttft", self.ttft), ("tpot", self.tpot), ("total", self.total))
        return ",".join(f"{name}={_exact(limit)}" for name, limit in parts if limit is not None)


class StoredRun(Kept):
    """One load that a layout as a whole got through its proxy. ``at`` is in epoch seconds, times are seconds.

    ``engines`` has the digests of each engine's ranks, ``builds`` the version of each program or image.
    """

    at: float
    who: str = "somebody"
    fleetctl: str = ""
    layout: str
    generation: int | None = None
    load: Load
    target: Goal | None = None
    duration: float
    warm_up: float = 0.0
    engines: dict[str, tuple[str, ...]] = {}
    builds: dict[str, str] = {}
    figures: Figures


def load_of(
    model: str,
    mix: Mix,
    *,
    seed: int,
    stream: bool,
    clients: int | None = None,
    rate: float | None = None,
    recording: Recording | None = None,
    faster: float = 1.0,
) -> Load:
    """The load of a model of the fleet, as it is kept."""
    what = mix.model_dump_json(exclude={"name", "about"})
    return Load(
        model=model,
        mix=mix.name,
        digest=_digest(what),
        shared=mix.shared,
        seed=seed,
        clients=clients,
        rate=rate,
        recording=None if recording is None else _digest(repr(recording.arrivals)),
        faster=faster,
        stream=stream,
    )


def figures_of(summary: Summary) -> Figures:
    """The figures that are kept of a load."""
    told: dict[str, Any] = asdict(summary)
    return Figures.model_validate({**told, "saturated": bool(summary.generator and summary.generator.saturated)})


def goal_of(target: Target | None) -> Goal | None:
    """The target that is kept of a load."""
    return None if target is None else Goal(ttft=target.ttft, tpot=target.tpot, total=target.total)


def read_runs(records: Iterable[Any]) -> list[StoredRun]:
    """Those that are understood of what a box kept, oldest first."""
    found = []
    for record in records:
        try:
            run = StoredRun.model_validate(record)
        except ValidationError:
            continue
        if _finite(run.model_dump()):
            found.append(run)
    return sorted(found, key=lambda run: run.at)


def _finite(value: Any) -> bool:
    """No number in it is infinite or none."""
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return not isinstance(value, float) or math.isfinite(value)


class Wanted(Kept):
    """What a stored run has to be like; None: whatever it is."""

    model: str
    mix: str | None = None
    digest: str | None = None
    seed: int | None = None
    clients: int | None = None
    rate: float | None = None
    target: Goal | None = None

    def fits(self, run: StoredRun) -> bool:
        """A run is like that."""
        load = run.load
        pairs = (
            (self.model, load.model),
            (self.mix, load.mix),
            (self.digest, load.digest),
            (self.seed, load.seed),
            (self.clients, load.clients),
            (self.rate, load.rate),
            (self.target, run.target),
        )
        return all(mine is None or mine == its for mine, its in pairs)


class Chosen(Kept):
    """The runs to be compared, layout by layout (None: there is none), and what is to be said of the choice."""

    runs: dict[str, StoredRun | None]
    notes: tuple[str, ...] = ()


def choose(runs: Sequence[StoredRun], layouts: tuple[str, str], wanted: Wanted) -> Chosen:
    """The last run of each layout with the same load, of loads that both had the one that was measured last.

    Only runs of one and the same load are ever compared: where each layout has runs and no load in common, none is
    chosen, and the notes name what there is.
    """
    last: dict[str, dict[Load, StoredRun]] = {layout: {} for layout in layouts}
    for run in sorted(runs, key=lambda run: run.at):
        if run.layout in last and wanted.fits(run):
            last[run.layout][run.load] = run
    one, other = (last[layout] for layout in layouts)
    both = [load for load in one if load in other]
    if both:
        load = max(both, key=lambda load: min(one[load].at, other[load].at))
        pair = (one[load], other[load])
        return Chosen(runs=dict(zip(layouts, pair, strict=True)), notes=_unlike(pair))
    if one and other:
        told = "; ".join(f"{layout} had {_told(last[layout].values())}" for layout in layouts)
        return Chosen(
            runs=dict.fromkeys(layouts),
            notes=(f"not compared, for no load was measured on both: {told}",),
        )
    only = {layout: max(last[layout].values(), key=lambda run: run.at) if last[layout] else None for layout in layouts}
    return Chosen(runs=only)


def _unlike(pair: tuple[StoredRun, StoredRun]) -> tuple[str, ...]:
    """In what two runs of the same load differ that may count."""
    one, other = pair
    notes = []
    if one.target != other.target:
        told = " and ".join(f"{run.layout} {run.target or 'without one'}" for run in pair)
        notes.append(f"the targets were not the same ({told}): how much kept to them is not compared")
    if one.duration != other.duration:
        told = " and ".join(f"{run.layout} for {seconds(run.duration)}" for run in pair)
        notes.append(f"measured for different times: {told}")
    for run in pair:
        if run.figures.saturated:
            notes.append(f"{run.layout}: the generator did not keep up, so its figures are partly the generator's own")
        if run.figures.errors:
            failed = ", ".join(f"{kind}: {count}" for kind, count in run.figures.errors.items())
            notes.append(f"{run.layout}: of {run.figures.requests} requests failed {failed}")
    changed = [name for name in one.builds if name in other.builds and one.builds[name] != other.builds[name]]
    notes += [
        f"not the same build of {name}: {one.layout} {one.builds[name]}, {other.layout} {other.builds[name]}"
        for name in changed
    ]
    return tuple(notes)


def _told(runs: Iterable[StoredRun]) -> str:
    newest = sorted(runs, key=lambda run: run.at, reverse=True)
    more = f" and {len(newest) - 3} more" if len(newest) > 3 else ""
    return ", ".join(str(run.load) for run in newest[:3]) + more


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _exact(limit: float) -> str:
    return f"{1000 * limit:g}ms" if limit < 1 else f"{limit:g}s"
