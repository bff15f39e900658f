"""From a step's name in a playbook to the planned steps of a move: one function per name, all pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fleetctl.facts.types import Observed
from fleetctl.plan.ahead import have_image, read_ahead, verify_weights
from fleetctl.plan.difference import (
    PROXY_UNIT,
    UNIT_FOLDER,
    VRRP_UNIT,
    description,
    description_of,
    engine_name,
    is_vrrp,
)
from fleetctl.plan.draft import Draft, Move, known_there, of_engine, on_box, proxies_of, proxy_draft
from fleetctl.plan.firewall import apart
from fleetctl.plan.firewall_drafts import apply_firewall, remove_firewall
from fleetctl.plan.pagecache import drop_page_cache
from fleetctl.plan.types import PlannedStep
from fleetctl.render.names import GUARD_UNIT, PROXY_STATES
from fleetctl.render.release import Engine
from fleetctl.spec.units import gib, parse_duration, seconds

PROXY_LANE = "proxy:"
PROXY_FOLDER = "/etc/fleetctl/proxy/"


def _preflight(move: Move) -> Iterable[Draft]:
    for box in move.difference.boxes:
        yield on_box(box, f"{box} is still as the plan saw it", digest=move.observed[box].digest())


def _stage_release(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.generation and move.generation is not None:
            count = len(move.target.files.get(name, ()))
            yield on_box(
                name,
                f"keep generation {move.generation} on {name} ({count} files)",
                generation=move.generation,
            )


def _verify_release(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        units = [path for path in box.install if path.startswith(UNIT_FOLDER) and not path.endswith(".conf")]
        if box.install:
            config = next((path for path in box.install if path.endswith("/haproxy.cfg")), None)
            vrrp = next((path for path in box.install if is_vrrp(path) and path.endswith(".conf")), None)
            yield on_box(
                name,
                f"systemd{', HAProxy and keepalived' if vrrp else ' and HAProxy'} accept the files for {name}",
                generation=move.generation,
                units=units,
                config=config,
                **({"vrrp": vrrp} if vrrp else {}),
            )


def _load_proxy(move: Move) -> Iterable[Draft]:
    config = move.difference.load
    for box in move.difference.load_on if config is not None else ():
        assert config is not None
        word = "start" if move.observed[box].proxy is None else "reload"
        yield proxy_draft(
            move,
            box,
            "proxy",
            f"{word} the proxy with the servers of both layouts",
            frozenset({box}),
            {
                "config": config.model_dump(mode="json"),
                "description": description(config),
                "generation": move.generation,
            },
        )


def _hold(move: Move) -> Iterable[Draft]:
    for box in proxies_of(move) if move.difference.close else ():
        names = known_there(move, box, move.difference.close)
        if names:
            yield proxy_draft(
                move,
                box,
                "proxy",
                f"{_fate_of_new_requests(move)}: drain {', '.join(names)}",
                frozenset({PROXY_LANE}),
                {"servers": names},
            )


def _fate_of_new_requests(move: Move) -> str:
    if move.turn:
        return "new requests go to the other copies"
    return "new requests go to the new engines" if move.beside else "hold new requests"


def _drain(move: Move, then: str = "maint") -> Iterable[Draft]:
    for box in proxies_of(move) if move.difference.close else ():
        names = known_there(move, box, move.difference.close)
        if names:
            yield proxy_draft(
                move,
                box,
                "proxy",
                f"running requests finish (at most {seconds(move.patience)})",
                frozenset({PROXY_LANE}),
                {"servers": names, "limit": move.patience, "then": then},
            )


def _mark_drained(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.mark_drained:
            yield on_box(name, f"note on {name} that it is drained", by=move.by)


def _forget_drained(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.forget_drained:
            yield on_box(name, f"{name} is not drained any more")


def _supersede(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.supersede:
            yield on_box(name, f"systemctl disable --now {' '.join(box.supersede)}", units=box.supersede)


def _stop_guard(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.stop_guard:
            yield on_box(name, f"stop the guard of {name}", unit=GUARD_UNIT)


def _start_guard(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.start_guard:
            yield on_box(name, f"{name} is guarded", unit=GUARD_UNIT)


def _stop_engine(move: Move) -> Iterable[Draft]:
    limits = {rank.unit: e.stop_limit for e in move.source.engines for rank in e.ranks}
    serving = {(rank.box, rank.unit) for e in move.source.engines if _serves(e, move.observed) for rank in e.ranks}
    for name, box in move.difference.boxes.items():
        for unit, state in sorted(box.stop.items()):
            yield Draft(
                name,
                f"{name}/{unit}",
                f"stop {unit} on {name}",
                frozenset({name}),
                {
                    "unit": unit,
                    "engine": state.engine,
                    "limit": limits.get(unit, 60.0),
                    "serves": (name, unit) in serving,
                },
            )


def _serves(engine: Engine, observed: Observed) -> bool:
    """Every rank of the engine runs."""
    units = [observed[rank.box].units.get(rank.unit) for rank in engine.ranks]
    return all(unit is not None and unit.active == "active" for unit in units)


def _await_free(move: Move, limit: Any = 300.0) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        gone = sorted({s.engine for s in box.stop.values() if s.engine} | set(box.leftovers))
        if not (gone or box.supersede or box.start):
            continue
        if move.beside:  # the new engines run: they have their memory and their ports
            if gone:
                summary = f"nothing of the old engines is left on {name}"
                yield on_box(name, summary, engines=gone, next=[], ports=[], need=0, limit=parse_duration(limit))
        else:
            yield _wait_for_room(move, name, gone, limit)


def _await_room(move: Move, limit: Any = 60.0) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.start:
            yield _wait_for_room(move, name, [], limit)


def _wait_for_room(move: Move, name: str, gone: list[str], limit: Any) -> Draft:
    """A wait until the engines ``gone`` are, and until memory and ports are free for those that start on the box."""
    box = move.difference.boxes[name]
    ports = sorted({port for engine, rank in box.start.values() if rank.rank == 0 for port in engine.listens})
    memory = next((b.memory for b in move.target.budgets if b.box == name), 0)
    need = int(sum(rank.share for _, rank in box.start.values()) * memory)
    coming = [engine_name(engine, rank, move.target.layout) for engine, rank in box.start.values()]
    return on_box(
        name,
        f"wait until {name} is free" + (f" ({gib(need)} wanted)" if need else ""),
        engines=gone,
        # An engine that starts again is no sign of the wait being over: the old one has the same name.
        next=[engine for engine in coming if engine not in gone],
        ports=ports,
        need=need,
        limit=parse_duration(limit),
    )


def _proxy_paths(paths: Iterable[str], unit: str) -> list[str]:
    return [path for path in paths if path.startswith(PROXY_FOLDER) or path == UNIT_FOLDER + unit]


def _install_files(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        proxy = _proxy_paths(box.install, PROXY_UNIT)
        install = [path for path in apart(box.install) if path not in proxy and not is_vrrp(path)]
        if install:
            yield on_box(
                name,
                f"install {_count(install, 'file')} on {name}, daemon-reload",
                generation=move.generation,
                install=install,
            )


def _remove_files(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        proxy = _proxy_paths(box.remove, PROXY_UNIT)
        remove = [path for path in apart(box.remove) if path not in proxy and not is_vrrp(path)]
        if remove:
            yield on_box(name, f"remove {_count(remove, 'file')} of the old layout on {name}", remove=remove)


def _count(things: list[str], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _start_engine(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        for unit, (engine, rank) in sorted(box.start.items()):
            # Ranks of a split start when all of the old ones have stopped: a new one must not meet an old one.
            lanes = frozenset(other.box for other in engine.ranks)
            yield Draft(
                name,
                f"{name}/{unit}",
                f"start {unit} on {name}",
                lanes,
                {
                    "unit": unit,
                    "engine": engine_name(engine, rank, move.target.layout),
                    "limit": engine.stop_limit,
                },
            )


def _restore_superseded(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.give_back:
            yield on_box(name, f"give {', '.join(box.give_back)} on {name} back its state", units=box.give_back)


def _await_ready(move: Move) -> Iterable[Draft]:
    layout = move.target.layout
    for engine in move.difference.prove:
        ranks = [
            {"box": rank.box, "unit": rank.unit, "engine": engine_name(engine, rank, layout)} for rank in engine.ranks
        ]
        yield of_engine(
            engine,
            f"{engine.id} gets ready (at most {seconds(engine.load_limit)})",
            ranks=ranks,
            url=engine.url + "/health",
            limit=engine.load_limit,
        )


def _gate(move: Move) -> Iterable[Draft]:
    for engine in move.difference.prove:
        yield of_engine(engine, f"{engine.id} answers: model, context, completion, stream")


def _open(move: Move) -> Iterable[Draft]:
    if move.target.proxy is None:
        return
    for engine, box in ((engine, box) for engine in move.difference.open for box in proxies_of(move)):
        lanes = frozenset(rank.box for rank in engine.ranks)
        name = f"{engine.backend}/{engine.server}"
        if not known_there(move, box, [name]):
            continue
        yield proxy_draft(
            move,
            box,
            engine.id,
            f"the proxy sends requests to {name}",
            lanes,
            {
                "server": name,
                "address": engine.address,
                "port": engine.port,
                "maxconn": engine.concurrency,
                # Undone while other copies serve: its running requests finish first.
                **({"drain": move.patience} if move.turn or move.beside else {}),
            },
        )


def _recheck_superseded(move: Move) -> Iterable[Draft]:
    for name in move.difference.boxes:
        units = move.target.superseded.get(name, ())
        if units:
            yield on_box(name, f"replaced units stayed away on {name}", units=list(units))


def _enable_units(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        # The unit of the floating address comes, is enabled and goes together with its files.
        enable, disable = ([unit for unit in units if unit != VRRP_UNIT] for units in (box.enable, box.disable))
        if enable or disable:
            starts = sorted(unit for unit in box.at_boot)
            yield on_box(
                name,
                f"a reboot of {name} starts {', '.join(starts) or 'nothing of fleetctl'}",
                enable=enable,
                disable=disable,
            )


def _settle_proxy(move: Move) -> Iterable[Draft]:
    if not move.difference.settle_proxy:
        return
    proxy = move.target.proxy
    for name, box in move.difference.boxes.items():
        gone = _proxy_paths(box.remove, PROXY_UNIT)
        if proxy is not None and name in proxy.boxes:
            paths = _proxy_paths((file.path for file in move.target.files.get(name, ())), PROXY_UNIT)
            yield Draft(
                name,
                f"proxy@{name}",
                f"the proxy comes back with {move.target.layout} after a reboot",
                frozenset({name}),
                {
                    "generation": move.generation,
                    "install": paths,
                    "remove": gone,
                    "description": description_of(move.target),
                },
            )
        elif gone:
            summary = f"stop and remove the proxy on {name}"
            yield Draft(name, f"proxy@{name}", summary, frozenset({name}), {"leave": [*gone, PROXY_STATES]})


def _settle_address(move: Move) -> Iterable[Draft]:
    if not move.difference.settle_address:
        return
    proxy = move.target.proxy
    for name, box in move.difference.boxes.items():
        gone = [path for path in box.remove if is_vrrp(path)]
        target, lanes = f"address@{name}", frozenset({name})
        if proxy is not None and proxy.floating is not None and name in proxy.boxes:
            paths = [file.path for file in move.target.files.get(name, ()) if is_vrrp(file.path)]
            summary = f"keepalived on {name}: {proxy.floating.address} is on one of {', '.join(proxy.boxes)}"
            yield Draft(name, target, summary, lanes, {"generation": move.generation, "install": paths})
        elif gone:
            yield Draft(name, target, f"{name} gives the floating address up", lanes, {"leave": gone})


def _make_current(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.generation:
            word = f"generation {move.generation}" if move.generation is not None else "no generation"
            yield on_box(name, f"{word} is current on {name}", generation=move.generation)


STEPS: dict[str, Callable[..., Iterable[Draft]]] = {
    "preflight": _preflight,
    "stage_release": _stage_release,
    "verify_release": _verify_release,
    "have_image": have_image,
    "verify_weights": verify_weights,
    "read_ahead": read_ahead,
    "apply_firewall": apply_firewall,
    "load_proxy": _load_proxy,
    "hold": _hold,
    "drain": _drain,
    "supersede": _supersede,
    "stop_guard": _stop_guard,
    "stop_engine": _stop_engine,
    "await_room": _await_room,
    "await_free": _await_free,
    "drop_page_cache": drop_page_cache,
    "install_files": _install_files,
    "start_engine": _start_engine,
    "restore_superseded": _restore_superseded,
    "await_ready": _await_ready,
    "gate": _gate,
    "open": _open,
    "recheck_superseded": _recheck_superseded,
    "start_guard": _start_guard,
    "enable_units": _enable_units,
    "remove_files": _remove_files,
    "remove_firewall": remove_firewall,
    "settle_proxy": _settle_proxy,
    "settle_address": _settle_address,
    "make_current": _make_current,
    "mark_drained": _mark_drained,
    "forget_drained": _forget_drained,
}
"""Every step that a playbook can use."""


def _through(target: str, via: str) -> str:
    return target if not via else f"proxy@{via}" if target == "proxy" else f"{target}/proxy@{via}"


def place(
    stage: str, kind: str, draft: Draft, after: Iterable[str], turn: tuple[int, Engine] | None = None
) -> PlannedStep:
    """The draft as a step of a plan; in an engine's turn it is about that engine."""
    target = turn[1].id if turn else draft.target
    return PlannedStep(
        id=f"{stage}.{kind}.{_through(target, draft.via)}",
        kind=kind,
        stage=stage,
        box=draft.box,
        target=target,
        turn=turn[0] if turn else None,
        params=draft.params,
        summary=draft.summary,
        after=tuple(sorted(set(after))),
    )
