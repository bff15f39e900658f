"""A copy is measured while the others serve: its knee, or settings that need a restart. From facts to a plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleetctl.bench.asked import Asked
from fleetctl.bench.knee import Range
from fleetctl.bench.settings import Setting, most_starts
from fleetctl.errors import RefusedError, SpecError
from fleetctl.facts.took import last_loads
from fleetctl.plan.measuring import Candidate, Knee, Measuring, Tried
from fleetctl.plan.playbook import Playbook
from fleetctl.plan.types import Plan
from fleetctl.render.candidate import BATCHED, DRAFTS, SETTINGS, SHARE, present, why_not, with_values
from fleetctl.render.engine import Place, concurrency
from fleetctl.render.release import Engine, Release
from fleetctl.render.trial import render_trial
from fleetctl.run.planning import Look, Subject
from fleetctl.run.rolling import live_in, on_live
from fleetctl.run.sizing import size_up
from fleetctl.run.trial import fleet_of, one_on, taken_out
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.problems import near_or_all
from fleetctl.spec.units import gib, seconds

MOST_CANDIDATES = 48  # sets of values that one plan has a unit for
TO_MEET = 120.0  # seconds that the first requests to an engine that has just started may take
SAME_MEMORY = 0.1
"""How far the memory: of a box may be from what its kernel has for both to be the same, and not the GPU's own."""


@dataclass(frozen=True)
class Wanted:
    """What is to be tried, in its order: setting → values."""

    settings: dict[str, tuple[float, ...]]
    windows: int = 4


