"""Every operation can be told in sentences: what was done, and where the fleet is when it was taken back."""

from __future__ import annotations

import pytest

from fleetctl.facts.operations import ASIDE, GUARDED, IN_PLACE, LORAS, ON_BOXES, STAYING, left, road, with_article
from fleetctl.facts.types import MoveFacts


@pytest.mark.parametrize("operation", ["cutover", "rollback", *IN_PLACE, *STAYING])
def test_only_what_is_about_layouts_names_them(operation: str) -> None:
    about_none = operation in (*ASIDE, *LORAS, *ON_BOXES)
    assert road(operation, "replicas", "replicas") == ("" if about_none else "replicas")
    assert road(operation, None, "split") == ("" if about_none else "nothing → split")
    assert ("the fleet is back in replicas" in left(operation, "replicas")) == (not about_none)


@pytest.mark.parametrize("operation", GUARDED)
def test_what_guards_go_on_during_touches_no_engine(operation: str) -> None:
    assert operation in STAYING
    assert ("engines were not touched" in left(operation, "replicas")) == (operation in ASIDE)


def test_removing_weights_that_failed_does_not_speak_of_what_arrived() -> None:
    assert "arrived" not in left("weights prune", "replicas") and "arrived" in left("weights push", "replicas")


def test_articles() -> None:
    told = [with_article(operation) for operation in ("cutover", "apply", "upgrade", "images push", "undrain")]
    assert told == ["a cutover", "an apply", "an upgrade", "an images push", "an undrain"]


@pytest.mark.parametrize("operation", ["cutover", "rollback", *IN_PLACE, *STAYING])
def test_one_that_was_cut_off_says_how_it_is_finished_and_undone(operation: str) -> None:
    move = MoveFacts(move="m", end=None, operation=operation, from_layout="a", to_layout="b", who="ann", started=0.0)
    assert move.undo in move.ways and move.finish.replace("`", "").startswith(("fleetctl ", "the same fleetctl "))
