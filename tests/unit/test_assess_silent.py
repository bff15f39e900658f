"""A model of which no engine answers is told, also where the layout lacks nothing."""

from __future__ import annotations

from typing import Any

import pytest
from planned import COPY, boxes_in, layout

from fleetctl.facts.assess import assess


@pytest.mark.parametrize(
    ("loading", "told"),
    [
        ((), []),
        (("a",), []),
        (("a", "b"), ["nothing answers for qwen yet: replicas/qwen@a is loading, replicas/qwen@b is loading"]),
    ],
)
def test_while_all_copies_load_nobody_answers(loading: tuple[str, ...], told: list[str]) -> None:
    live = layout("replicas")
    seen = boxes_in(live, 1)
    changes: dict[str, Any] = {}
    for box in loading:
        state = seen[box].units[COPY].model_copy(update={"active": "activating", "sub": "start-post"})
        changes[box] = {"units": {**seen[box].units, COPY: state}}
    found = assess(boxes_in(live, 1, **changes), "a", "office")
    assert [problem for problem in found.problems if "nothing answers" in problem] == told
