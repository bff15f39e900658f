"""What can be done for the new engines while the old ones serve, so that the gap is no longer than it must be. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.plan.difference import BoxDifference
from fleetctl.plan.draft import Draft, Move, on_box
from fleetctl.plan.weights import wanted_by
from fleetctl.render.names import secrets_path
from fleetctl.spec.units import gib, parse_duration


def fetch_weights(move: Move, limit: Any = 7200.0) -> Iterable[Draft]:
    """Weights that a hub keeps are in the box's cache. An engine in a container, or with no Python, fetches its own."""
    for name, box in move.difference.boxes.items():
        engines = {engine.weights: engine for engine, _ in box.coming.values() if not engine.weights.startswith("/")}
        for weights, engine in sorted(engines.items()):
            if engine.binary is None or not RUNTIMES[engine.runtime].hub_cache:
                continue
            file = secrets_path(move.target.layout or "", engine.model)
            known = any(one.path == file for one in move.target.files.get(name, ()))
            yield Draft(
                name,
                f"{name}/{weights}",
                f"{name} has the weights {weights} (or fetches them)",
                frozenset({name}),
                {
                    "python": engine.binary.rpartition("/")[0] + "/python",
                    "repo": weights,
                    "revision": engine.revision or "",
                    "env": engine.hub,
                    "generation": move.generation,
                    "secrets": file if known else "",
                    "limit": parse_duration(limit),
                },
            )


def verify_weights(move: Move) -> Iterable[Draft]:
    """Weights are there, whole, what their checksums say, and the same on all boxes of a model.

    The way back, and an engine that starts again as it was, wait for no checksums: that they are whole is enough.
    """
    wanted = wanted_by([move.target])
    for name, box in move.difference.boxes.items():
        starts = {engine.model for engine, _ in box.coming.values()}
        mine = [one for one in wanted if one.box == name and one.model in starts]
        if not mine:
            continue
        places = [
            {
                "model": one.model,
                "place": one.place,
                "others": {two.box: two.place for two in wanted if two.model == one.model and two.box != name},
            }
            for one in mine
        ]
        names = dict.fromkeys(one.name for one in mine)
        if move.lenient:
            yield on_box(name, f"weights are whole on {name}: {', '.join(names)}", places=places, lenient=True)
            continue
        new = sum(
            seen.size
            for path in names
            if (seen := move.observed[name].paths.get(path)) is not None and seen.proven is False
        )
        first = f" (checksums are made or looked at again: {gib(new)} are read)" if new else ""
        yield on_box(name, f"weights are proven on {name}: {', '.join(names)}{first}", places=places)


def read_ahead(move: Move, limit: Any = 900.0) -> Iterable[Draft]:
    """Weights into the page cache, where the memory allows and something serves meanwhile."""
    if not any(box.stop or box.supersede for box in move.difference.boxes.values()):
        return
    for name, box in move.difference.boxes.items():
        if _weights(box) and why_not_read_ahead(move, name) is None:
            paths, size = _weights(box), gib(_size(move, name))
            yield on_box(
                name, f"read {size} of weights into the page cache of {name}", paths=paths, limit=parse_duration(limit)
            )


def why_not_read_ahead(move: Move, box: str) -> str | None:
    """Why the page cache of a box has no room for the weights; None when it has, or nothing is to be read.

    Where CPU and GPU share the memory, what the page cache holds is not free in the eyes of CUDA when the engine
    starts: weights, the engine's whole share and the reserve have to fit the box at once.
    """
    size, facts = _size(move, box), move.observed[box]
    budget = next((budget for budget in move.target.budgets if budget.box == box), None)
    if size == 0 or budget is None:
        return None
    share = sum(rank.share for _, rank in move.target.ranks_on(box)) * budget.memory
    missing = size + share + budget.reserve - facts.memory["total"]
    if missing > 0:
        return (
            f"{gib(size)} of weights, {gib(share)} for the engine and the reserve of {gib(budget.reserve)} "
            f"are {gib(missing)} more than {box} has"
        )
    if size > facts.memory["available"]:
        return f"{gib(size)} of weights, {gib(facts.memory['available'])} are available on {box}"
    return None


def _weights(box: BoxDifference) -> list[str]:
    """Weight folders on the box itself; what a hub keeps is fetched by the engine."""
    return sorted({engine.weights for engine, _ in box.start.values() if engine.weights.startswith("/")})


def _size(move: Move, box: str) -> int:
    paths = move.observed[box].paths
    return sum(paths[path].size for path in _weights(move.difference.boxes[box]) if path in paths)
