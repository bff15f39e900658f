"""What the boxes of a fleet have measured, gathered for ``fleetctl proxy tune``. Nothing is changed on them."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from fleetctl.errors import BoxError, RefusedError
from fleetctl.proxy.tune.figures import BoxTold, Checks, EngineFigures, Log, Measured, ProxyTold
from fleetctl.remote.connection import BoxConnection
from fleetctl.run.planning import Subject
from fleetctl.spec.fleet_proxy import Proxy

TIME_FOR_LOG = 120.0  # seconds that reading the proxy's log may take; what was read until then counts


@dataclass(frozen=True)
class Gathered:
    """What was measured, and what is to be known about it."""

    measured: Measured
    layout: str
    notes: tuple[str, ...]


def gather_figures(subject: Subject, since: float) -> Gathered:
    """Ask every connected box at once; the proxy's log since so many seconds ago.

    Raises RefusedError when no layout is live, BoxError when the box with the proxy cannot be reached.
    """

    def ask(box: BoxConnection) -> BoxTold:
        told = box.call("proxy_figures", timeout=TIME_FOR_LOG + 60, box=box.name, since=since, limit=TIME_FOR_LOG)
        try:
            return BoxTold.model_validate(told)
        except ValidationError as error:
            raise BoxError(box.name, "what is kept there is by another version of fleetctl") from error

    told = subject.boxes.each(ask)
    proxies = {box: one.proxy for box, one in told.items() if one.proxy is not None}
    if not proxies:
        for error in subject.unreachable.values():
            raise error
        raise RefusedError(
            f"no layout of fleetctl is live on {', '.join(told)}: there is no proxy of which anything could be told",
            hint="`fleetctl cutover --to LAYOUT` puts one in place; come back when clients have used it for a while",
        )
    lead = told[next(iter(proxies))]
    checks = [proxy.checks for proxy in proxies.values() if proxy.checks is not None]
    moves = [move for one in told.values() for move in one.moves]
    loads: dict[str, tuple[float, ...]] = {}
    for move in moves:
        for engine, load in (move.loads or {}).items():
            if engine.partition("/")[0] in subject.fleet.layouts:
                loads[engine] = (*loads.get(engine, ()), load)
    histograms = {engine: one for box in told.values() for engine, one in box.engines.items()}
    measured = Measured(
        settings=subject.fleet.proxy,
        engines=tuple(
            EngineFigures(one.id, one.backend, one.context, one.concurrency, histograms.get(one.id))
            for one in lead.layout_engines
        ),
        log=Log.together(proxy.log for proxy in proxies.values()),
        checks=Checks.together(checks) if checks else None,
        loads=loads,
        stops=tuple(stop for move in moves for stop in (move.stops or {}).values()),
    )
    return Gathered(measured, lead.layout or "", tuple(_notes(subject, proxies, lead, measured)))


def _notes(subject: Subject, proxies: dict[str, ProxyTold], told: BoxTold, measured: Measured) -> list[str]:
    notes = [f"{name} cannot be reached: what it has measured is missing" for name in subject.unreachable]
    for box, proxy in proxies.items():
        if proxy.checks is None:
            notes.append(f"{box}: the proxy does not run, so nothing is known of its health checks")
        notes += _of_log(box, proxy.log)
    silent = [engine.id for engine in measured.engines if engine.told is None]
    if silent:
        notes.append(f"no figures of its own from {', '.join(silent)}: how long first tokens take is not known there")
    there = {
        key: value
        for key, value in told.settings.items()
        if key in Proxy.model_fields and key != "port" and value != getattr(measured.settings, key)
    }
    if there:
        notes.append(f"{', '.join(there)}: the proxy does not run with what the file says; `fleetctl apply` sees to it")
    return notes


def _of_log(box: str, log: Log) -> list[str]:
    notes = []
    if not log.lines:
        told = f": {log.why}" if log.why else "; is the journal kept, and do clients use the proxy?"
        notes.append(f"{box}: the proxy's log has nothing in this time{told}")
    elif not log.complete:
        notes.append(f"{box}: the proxy's log was not read as a whole: {log.why}")
    if log.damaged:
        notes.append(f"{box}: {log.damaged} lines of the log are damaged and do not count")
    return notes
