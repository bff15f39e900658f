"""Checks of ``layouts``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from fleetctl.spec.checks.flags import value_after
from fleetctl.spec.checks.view import Placed, View
from fleetctl.spec.fleet import Placement
from fleetctl.spec.problems import Path, Problem, did_you_mean, nearest, shown
from fleetctl.spec.units import gib

_FIRST_PORT = 8000  # what an engine gets without port:, plus its place in the layout
_MASTER_PORT = 29500  # what a split gets without master_port:; the next one is where its ranks meet
_CONCURRENCY = 12
_BEFORE = "before"
_KINDS = ["copies", "split", "pool"]
_OF_PLACEMENTS = Placement.model_fields


def names(view: View) -> Iterator[Problem]:
    """A layout is not called ``before``, which stands for the state before fleetctl."""
    if _BEFORE in view.mapping("layouts"):
        message = f"{_BEFORE} stands for the state before fleetctl; give the layout another name"
        yield view.problem(("layouts", _BEFORE), message, key=True)


def references(view: View) -> Iterator[Problem]:
    """Layouts name models and boxes that exist, and each box once in a placement."""
    models, boxes = view.mapping("models"), view.mapping("boxes")
    for entry in view.placements():
        for seat in entry.seats:
            if boxes and seat.box not in boxes:
                yield view.problem(
                    seat.path, f"there is no box {shown(seat.box)}; {did_you_mean(seat.box, boxes)}", key=True
                )
    for layout in view.mapping("layouts"):
        for model in view.mapping("layouts", layout):
            if models and model not in models:
                message = f"there is no model {shown(model)}; {did_you_mean(model, models)}"
                yield view.problem(("layouts", layout, model), message, key=True)


def kinds(view: View) -> Iterator[Problem]:
    """A placement has one of ``copies``, ``split`` and ``pool``; a split has at least two boxes."""
    for entry in view.placements():
        given, split = [kind for kind in _KINDS if entry.values.get(kind) is not None], entry.values.get("split")
        message = "a placement has exactly one of copies:, split: and pool:"
        if len(given) > 1:
            yield view.problem(entry.path, message)
        elif not given:
            if not any(nearest(key, _KINDS) for key in entry.values if key not in _OF_PLACEMENTS):
                yield view.problem(entry.path, message)
        elif isinstance(split, list | dict) and len(split) == 1:
            yield view.problem(entry.path, "a split needs at least two boxes; one box runs a copy")


def split_settings(view: View) -> Iterator[Problem]:
    """The boxes of a split are one engine: concurrency and arguments stand in the placement, not at a box."""
    for entry in view.placements():
        if entry.kind == "split":
            for seat in entry.seats:
                for key in ("concurrency", "arguments"):
                    if seat.settings.get(key):
                        message = f"a split is one engine, the same on every box; write {key}: beside split:"
                        yield view.problem((*seat.path, key), message, key=True)


def served_names(view: View) -> Iterator[Problem]:
    """No two models of a layout are served under the same name."""
    for layout in view.mapping("layouts"):
        owners: dict[str, str] = {}
        for model in view.mapping("layouts", layout):
            served = view.texts("models", model, "served_as") or [(("layouts", layout, model), model)]
            for path, name in served:
                owner = owners.setdefault(name, model)
                if owner != model and model in view.mapping("models"):
                    message = f"in layout {layout} clients get {owner} under the name {shown(name)} too; rename one"
                    yield view.problem(path, message, key=path[0] == "layouts")


def ports(view: View) -> Iterator[Problem]:
    """No two processes of a layout share a port on a box: engines, rendezvous of splits (two ports), the proxy."""
    taken: dict[tuple[str, str, int], tuple[Path, str]] = {}
    for entry in view.placements():
        for box, key, port, what in listeners(view, entry):
            path: Path = (*entry.path, key) if key in entry.values else entry.path
            other = taken.setdefault((entry.layout, box, port), (path, what))
            if other[1] != what:
                yield view.problem(path, f"port {port} on {box} is already that of {other[1]}; write another {key}:")
            elif (
                box in _proxy_boxes(view)
                and port == _proxy_port(view)
                and (key == "master_port" or _proxy_shares(view, box))
            ):
                yield view.problem(path, f"port {port} on {box} is that of the proxy; write another {key}:")


def listeners(view: View, entry: Placed) -> Iterator[tuple[str, str, int, str]]:
    """Box, key, port and name of every listener of a placement: its engines, and where a split meets."""
    given = view.number(*entry.path, "port")
    index = list(view.mapping("layouts", entry.layout)).index(entry.model)
    port = given if "port" in entry.values and given is not None else _FIRST_PORT + index
    for seat in entry.seats[:1] if entry.kind == "split" else entry.seats:
        if isinstance(port, int):
            yield seat.box, "port", port, f"the engine of {entry.model}"
    if entry.kind == "split" and entry.seats:
        master = view.number(*entry.path, "master_port") if "master_port" in entry.values else _MASTER_PORT
        if isinstance(master, int):
            yield entry.seats[0].box, "master_port", master, f"the rendezvous of {entry.model}"
            yield entry.seats[0].box, "master_port", master + 1, f"the meeting of the ranks of {entry.model}"


def _proxy_boxes(view: View) -> list[str]:
    one = view.text("proxy", "box")
    return [box for _, box in view.texts("proxy", "boxes")] + ([] if one is None else [one])


def _proxy_port(view: View) -> int | float | None:
    return view.number("proxy", "port") if "port" in view.mapping("proxy") else 8080


def _proxy_shares(view: View, box: str) -> bool:
    """Whether the proxy listens on an address that the engines of its box use."""
    if view.texts("proxy", "boxes"):
        return True  # beside the floating address it listens on each box's own
    address = view.text("proxy", "address")
    own = (view.text("boxes", box, "address"), view.text("boxes", box, "link"))
    return address in (None, "0.0.0.0", "::", "*", *own)


def shares(view: View) -> Iterator[Problem]:
    """``gpu_memory_utilization`` of the engines on a box is at most (memory - reserve) / memory."""
    given: dict[tuple[str, str], list[tuple[Path, float]]] = defaultdict(list)
    for entry in view.placements():
        for seat in entry.seats:
            share = view.number(*seat.path, "gpu_memory_utilization")
            if share is not None and 0 < share <= 1:
                given[entry.layout, seat.box].append(((*seat.path, "gpu_memory_utilization"), share))
    for (_, box), wanted in given.items():
        memory, reserve = view.size("boxes", box, "memory"), view.size("boxes", box, "reserve")
        if not memory or reserve is None or reserve >= memory:
            continue
        highest, total = (memory - reserve) / memory, sum(share for _, share in wanted)
        if total > highest + 1e-9:
            sum_of = " + ".join(f"{share:g}" for _, share in wanted) + (f" = {total:g}" if len(wanted) > 1 else "")
            message = (
                f"{sum_of} of {gib(memory)} is {gib(total * memory)}, but {gib(memory)} - reserve {gib(reserve)} "
                f"= {gib(memory - reserve)}; write at most {math.floor(highest * 100) / 100:g}"
            )
            yield view.problem(wanted[-1][0], message)


def caches(view: View) -> Iterator[Problem]:
    """``kv_cache_memory`` has a unit, and is less than what the reserve leaves of the box."""
    for entry in view.placements():
        for seat in entry.seats:
            path: Path = (*seat.path, "kv_cache_memory")
            size, written = view.size(*path), view.get(*path)
            memory, reserve = view.size("boxes", seat.box, "memory"), view.size("boxes", seat.box, "reserve")
            if size is None or written is None:
                continue
            if size < 2**20:
                hint = f"; did you mean {written}GiB?" if isinstance(written, int) and written else ""
                yield view.problem(path, f"{shown(written)} is only {size} bytes{hint}")
            elif memory and reserve is not None and 0 <= memory - reserve < size:
                message = (
                    f"a cache of {gib(size)}, but {gib(memory)} - reserve {gib(reserve)} = {gib(memory - reserve)}"
                )
                yield view.problem(path, f"{message}; write less, with room for the weights")


def concurrency(view: View) -> Iterator[Problem]:
    """``--max-num-seqs``, where it is given, is at least the concurrency that the proxy sends."""
    for entry in view.placements():
        for seat in entry.seats:
            words = [
                word
                for base in (("models", entry.model), entry.path, seat.path)
                for _, word in view.texts(*base, "arguments")
            ]
            most = value_after(words, "--max-num-seqs")
            sent = view.number(*seat.path, "concurrency") or view.number(*entry.path, "concurrency") or _CONCURRENCY
            if most is not None and most.isascii() and most.isdigit() and int(most[:9]) < sent:
                path: Path = (
                    (*seat.path, "concurrency") if "concurrency" in seat.settings else (*entry.path, "concurrency")
                )
                message = f"the proxy would send {sent} at once to an engine that takes {most[:9]} (--max-num-seqs); "
                yield view.problem(path, f"{message}write concurrency: {most[:9]} or raise --max-num-seqs")
                break


CHECKS = (names, references, kinds, split_settings, served_names, ports, shares, caches, concurrency)
