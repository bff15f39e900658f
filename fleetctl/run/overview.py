"""The fleet on one screen: what is live, what is wrong with it, and what it has to do at this moment."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from fleetctl.errors import FleetError
from fleetctl.facts.assess import Assessment, assess
from fleetctl.facts.gather import gather_some, questions
from fleetctl.facts.types import BoxFacts, Observed
from fleetctl.remote.errors import SeveralBoxesError
from fleetctl.render.release import Release
from fleetctl.run.owner import is_gone
from fleetctl.run.subject import Subject
from fleetctl.watch.sample import Sample
from fleetctl.watch.watcher import Watcher

WINDOW = 0.2  # seconds between two looks at the engines, of which tokens/s are told


@dataclass(frozen=True)
class Memory:
    """The memory of a box, in bytes. ``lowest`` is the least that was available while its guard looked.

    ``engines`` is what fleet.yaml lets engines take.
    """

    total: int
    available: int
    engines: int | None = None
    lowest: int | None = None


@dataclass(frozen=True)
class Overview:
    """What ``fleetctl status`` and the web page show. ``sample`` has what the engines say of themselves."""

    found: Assessment
    memory: dict[str, Memory] = field(default_factory=dict)
    sample: Sample | None = None

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        plain = {
            key: value.model_dump() if hasattr(value, "model_dump") else value
            for key, value in asdict(self.found).items()
        }
        memory = {box: asdict(one) for box, one in self.memory.items()}
        sample = asdict(self.sample) if self.sample is not None else None
        return {"healthy": self.found.healthy(), **plain, "memory": memory, "sample": sample}


def overview(subject: Subject) -> Overview:
    """Look at the boxes and, beside that, twice at the engines. Raises SeveralBoxesError when no box answers."""
    with Watcher(subject.boxes, subject.fleet, away=subject.unreachable) as watcher:
        began = time.monotonic()
        first = threading.Thread(target=watcher.sample, name="first sample", daemon=True)
        first.start()
        state = state_of(subject)
        first.join()
        time.sleep(max(0.0, WINDOW - (time.monotonic() - began)))
        return Overview(state.found, state.memory, watcher.sample())


def state_of(subject: Subject, *, file: bool = True) -> Overview:
    """The same without the engines' own word; without ``file`` nothing is said of fleet.yaml."""
    observed, failed = gather_some(subject.boxes, questions(subject.fleet))
    away = {**subject.unreachable, **failed}
    if not observed:
        raise SeveralBoxesError(away)
    for name, facts in observed.items():
        if facts.lock is not None and is_gone(facts.lock.owner):  # a process of this machine that has ended
            lock = facts.lock.model_copy(update={"connected": False})
            observed[name] = facts.model_copy(update={"lock": lock})
    found = assess(observed, subject.fleet.proxy.lead, subject.fleet.fleet, away)
    found.notes += file_notes(subject, observed) if file else []
    return Overview(found, {box: _memory(subject, box, facts) for box, facts in observed.items()})


def _memory(subject: Subject, box: str, facts: BoxFacts) -> Memory:
    named = subject.fleet.boxes.get(box)
    return Memory(
        total=facts.memory["total"],
        available=facts.memory["available"],
        engines=named.memory - named.reserve if named is not None else None,
        lowest=facts.others.lowest if facts.others is not None else None,
    )


def file_notes(subject: Subject, observed: Observed) -> list[str]:
    """What there is to say of fleet.yaml beside what is live. Pure; nothing is rendered where the text is the same."""
    live = max(observed.values(), key=lambda facts: facts.generation or 0).release
    if live is None or live.layout is None or live.spec == subject.text:
        return []
    if live.layout not in subject.fleet.layouts:
        return [f"fleet.yaml has no layout {live.layout} any more, and that is live"]
    from fleetctl.render.layout import render_layout  # which few need, and which takes time to import

    try:
        now = render_layout(subject.fleet, live.layout, spec_text=subject.text)
    except FleetError as error:
        return [f"fleet.yaml as it is now cannot be brought to the boxes: {error.message.splitlines()[0]}"]
    if _lands(now) == _lands(live):
        return []
    return ["fleet.yaml would change what is live: `fleetctl plan` shows how, `fleetctl apply` does it"]


def _lands(release: Release) -> Release:
    """What of a release lands on the boxes: not texts, and not sums, which depend on what was measured there."""
    return release.model_copy(update={"spec": "", "budgets": (), "tasks": {}})
