"""One engine at a time: whether the copies of a move can take turns, and what belongs to whose turn. Pure."""

from __future__ import annotations

from dataclasses import replace

from fleetctl.facts.proxies import servers_up, servers_up_somewhere
from fleetctl.facts.types import Observed
from fleetctl.plan.difference import UNIT_FOLDER, BoxDifference, Difference
from fleetctl.render.names import BIN_FOLDER, secrets_path
from fleetctl.render.release import Engine, Release


def why_not_one_at_a_time(source: Release, target: Release, observed: Observed, difference: Difference) -> str | None:
    """What keeps the engines that start from doing so one after the other; None when nothing does."""
    if source.layout != target.layout:
        return f"{source.layout or 'what runs now'} and {target.layout or 'what comes'} are different layouts"
    if source.proxy is None or target.proxy is None or not set(source.proxy.boxes) & set(target.proxy.boxes):
        return "the proxy is not on the same box before and after"
    for engine in difference.start:
        if engine.kind == "split":
            return f"{engine.id} is a split, which changes as a whole"
        if not _another(engine, target, observed, difference):
            return f"no other copy of {engine.model} is in rotation while {engine.id} changes"
        for rank in engine.ranks:
            box = difference.boxes[rank.box]
            stray = sorted(set(box.stop) - set(box.start))
            if stray:
                return f"{', '.join(stray)} has to leave {rank.box} first"
    return None


def _another(engine: Engine, target: Release, observed: Observed, difference: Difference) -> bool:
    """A copy that takes requests during the turn of this one: it does now, or it has its turn earlier."""
    in_rotation = set(_in_rotation(target, observed))
    somewhere = servers_up_somewhere(target.proxy, observed)
    mine = f"{engine.backend}/{engine.server}" not in somewhere  # not in rotation itself: nobody misses it
    others = [other for other in target.engines if other.model == engine.model and other.id != engine.id]
    coming = {other.id for other in difference.open} - in_rotation
    return bool(others) and (mine or any(other.id in in_rotation or other.id in coming for other in others))


def _in_rotation(target: Release, observed: Observed) -> list[str]:
    """Engines that get requests wherever the proxy runs."""
    up = servers_up(target.proxy, observed)
    return [engine.id for engine in target.engines if f"{engine.backend}/{engine.server}" in up]


def turns(target: Release, observed: Observed, difference: Difference) -> list[tuple[Engine, Difference]]:
    """The engines that start or are opened, each with its share of the difference. Those not in rotation come first."""
    serving = set(_in_rotation(target, observed))
    order = sorted(difference.open, key=lambda engine: engine.id in serving)
    claimed: set[tuple[str, str]] = set()
    return [(engine, _share(engine, target, difference, claimed)) for engine in order]


def rest(target: Release, observed: Observed, difference: Difference) -> Difference:
    """What is in nobody's turn: other files, other units, servers that nothing of the target stands behind."""
    shares = [share for _, share in turns(target, observed, difference)]
    boxes = {}
    for name, box in difference.boxes.items():
        mine = [share.boxes[name] for share in shares if name in share.boxes]
        stopped = {unit for one in mine for unit in one.stop}
        taken = {path for one in mine for path in one.install}
        cleared = {engine for one in mine for engine in one.leftovers}
        boxes[name] = replace(
            box,
            stop={unit: state for unit, state in box.stop.items() if unit not in stopped},
            start={},
            supersede=[],
            leftovers=[engine for engine in box.leftovers if engine not in cleared],
            install=[path for path in box.install if path not in taken],
        )
    closed = {name for share in shares for name in share.close}
    close = [name for name in difference.close if name not in closed]
    return replace(difference, boxes=boxes, start=[], prove=[], open=[], close=close)


def _share(engine: Engine, target: Release, difference: Difference, claimed: set[tuple[str, str]]) -> Difference:
    starts = any(other.id == engine.id for other in difference.start)
    boxes: dict[str, BoxDifference] = {}
    for rank in engine.ranks if starts else ():
        whole = difference.boxes[rank.box]
        own = {UNIT_FOLDER + rank.unit, secrets_path(target.layout or "", engine.model)}
        install = [
            path
            for path in whole.install
            if (path in own or path.startswith(BIN_FOLDER + "/")) and (rank.box, path) not in claimed
        ]
        claimed.update((rank.box, path) for path in install)
        boxes[rank.box] = BoxDifference(
            rank.box,
            stop={unit: state for unit, state in whole.stop.items() if unit == rank.unit},
            start={unit: pair for unit, pair in whole.start.items() if unit == rank.unit},
            leftovers=[name for name in whole.leftovers if name.startswith(f"{target.layout}/{engine.model}@")],
            install=install,
        )
    server = f"{engine.backend}/{engine.server}"
    return Difference(
        boxes=boxes,
        start=[engine] if starts else [],
        prove=[engine],
        open=[engine],
        close=[server] if server in difference.close else [],
        load=None,
        settle_proxy=False,
    )
