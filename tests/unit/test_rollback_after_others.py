"""A rollback is about generations: what was done within one since then neither opens a way nor is taken back by it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from planned import boxes_in, layout, office

from fleetctl.cli.session import playbooks
from fleetctl.errors import RefusedError
from fleetctl.facts.operations import STAYING
from fleetctl.facts.types import MoveFacts, Observed
from fleetctl.plan.types import Plan
from fleetctl.resources import root_text
from fleetctl.run import planning
from fleetctl.run.planning import Look, Subject, plan_rollback

LIVE = layout("replicas")


def done(number: int, operation: str, *generations: int) -> MoveFacts:
    """A move that ended; an earlier version wrote no generations."""
    known = dict(zip(("from_generation", "generation"), generations, strict=False))
    told = {"operation": operation, "from_layout": "replicas", "to_layout": "replicas", "who": "ann@desk", **known}
    return MoveFacts(move=f"m{number}", end={"result": "done"}, started=0.0, written=float(number), **told)


def rolled_back(*moves: MoveFacts) -> Plan:
    """The plan of a rollback from generation 1, before which nothing of fleetctl was there."""
    meta: dict[str, Any] = {"layout": "replicas", "previous": None}
    observed: Observed = boxes_in(LIVE, 1, a={"moves": moves, "generations": {1: meta}})
    boxes: Any = SimpleNamespace()
    look = Look({}, observed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "look", lambda subject, releases: look)
        return plan_rollback(Subject(office(), "", boxes), look, playbooks(None))


@pytest.mark.parametrize("since", [*([operation] for operation in STAYING), ["restart", "doctor"], []])
@pytest.mark.parametrize("way", [(2, 1), ()])
def test_a_second_rollback_does_not_end_everything_whatever_was_done_in_the_layout_since_the_first(
    since: list[str], way: tuple[int, ...]
) -> None:
    later = [done(number, operation, *(way[1:] * 2)) for number, operation in enumerate(since, 3)]
    with pytest.raises(RefusedError, match="move to another generation was a rollback"):
        rolled_back(done(1, "cutover", *reversed(way)), done(2, "rollback", *way), *later)


def test_an_apply_that_stayed_in_its_generation_is_no_way_there_either() -> None:
    with pytest.raises(RefusedError, match="move to another generation was a rollback"):
        rolled_back(done(1, "rollback", 2, 1), done(2, "apply", 1, 1))
    assert rolled_back(done(1, "rollback", 2, 1), done(2, "apply", 1, 2)).to_layout is None


@pytest.mark.parametrize("operation", STAYING)
def test_a_move_to_another_generation_that_many_others_hide_does_not_end_everything(operation: str) -> None:
    """A box tells of its last twenty moves."""
    with pytest.raises(RefusedError, match="hides which one that was") as refused:
        rolled_back(*(done(number, operation, 1, 1) for number in range(20)))
    assert "rollback --to 0" in str(refused.value.hint)


@pytest.mark.parametrize("operation", [*STAYING, "cutover"])
def test_that_the_last_change_is_not_taken_back_is_said_before(operation: str) -> None:
    warnings = rolled_back(done(1, "cutover", 1, 2), done(2, operation, *((1, 2) if operation == "cutover" else ())))
    told = [text for text in warnings.warnings if "does not take it back" in text]
    assert len(told) == (operation in STAYING)
    assert ["fleetctl history m2" in text for text in told] == [operation == "doctor"] * len(told)


def test_the_page_knows_which_operations_stay_in_a_generation() -> None:
    found = re.search(r"const stays = \[(.*?)\]", root_text("web", "index.html"))
    assert found is not None and tuple(re.findall(r'"([\w ]+)"', found[1])) == STAYING
