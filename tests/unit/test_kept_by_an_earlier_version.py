"""A release as an earlier version kept it on the boxes, before a proxy on several boxes and a share for each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from planned import BEFORE, GIB, boxes_in, plan
from pydantic import ValidationError

from fleetctl.plan.types import Plan
from fleetctl.render.release import Release

KEPT: dict[str, Any] = json.loads((Path(__file__).parent / "kept" / "release.json").read_text())
RELEASE = Release.model_validate(KEPT)


def needs(made: Plan) -> dict[str, int]:
    return {step.box: step.params["need"] for step in made.steps if step.kind == "await_free"}


def test_it_is_read_and_reads_the_same_once_it_is_kept_again() -> None:
    assert RELEASE.proxy is not None
    assert RELEASE.proxy.boxes == ("a",)
    assert Release.model_validate_json(RELEASE.model_dump_json()) == RELEASE


def test_each_engine_has_the_share_that_its_unit_gives_it() -> None:
    shares = {(rank.box, engine.model): rank.share for engine in RELEASE.engines for rank in engine.ranks}
    assert shares == {("a", "qwen"): 0.75, ("b", "qwen"): 0.82, ("b", "tiny"): 0.05}


@pytest.mark.parametrize("book", ["cutover", "rollback"])
def test_on_the_way_back_to_it_the_boxes_wait_for_no_more_memory_than_its_engines_take(book: str) -> None:
    made = plan(BEFORE, RELEASE, boxes_in(BEFORE, None), 1, book)
    assert needs(made) == {"a": int(0.75 * 128 * GIB), "b": int(0.87 * 128 * GIB)}


@pytest.mark.parametrize(
    "damage",
    [{"engines": 1}, {"engines": [{}]}, {"files": []}, {"files": {"b": 1}}, {"files": {"b": [{}]}}, {"files": {}}],
)
def test_one_that_was_damaged_as_well_is_no_reason_for_a_traceback(damage: dict[str, Any]) -> None:
    try:
        Release.model_validate({**KEPT, **damage})
    except ValidationError as error:
        assert next(iter(damage)) in str(error)