def parse_settings(words: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """From ``NAME=VALUE,VALUE``. Raises SpecError for another form, a name that there is not, and a value that is none.

    Values are whole numbers of at least 1, a share is more than 0 and at most 1.
    """
    found: dict[str, tuple[float, ...]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if name not in SETTINGS:
            raise SpecError(f"--settings {word}: there is no setting {name}", hint=near_or_all(name, SETTINGS))
        if not equals or name in found:
            why = "it has no values" if not equals else "it is named twice"
            raise SpecError(f"--settings {word}: {why}", hint=f"for example: --settings {name}={_example(name)}")
        found[name] = tuple(dict.fromkeys(_value(word, name, text) for text in values.split(",")))
    return found


def _example(name: str) -> str:
    return {BATCHED: "2048,4096,8192", DRAFTS: "2,4", SHARE: "0.74,0.78"}[name]


def _value(word: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    whole = value == int(value) and 1 <= value <= 10_000_000 if abs(value) < 1e9 else False
    if not (0 < value <= 1 if name == SHARE else whole):
        right = "a share is more than 0 and at most 1" if name == SHARE else "it is a whole number, at least 1"
        raise SpecError(f"--settings {word}: {text or 'nothing'} is no value: {right}")
    return value


def plan_knee(
    subject: Subject, seen: Look, book: Playbook, engine: Engine, asked: Asked, within: Range, *, hold: bool
) -> Plan:
    """The plan that takes an engine out of the proxy, measures it alone, and puts it back."""
    out = taken_out(
        subject, seen, engine, stops=False, hold=hold, otherwise="use --hold: requests wait in the proxy meanwhile"
    )
    measuring = Measuring(
        load=asked.model_dump(mode="json"),
        knee=Knee(most=within.most, probes=within.probes, expected=within.expected),
        seconds=TO_MEET + 2 * within.probes * asked.duration,
    )
    why = f"requests for {', '.join(out.left)} wait in the proxy meanwhile" if out.left else None
    plan = on_live(subject, seen, book, "tune", replace(out.difference, measuring=measuring), why_held=why)
    expected = f"; the knee is expected near {within.expected}" if within.expected else ""
    note = f"at most {within.probes} measurements: {_long(measuring.seconds)}{expected}"
    return plan.model_copy(update={"warnings": (*plan.warnings, note)})


def _long(most: float | None) -> str:
    return "how long a start takes is not known yet" if most is None else f"at most about {seconds(most)}"


def plan_settings(
    subject: Subject, seen: Look, book: Playbook, box: str, model: str, asked: Asked, wanted: Wanted, *, hold: bool
) -> Plan:
    """The plan that starts a copy with each of the values wanted, measures it, and brings it back as it was.

    Raises RefusedError for a split, for a setting that the copy does not have, and where there is nothing to try.
    """
    live = live_in(subject, seen)
    engine, _ = one_on(live, subject, box, model)
    if engine.kind == "split":
        boxes = ", ".join(other.box for other in engine.ranks)
        raise RefusedError(
            f"{engine.id} is one engine over {boxes}: its settings cannot be tried on {box} alone; nothing was changed",
            hint="only copies are tried, one at a time while the others serve",
        )
    otherwise = "use --hold: requests wait in the proxy, for as long as all the starts take"
    out = taken_out(subject, seen, engine, stops=True, hold=hold, otherwise=otherwise)
    measuring, notes = _measuring(subject, seen, live, engine, asked, wanted)
    why = f"requests for {', '.join(out.left)} wait in the proxy" if out.left else None
    plan = on_live(subject, seen, book, "tune", replace(out.difference, measuring=measuring), why_held=why)
    return plan.model_copy(update={"warnings": (*plan.warnings, *notes)})


def _measuring(
    subject: Subject, seen: Look, live: Release, engine: Engine, asked: Asked, wanted: Wanted
) -> tuple[Measuring, tuple[str, ...]]:
    """What is started, and what is to be known of it before."""
    fleet, box = fleet_of(live, subject.fleet), engine.head.box
    place = Place(live.layout or "", engine.model, box, 0, (box,), engine.port, engine.head.share)
    now = present(fleet, place)
    settings = []
    for name, values in wanted.settings.items():
        reason = why_not(fleet, place, name)
        if reason is not None:
            raise RefusedError(f"{name} cannot be tried: {reason}; nothing was changed")
        skipped = _skipped(subject, live, engine, fleet, place, name, [value for value in values if value != now[name]])
        kept = tuple(value for value in values if value != now[name] and value not in skipped)
        settings.append(Tried(name=name, present=now[name], candidates=kept, skipped=tuple(skipped.items())))
    notes = [f"{one.name} {value:g} is not tried: {why}" for one in settings for value, why in one.skipped]
    if not any(one.candidates for one in settings):
        raise RefusedError(
            f"{engine.id}: there is nothing to try; nothing was changed:\n"
            + "\n".join(f"- {note}" for note in notes or ["every value that was named is what it has now"]),
        )
    if DRAFTS in wanted.settings:
        notes.append(
            "how many drafts are accepted depends on the text, and that of the mix is made up of random words: with "
            "yours speculative_tokens may do better or worse than what comes out"
        )
    usable = fleet.boxes[box].memory - fleet.boxes[box].reserve
    total = seen.observed[box].memory.get("total", 0)
    own = abs(total / fleet.boxes[box].memory - 1) > SAME_MEMORY if total else True
    starts = most_starts([Setting(one.name, one.present, one.candidates) for one in settings])
    loaded = TO_MEET + 2 * wanted.windows * asked.duration
    load = last_loads(seen.observed).get(engine.id)
    measuring = Measuring(
        load=asked.model_dump(mode="json"),
        settings=tuple(settings),
        candidates=_candidates(fleet, place, settings, loaded),
        concurrency=concurrency(fleet, place.layout, engine.model, box),
        windows=wanted.windows,
        usable=None if own else usable,
        starts=starts,
        seconds=None if load is None else starts * (load + 2 * wanted.windows * asked.duration) + load,
    )
    now_set = ", ".join(
        f"{one.name} is {'not set' if one.present is None else f'{one.present:g}'} now"
        for one in settings
        if one.candidates
    )
    many = f"at most {starts} starts, each measured {wanted.windows} times at {measuring.concurrency} at once"
    return measuring, (f"{many}: {_long(measuring.seconds)}; {now_set}", *notes)


def _candidates(fleet: Fleet, place: Place, settings: Sequence[Tried], loaded: float) -> tuple[Candidate, ...]:
    """Units for all sets of values that the search may come to."""
    choices = [[one.present, *one.candidates] for one in settings]
    sets = [dict(zip([one.name for one in settings], values, strict=True)) for values in itertools.product(*choices)]
    if len(sets) > MOST_CANDIDATES:
        raise SpecError(
            f"these are {len(sets)} sets of values, and at most {MOST_CANDIDATES} are planned at a time",
            hint="name fewer values, or one setting after the other",
        )
    return tuple(
        Candidate(values=values, trial=render_trial(*with_values(fleet, place, values), loaded=loaded))
        for values in sets
    )


def _skipped(
    subject: Subject,
    live: Release,
    engine: Engine,
    fleet: Fleet,
    place: Place,
    name: str,
    values: Sequence[float],
) -> dict[float, str]:
    """Values that would leave less than the reserve, or that the engine would not start with, as the sums say."""
    box = fleet.boxes[place.box]
    others = sum(rank.share for other, rank in live.ranks_on(place.box) if other.id != engine.id)
    found: dict[float, str] = {}
    for value in values:
        share = value if name == SHARE else place.share
        if name == SHARE and (share + others) * box.memory > box.memory - box.reserve:
            left = box.memory - int((share + others) * box.memory)
            found[value] = f"it leaves {gib(left)} of {place.box}, and its reserve is {gib(box.reserve)}"
            continue
        other, there = with_values(fleet, place, {name: value})
        ranks = tuple(rank.model_copy(update={"share": there.share}) for rank in engine.ranks)
        told = size_up(other, subject.boxes, live, [engine.model_copy(update={"ranks": ranks})]).get(engine.id)
        if told is not None and told.cannot_start:
            found[value] = f"its cache would have no room for one request of its context: {'; '.join(told.lines)}"
    return found


def results_of(plan: Plan, end: Mapping[str, object]) -> Mapping[str, object]:
    """What the move measured: ``knee`` or ``settings``, as its step told it."""
    step = next(step for step in plan.steps if step.kind in ("measure_knee", "try_settings"))
    tuned = end["tuned"]
    assert isinstance(tuned, dict)
    found: Mapping[str, object] = tuned[step.params["engine"]]
    return found
