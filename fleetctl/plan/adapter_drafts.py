"""The steps of a move on LoRA adapters: boxes get what they lack, engines have what their box keeps. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.plan.adapters import index_of, lacking, newest, told_boxes
from fleetctl.plan.draft import Draft, Move, of_engine, on_box


def bring_adapters(move: Move) -> Iterable[Draft]:
    """Boxes that were away have the adapters that the others have, and no others."""
    latest = newest(move.observed)
    for name, box in move.difference.boxes.items():
        if not box.adapters:
            continue
        items = lacking(move.observed, name)
        # What nobody has whole stays in the index, to be found and pushed again.
        whole = {(one["model"], one["name"]) for one in items}
        there = move.observed[name].adapters
        broken = {tuple(key.split("/", 1)) for key in there.broken} - whole
        what = ", ".join(one["name"] for one in items) or "the list of them"
        yield on_box(
            name,
            f"{name} gets the LoRA adapters that it lacks: {what}",
            items=items,
            serial=latest.serial,
            adapters=index_of(latest),
            in_part=bool(broken),
            engines=[one.id for one in move.source.all_engines if one.head.box == name and one.max_lora_rank],
            proxy=name in told_boxes(move.source),
        )


def load_adapters(move: Move) -> Iterable[Draft]:
    """An engine has all adapters of its model before it takes requests; it started with them, and is asked."""
    adapters = newest(move.observed).adapters
    for engine in (*move.difference.prove, *(lodger.engine for lodger in move.difference.pool.gate)):
        if engine.max_lora_rank is not None and adapters.get(engine.model):
            names = ", ".join(sorted(adapters[engine.model]))
            yield of_engine(engine, f"{engine.id} has its LoRA adapters: {names}", items=None)
