"""What is kept of the states of servers for a proxy that starts again."""

from __future__ import annotations

import pytest

from fleetctl.onbox.haproxy import deviating

HEAD = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_port"


def told(admin: int, weight: int = 1) -> str:
    """The answer to `show servers state` with one server in an administrative state."""
    return f"1\n{HEAD}\n3 qwen 1 replicas-a 10.0.0.1 2 {admin} {weight} 1 8000\n\n"


@pytest.mark.parametrize(
    ("admin", "kept"),
    [(0, False), (5, False), (1, True), (4, True), (8, True), (12, True)],
    ids=["enabled and ready", "disabled and at rest", "put to rest", "opened", "drained", "opened and drained"],
)
def test_only_what_was_changed_since_the_start_is_kept(admin: int, kept: bool) -> None:
    lines = deviating(told(admin)).splitlines()
    assert lines[:2] == ["1", HEAD]
    assert (len(lines) == 3) == kept


def test_a_weight_that_was_taken_away_comes_back() -> None:
    assert deviating(told(8, weight=0)).splitlines()[2] == "3 qwen 1 replicas-a 10.0.0.1 2 8 1 1 8000"


def test_an_answer_that_is_none_keeps_nothing() -> None:
    assert deviating("Unknown command\n") == "1\n"
