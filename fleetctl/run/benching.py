"""Engines of the live layout as things to be measured: which there are, who uses them, and how they are reached."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from fleetctl.bench.endpoint import Endpoint
from fleetctl.bench.way import Way, round_trip, way_to
from fleetctl.errors import RefusedError, SpecError
from fleetctl.facts.gather import gather_some, questions
from fleetctl.facts.proxies import servers_up_somewhere
from fleetctl.facts.types import Observed, lead_of
from fleetctl.remote.errors import SeveralBoxesError
from fleetctl.render.release import Engine, Release
from fleetctl.run.generating import doing
from fleetctl.run.planning import Subject
from fleetctl.spec.problems import did_you_mean


@dataclass(frozen=True)
class Standing:
    """The live layout and its engines that a command is about."""

    release: Release
    engines: tuple[Engine, ...]
    serving: tuple[str, ...]
    """Those of them that the proxy sends requests to, as far as is known."""
    generation: int | None = None
    out: tuple[str, ...] = ()
    """Engines of the layout, whichever the command is about, that no proxy sends requests to now."""
    builds: Mapping[str, str] = field(default_factory=dict)
    """Program or image of an engine → its version, as the generation was made with it."""

    @property
    def pooled(self) -> tuple[Engine, ...]:
        """Those of its engines that are in the pool: requests reach them through the queue alone."""
        always = {one.id for one in self.release.engines}
        return tuple(one for one in self.engines if one.id not in always)


def standing(subject: Subject, name: str | None, task: str | None = "generate") -> Standing:
    """The engines of the live layout that ``name`` means: a model, a box, an engine's id; None: all of them.

    Those with a ``task``, of the pool too; None: whatever they do. Raises RefusedError where no layout is live or none
    does that, SpecError with the nearest name where none is meant.
    """
    observed, failed = gather_some(subject.boxes, questions(subject.fleet))
    if not observed:
        raise SeveralBoxesError({**subject.unreachable, **failed})
    lead = lead_of(observed, subject.fleet.proxy.lead)
    facts = observed.get(lead) or next(iter(observed.values()))
    release = facts.release or next((one.release for one in observed.values() if one.release), None)
    if release is None or not release.all_engines:
        raise RefusedError(
            "no layout is live: there is no engine to send requests to",
            hint="`fleetctl cutover --to LAYOUT` starts one; `--against URL` measures any other endpoint",
        )
    every = release.all_engines
    chosen = tuple(one for one in every if name in (None, one.id, one.model, one.server, one.head.box))
    if not chosen:
        names = [*dict.fromkeys(word for one in every for word in (one.model, one.id, one.head.box))]
        raise SpecError(
            f"no engine, model or box {name} in {release.layout}",
            hint=did_you_mean(name or "", names) or f"there is {', '.join(names)}",
        )
    chosen = chosen if task is None else doing(chosen, task)
    up = servers_up_somewhere(release.proxy, observed)
    return Standing(
        release,
        chosen,
        tuple(one.id for one in chosen if _serves(one, observed)),
        facts.generation,
        (
            *(one.id for one in release.engines if f"{one.backend}/{one.server}" not in up),
            *dict.fromkeys(
                f"the gateway {server.name}"
                for backend, server in release.gateways()
                if f"{backend}/{server.name}" not in up
            ),
        ),
        _builds(observed),
    )


def refuse_pooled(standing: Standing, what: str, instead: str) -> None:
    """Raise RefusedError where an engine of the pool is meant: ``what`` cannot be done, ``instead`` is the way."""
    if standing.pooled:
        names = ", ".join(dict.fromkeys(one.model for one in standing.pooled))
        raise RefusedError(f"{names} is in the pool of {standing.release.layout}: {what}", hint=instead)


def _builds(observed: Observed) -> dict[str, str]:
    """Versions, or digests where a program has no version, that differ between boxes together."""
    found: dict[str, set[str]] = {}
    for facts in observed.values():
        for name, build in ((facts.generations.get(facts.generation or 0) or {}).get("builds") or {}).items():
            if isinstance(build, dict):
                version, digest = str(build.get("version") or ""), str(build.get("digest") or "")[:19]
                # An image's version is its reference, which may be another one tomorrow.
                found.setdefault(name, set()).add(version if version and version != name else digest)
    return {name: " and ".join(sorted(versions)) for name, versions in sorted(found.items())}


def _serves(engine: Engine, observed: Observed) -> bool:
    facts = observed.get(engine.head.box)
    return facts is None or facts.drained is None


@contextlib.contextmanager
def reached(subject: Subject, engine: Engine) -> Iterator[Way]:
    """The engine at its own address where this machine reaches that, else through the SSH connection to its box."""
    box = engine.head.box

    def tunnel(host: str, port: int) -> AbstractContextManager[Path]:
        if box in subject.unreachable:
            raise subject.unreachable[box]
        return subject.boxes[box].tunnel(host, port)

    with way_to(Endpoint(engine.address, engine.port), box, tunnel) as way:
        yield way


def through_proxy(subject: Subject, standing: Standing) -> Way:
    """The fleet's proxy, as clients reach it, with one of their keys if it asks for keys."""
    proxy = standing.release.proxy
    if proxy is None:
        raise RefusedError("the live layout has no proxy")
    key = next((secret.read() for secret in subject.fleet.proxy.api_keys.values()), None)
    endpoint = Endpoint(subject.fleet.proxy_address, proxy.port, tls=proxy.certificate is not None, api_key=key)
    took = round_trip(endpoint)
    return Way(endpoint, f"through the proxy at {endpoint.authority}: a round trip takes {1000 * took:.1f} ms", took)
