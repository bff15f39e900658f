"""What ``fleetctl tune`` does with copies of a fleet: measured where they are, taken out first, or started anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleetctl.bench.asked import Asked
from fleetctl.bench.endpoint import Endpoint
from fleetctl.bench.knee import Point, Probe, Range
from fleetctl.bench.report import Told, Tried
from fleetctl.bench.settings import from_record
from fleetctl.bench.target import Bench, version_of
from fleetctl.bench.tune import Tuned
from fleetctl.bench.tune import tune as search
from fleetctl.cli.mover import Mover
from fleetctl.cli.output import console, emit, say
from fleetctl.cli.session import playbooks
from fleetctl.errors import BoxError, SpecError
from fleetctl.plan.types import Plan
from fleetctl.profiles.match import Kept, Match, best
from fleetctl.render.release import Engine
from fleetctl.run.benching import Standing, reached
from fleetctl.run.measuring import Wanted, plan_knee, plan_settings, results_of
from fleetctl.run.planning import Look, Subject
from fleetctl.run.profiling import Here, here, keep
from fleetctl.spec.edit import refuse_unwritable


@dataclass(frozen=True)
class Ways:
    """How to measure and to ask; ``model`` is the name to ask for, where it is not the engine's own."""

    asked: Asked
    most: int
    probes: int
    json: bool
    yes: bool
    take_over: bool
    hold: bool
    known: list[Kept]


def endpoint_knee(endpoint: Endpoint, what: str, ways: Ways, expected: int | None = None) -> tuple[Told, str | None]:
    """The knee of an engine that answers at an address, and its version where it tells one."""
    bench = ways.asked.bench(endpoint)
    for note in bench.met.notes:
        say(note, as_json=ways.json)

    def hear(step: Probe, point: Point | None) -> None:
        progress(what, step, point, json=ways.json)

    tuned = search(bench, Range(ways.most, ways.probes, expected), duration=ways.asked.duration, say=hear)
    return Told.now(what, served(bench), ways.asked.mix.name, tuned), version_of(bench.endpoint)


def served(bench: Bench) -> str:
    """The name that the engine answers to."""
    return bench.met.dialect.model


def knees_in_place(subject: Subject, there: Standing, ways: Ways) -> Iterator[Told]:
    """Each engine in turn, where it is; the others and the proxy go on."""
    for engine in there.engines:
        seen, expected = _expected(subject, engine, ways)
        with reached(subject, engine) as way:
            say(f"{engine.id}, {way.told}", as_json=ways.json)
            told, version = endpoint_knee(way.endpoint, engine.id, _of(engine, ways), expected)
        _keep(subject, there, engine, seen, "knee", ways, {**told.tuned.record(), "version": version})
        yield told


def knees_drained(subject: Subject, there: Standing, ways: Ways) -> Iterator[Told]:
    """Each engine in turn leaves the proxy, is measured alone, and comes back, whatever happens."""
    book = playbooks()("tune")
    for engine in there.engines:
        seen, expected = _expected(subject, engine, ways)
        within, mine = Range(ways.most, ways.probes, expected), _of(engine, ways)

        def make(look: Look, engine: Engine = engine, within: Range = within, mine: Ways = mine) -> Plan:
            return plan_knee(subject, look, book, engine, mine.asked, within, hold=ways.hold)

        found = _moved(subject, make, ways)["knee"]
        tuned = Tuned.read(found)
        _keep(subject, there, engine, seen, "knee", ways, {**tuned.record(), "version": found["version"]})
        yield Told.now(engine.id, found["model"], found["mix"], tuned)


def settings_tried(subject: Subject, there: Standing, ways: Ways, wanted: Wanted) -> Iterator[Tried]:
    """Each copy in turn leaves the proxy, starts with each value, and comes back as it was, whatever happens."""
    book = playbooks()("tune_settings")
    for engine in there.engines:
        seen, mine = _here(subject, engine, ways), _of(engine, ways)

        def make(look: Look, engine: Engine = engine, mine: Ways = mine) -> Plan:
            box, model = engine.head.box, engine.model
            return plan_settings(subject, look, book, box, model, mine.asked, wanted, hold=ways.hold)

        found = _moved(subject, make, ways)["settings"]
        told = {"answer": {key: found[key] for key in ("chosen", "verdicts", "starts")}, "points": found["measured"]}
        _keep(subject, there, engine, seen, "settings", ways, told)
        yield Tried.now(engine.id, found["mix"], found["concurrency"], from_record(found), found["measured"])


