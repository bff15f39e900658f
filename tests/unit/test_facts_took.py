"""How long an engine took the last time is asked of all boxes: whichever kept the journal then."""

from __future__ import annotations

from planned import boxes_in, layout

from fleetctl.facts.took import last_loads, last_stops
from fleetctl.facts.types import MoveFacts


def move(name: str, written: float, **end: object) -> MoveFacts:
    told = {"operation": "cutover", "from_layout": "split", "to_layout": "replicas", "who": "ann", "started": 0.0}
    return MoveFacts.model_validate({**told, "move": name, "written": written, "end": end or None})


def test_the_newest_measurement_counts_by_the_clock_of_the_boxes_and_not_by_the_name_of_the_move() -> None:
    old = move("2031-of-a-clock-that-is-ahead", 10.0, loads={"e": 700, "f": 5.0}, stops={"a/e.service": 9})
    new = move("2026", 20.0, loads={"e": 300.5}, stops=None)
    seen = boxes_in(layout("replicas"), 1, a={"moves": (old, move("cut off", 30.0))}, b={"moves": (new,)})
    assert last_loads(seen) == {"e": 300.5, "f": 5.0}
    assert last_stops(seen) == {"a/e.service": 9.0}
