"""Asking the boxes: one that is connected and cannot tell its facts is asked nothing, and the others are judged."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from planned import TWO_PROXIES
from scenes import scene

from fleetctl.doctor.examine import examine
from fleetctl.doctor.families import FAMILIES
from fleetctl.errors import BoxError


@pytest.mark.parametrize("file", [{}, {"proxy": TWO_PROXIES}])
@pytest.mark.parametrize("unknown", ["a", "b"])
def test_a_box_whose_facts_are_damaged_gives_no_traceback(unknown: str, file: dict[str, Any]) -> None:
    whole = scene(file=file)
    observed = {name: facts for name, facts in whole.observed.items() if name != unknown}
    part = replace(whole, observed=observed, away={unknown: BoxError(unknown, "release.json is damaged")})
    asked: list[str] = []

    def answer(box: str, op: str) -> Any:
        asked.append(box)
        raise BoxError(box, "nothing more")

    def each(do: Any) -> None:
        for name in whole.observed:
            do(SimpleNamespace(name=name, call_with=lambda op, args, timeout, name=name: answer(name, op)))

    boxes: Any = SimpleNamespace(each=each)
    found, failed = examine(boxes, part, FAMILIES)
    assert set(asked) == set(observed)
    assert {error.message for error in failed} == {f"{name}: nothing more" for name in observed}
    assert not [finding for finding in found if finding.box == unknown], found
