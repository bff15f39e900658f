"""Whose logs are meant: names of the command line, against the file and what is live on the boxes."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.facts.gather import gather_some, questions
from fleetctl.facts.types import lead_of
from fleetctl.remote.errors import SeveralBoxesError
from fleetctl.run.subject import Subject
from fleetctl.watch.logs.names import Source, chosen, sources_of


def log_sources(subject: Subject, names: Iterable[str], *, everything: bool) -> list[Source]:
    """Units on boxes. Raises SeveralBoxesError when no box answers; see :func:`chosen` for what else."""
    observed, failed = gather_some(subject.boxes, questions(subject.fleet))
    if not observed:
        raise SeveralBoxesError({**subject.unreachable, **failed})
    lead = lead_of(observed, subject.fleet.proxy.lead)
    facts = observed.get(lead) or max(observed.values(), key=lambda one: one.generation or 0)
    live = facts.release if facts.release is not None and facts.release.layout is not None else None
    sources = sources_of(subject.fleet, live)
    return chosen(sources, names, live, subject.fleet.boxes, everything=everything)