def _of(engine: Engine, ways: Ways) -> Ways:
    model = ways.asked.model or engine.served_as[0]
    return replace(ways, asked=ways.asked.model_copy(update={"model": model}))


def _moved(subject: Subject, make: Any, ways: Ways) -> Any:
    """Carry out a move that measures, after it was shown and asked for; what it measured."""
    made: list[Plan] = []

    def noted(look: Look) -> Plan:
        made.append(make(look))
        return made[-1]

    mover = Mover(subject, as_json=ways.json, yes=ways.yes, take_over=ways.take_over)
    end = mover.work("tune", noted, finishes=False)
    assert end is not None  # there is always something to measure
    return results_of(made[-1], end)


def _expected(subject: Subject, engine: Engine, ways: Ways) -> tuple[Here | None, int | None]:
    """What is known of where the engine is, and the knee that a profile has for that."""
    seen = _here(subject, engine, ways)
    match = None if seen is None else best(ways.known, seen.model, seen.box.kind, seen.over)
    knee = None if match is None else match.profile.settings.concurrency.get(ways.asked.mix.name)
    if match is None or knee is None:
        return seen, None
    say(f"{engine.id}: {_starts_from(match, ways.asked.mix.name, knee)}", as_json=ways.json)
    return seen, knee


def _starts_from(match: Match, mix: str, knee: int) -> str:
    profile = match.profile
    has = f"profile {profile.profile} of {profile.date} has for {mix}"
    return f"the search begins near {knee}, which {has}, since {'; '.join(match.why)}"


def _keep(
    subject: Subject, there: Standing, engine: Engine, seen: Here | None, kind: str, ways: Ways, told: dict[str, Any]
) -> None:
    """Note what was measured; where that cannot be done it is said, and what was measured is shown all the same."""
    lead = subject.fleet.proxy.lead
    if seen is None or lead not in subject.boxes:
        what = engine.head.box if seen is None else lead
        say(f"{what} cannot be asked: what was measured is not kept for profiles", as_json=ways.json)
        return
    try:
        keep(subject, there.release, engine, seen, kind, ways.asked.mix.name, told, time.time())
    except BoxError as error:
        say(f"{error}: what was measured is not kept for profiles", as_json=ways.json)


def _here(subject: Subject, engine: Engine, ways: Ways) -> Here | None:
    try:
        return here(subject, engine)
    except BoxError as error:
        say(f"{error}: no profile is looked for", as_json=ways.json)
        return None


def progress(what: str, step: Probe, point: Point | None, *, json: bool) -> None:
    """Say what is measured, and what was."""
    from dataclasses import asdict

    if json:
        kind = "probe" if point is None else "point"
        emit(kind, engine=what, **(asdict(step) if point is None else asdict(point)))
    elif point is not None:
        told = f"{what}: {point.concurrency} at once: {point.throughput:.1f} tokens/s"
        told += f", first token after {point.ttft:.2f} s" if point.ttft is not None else ""
        console(error=True).print(f"{told} ({step.why})", markup=False)


def one_model(there: Standing) -> str:
    """The model of the engines that were named. Raises SpecError where there are several."""
    models = sorted({engine.model for engine in there.engines})
    if len(models) > 1:
        raise SpecError(f"there are several models: {', '.join(models)}", hint="name one: fleetctl tune MODEL")
    return models[0]


def file_for_writing(fleet: Path, via: str | None, write: bool) -> None:
    """Raises SpecError where what is to be written is not what is read."""
    if write and via is not None:
        raise SpecError(f"--write is for {fleet}, and --via reads another file", hint="leave --via out")
    if write:
        refuse_unwritable(fleet)
