"""Work on the live layout, from facts to a plan: changed settings, restarts, boxes out of the proxy and back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fleetctl.errors import RefusedError, SpecError
from fleetctl.facts.proxies import may_come_up, running_proxies, servers_up, servers_up_somewhere
from fleetctl.facts.types import Observed, lead_of
from fleetctl.plan.adapters import behind
from fleetctl.plan.build import build_plan
from fleetctl.plan.difference import BoxDifference, Difference, compare
from fleetctl.plan.playbook import Playbook
from fleetctl.plan.pool import PoolWork
from fleetctl.plan.turns import why_not_one_at_a_time
from fleetctl.plan.types import Plan
from fleetctl.render.release import Engine, Release
from fleetctl.run.journal import whoami
from fleetctl.run.planning import Books, Look, Subject, live_layout, new_move_name, plan_cutover
from fleetctl.run.pooled import (
    gateways_of,
    is_loaded,
    left_in_pool,
    lodgers,
    nats_alone,
    restarted,
    services,
    taken_back,
)
from fleetctl.spec.problems import near_or_all


def layout_to_apply(subject: Subject, observed: Observed) -> str:
    """The live layout. Raises RefusedError where there is none."""
    layout = live_layout(observed)
    if layout is None:
        layouts = " | ".join(subject.fleet.layouts)
        raise RefusedError("no layout is live yet", hint=f"fleetctl cutover --to {layouts} makes one")
    return layout


def plan_apply(subject: Subject, wanted: Release, seen: Look, books: Books) -> Plan:
    """The plan that brings changed settings of the live layout to the boxes, one copy at a time where possible."""
    return plan_cutover(subject, wanted, seen, books, operation="apply")


def plan_restart(subject: Subject, seen: Look, books: Books, name: str | None) -> Plan:
    """The plan that starts engines of the live layout anew: those on a box or of a model, by default all.

    Raises SpecError with the nearest name for one that there is not.
    """
    live = live_in(subject, seen)
    pooled = [engine for engine in lodgers(live) if name in (None, engine.model, engine.head.box)]
    chosen = live.engines if name is None else engines_named(live, subject, name, pooled)
    boxes = {rank.box for engine in chosen for rank in engine.ranks}
    for box in dict.fromkeys(engine.head.box for engine in pooled):
        if seen.observed[box].drained is not None:
            raise RefusedError(
                f"{box} is {seen.observed[box].drained}, and its worker starts no engine of the pool until it is back",
                hint=f"fleetctl undrain {box} first",
            )
    for box, facts in seen.observed.items():
        if facts.drained is not None and box not in boxes:
            raise RefusedError(
                f"{box} is {facts.drained}, and a restart would put it back to work",
                hint=f"fleetctl undrain {box} first",
            )
    anew = {engine.id for engine in chosen}
    lead = lead_of(seen.observed, subject.fleet.proxy.lead)
    difference = compare(live, live, seen.observed, seen.observed[lead].generation, anew)
    loaded = [engine for engine in pooled if is_loaded(engine, seen.observed)]
    if not (chosen or loaded):
        told = f"nothing of {name}" if name is not None else "nothing"
        raise RefusedError(f"{told} is loaded in the pool of {live.layout}: there is nothing to start anew")
    difference = replace(difference, pool=restarted(live, difference.pool, loaded))
    why = why_not_one_at_a_time(live, live, seen.observed, difference)
    book = books("rolling" if why is None else "cutover")
    held = None if why is None else f"not one at a time: {why}"
    return on_live(subject, seen, book, "restart", difference, why_held=held)


def plan_drain(subject: Subject, seen: Look, book: Playbook, box: str, *, limit: float | None, hold: bool) -> Plan:
    """The plan that takes a box's engines out of the proxy. ``limit`` in seconds for running requests.

    Raises RefusedError when a model would be left without a copy, unless ``hold``: its requests wait in the proxy then.
    """
    live = live_in(subject, seen)
    pooled = [engine for engine in lodgers(live) if engine.head.box == box]
    gateways = [name for name, where in gateways_of(live).items() if where == box]
    engines = engines_on(live, subject, box, [*pooled, *gateways])
    servers = serving(live, seen.observed)
    left = sorted({*left_without(engines, live, seen.observed), *left_in_pool(live, seen.observed, box)})
    if left and not hold:
        raise RefusedError(
            f"without {box} no engine serves {', '.join(left)}; nothing was changed",
            hint=f"bring another copy into rotation first (fleetctl status shows them), or use --hold: requests for "
            f"{', '.join(left)} then wait, each for at most its hold time or until its time is over",
        )
    nothing = nothing_to_do(live, seen)
    mark = {box: replace(nothing.boxes[box], mark_drained=seen.observed[box].drained is None)}
    # One that is down now too: its engine may be loading. On a box that is drained already it has been drained.
    again = seen.observed[box].drained is not None
    close = [
        name
        for name in (*map(server_of, engines), *gateways)
        if name in servers or (not again and may_come_up(name, live.proxy, seen.observed))
    ]
    work = PoolWork(drain=(box,) if pooled else ())
    difference = replace(nothing, boxes={**nothing.boxes, **mark}, close=close, pool=work)
    why = f"requests for {', '.join(left)} wait until {box} is back" if left else None
    plan = on_live(subject, seen, book, "drain", difference, limit=limit, why_held=why)
    queue = nats_alone(live, box)
    return plan if queue is None else plan.model_copy(update={"warnings": (*plan.warnings, queue)})


def plan_undrain(subject: Subject, seen: Look, book: Playbook, box: str) -> Plan:
    """The plan that puts a drained box back: its engines are proved, then opened.

    One that also runs on another drained box stays out until that is back. Raises RefusedError when one does not run.
    """
    live = live_in(subject, seen)
    serving(live, seen.observed)
    servers = servers_up(live.proxy, seen.observed)
    away = {name for name, facts in seen.observed.items() if facts.drained is not None and name != box}
    back = [
        engine
        for engine in engines_on(live, subject, box, [service for service in services(live) if service.box == box])
        if server_of(engine) not in servers and not any(rank.box in away for rank in engine.ranks)
    ]
    broken = {engine.id for engine in compare(live, live, seen.observed, None).start}
    for engine in back:
        if engine.id in broken:
            raise RefusedError(
                f"{engine.id} does not run as the layout wants it; nothing was changed",
                hint=f"fleetctl restart {box} starts it, proves it and puts {box} back into rotation"
                if not any(one.head.box == box for one in lodgers(live))
                else f"systemctl start {engine.head.unit} on {engine.head.box}, then try again",
            )
    nothing = nothing_to_do(live, seen)
    forget = {box: replace(nothing.boxes[box], forget_drained=seen.observed[box].drained is not None)}
    work = taken_back(live, seen.observed, box, servers)
    difference = replace(nothing, boxes={**nothing.boxes, **forget}, prove=back, open=back, pool=work)
    return on_live(subject, seen, book, "undrain", difference)


def live_in(subject: Subject, seen: Look) -> Release:
    """The release that is live, with its engines. Raises RefusedError where there is none."""
    lead = lead_of(seen.observed, subject.fleet.proxy.lead)
    live = seen.observed[lead].release
    if live is None or live.layout is None or live.proxy is None:
        layout_to_apply(subject, seen.observed)
        raise RefusedError(f"{lead} keeps no live layout", hint="fleetctl status shows what is wrong")
    missing = sorted(set(live.boxes()) - set(seen.observed))
    if missing:
        raise RefusedError(f"the live layout uses {', '.join(missing)}, which fleet.yaml does not name")
    return live


def engines_named(live: Release, subject: Subject, name: str, instead: Collection[object] = ()) -> list[Engine]:
    """Engines of a model, or with a part on a box; none where there is something ``instead``."""
    found = [e for e in live.engines if e.model == name or any(rank.box == name for rank in e.ranks)]
    if not found and not instead:
        _known(name, [*subject.fleet.boxes, *subject.fleet.models], "box or model")
        _refuse_pooled(live, name)
        raise RefusedError(f"no engine of {live.layout} is on {name} or serves it: there is nothing to restart")
    return found


def engines_on(live: Release, subject: Subject, box: str, instead: Collection[object] = ()) -> list[Engine]:
    """Engines with a part on a box. Raises SpecError, with the nearest name, and RefusedError where there is none, nor
    anything ``instead``."""
    _known(box, list(subject.fleet.boxes), "box")
    found = [engine for engine, _ in live.ranks_on(box)]
    if not found and not instead:
        _refuse_pooled(live, box)
        queue = nats_alone(live, box)
        if queue is not None:
            raise RefusedError(f"{queue}; there is nothing else to drain", hint="stop NATS last, and start it first")
        raise RefusedError(
            f"no engine of {live.layout} is on {box}", hint="there is nothing to drain: work on it freely"
        )
    return found


def _refuse_pooled(live: Release, name: str) -> None:
    """Raises RefusedError for a box or a model of the pool, whose engines its workers start and stop."""
    if any(name in (engine.model, engine.head.box) for engine in lodgers(live)):
        raise RefusedError(
            f"{name} is in the pool of {live.layout}, whose workers start and stop its engines; nothing was changed",
            hint="this is about engines that the proxy sends requests to",
        )


def _known(name: str, names: Collection[str], kind: str) -> None:
    if name not in names:
        raise SpecError(f"there is no {kind} {name}", hint=near_or_all(name, names))


def left_without(engines: Collection[Engine], live: Release, observed: Observed) -> list[str]:
    """Models that nobody serves when these engines leave the proxy; one that takes no requests now is not missed."""
    servers, everywhere = serving(live, observed), servers_up(live.proxy, observed)
    leaving = {engine.id for engine in engines}
    return sorted(
        {
            engine.model
            for engine in engines
            if server_of(engine) in servers
            and not any(
                other.model == engine.model and other.id not in leaving and server_of(other) in everywhere
                for other in live.engines
            )
        }
    )


def server_of(engine: Engine) -> str:
    """``BACKEND/SERVER`` of an engine in the proxy."""
    return f"{engine.backend}/{engine.server}"


def serving(live: Release, observed: Observed) -> set[str]:
    """Servers that take requests now, from any box's proxy. Raises RefusedError where the proxy does not run."""
    assert live.proxy is not None
    running = running_proxies(live.proxy, observed)
    down = [box for box in live.proxy.boxes if box not in running]
    if down:
        raise RefusedError(
            f"{', '.join(down)}: the proxy ({live.proxy.unit}) does not run",
            hint="fleetctl apply starts it; fleetctl status shows more",
        )
    return servers_up_somewhere(live.proxy, observed)


def nothing_to_do(live: Release, seen: Look) -> Difference:
    """A difference in which nothing is to be done but to bring adapters that a box lacks; to be filled in."""
    late = behind(seen.observed)
    boxes = {box: BoxDifference(box, adapters=box in late) for box in seen.observed}
    return Difference(boxes=boxes, start=[], prove=[], open=[], close=[], load=None, settle_proxy=False)


def on_live(
    subject: Subject,
    seen: Look,
    book: Playbook,
    operation: str,
    difference: Difference,
    *,
    limit: float | None = None,
    why_held: str | None = None,
) -> Plan:
    """A plan that stays in the live generation."""
    live = live_in(subject, seen)
    lead = lead_of(seen.observed, subject.fleet.proxy.lead)
    facts = seen.observed[lead]
    meta = facts.generations.get(facts.generation or 0) or {}
    return build_plan(
        source=live,
        target=live,
        observed=seen.observed,
        questions=seen.asked,
        playbook=book,
        operation=operation,
        lead=lead,
        move=new_move_name(),
        generation=facts.generation,
        previous=meta.get("previous"),
        difference=difference,
        by=whoami(),
        limit=limit,
        why_held=why_held,
    )
