"""A plan shows what other services take of each box at their worst, and is refused where engines leave less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import BEFORE, GIB, box_in, boxes_in, layout, playbook

from fleetctl.errors import RefusedError
from fleetctl.facts.types import Observed, Others
from fleetctl.plan.build import build_plan
from fleetctl.plan.types import Plan
from fleetctl.render.release import Release

DAYS = {"measured": 5 * 86400.0, "since": 1_790_000_000.0}


def others(**more: Any) -> dict[str, Any]:
    """Five days of a database and a site build, each at its worst: 9.5 GiB together; box a leaves 32 GiB."""
    services = {"postgresql.service": 6 * GIB, "hugo.service": 3 * GIB, "cron.service": GIB // 2}
    sizes = {"services": services, "together": sum(services.values()), "total": sum(services.values())}
    return {"others": Others.model_validate({**sizes, **DAYS, **more})}


def plan(observed: Observed, target: Release | None = None, operation: str = "cutover") -> Plan:
    wanted = target or layout("replicas")
    return build_plan(
        source=BEFORE,
        target=wanted,
        observed=observed,
        questions={},
        playbook=playbook("cutover"),
        operation=operation,
        lead="a",
        move="m",
        generation=2,
        previous=None,
    )


def fresh(**of_a: Any) -> Observed:
    """Boxes without fleetctl, ``a`` with what other services take there."""
    return {"a": box_in(BEFORE, "a", None, **of_a), "b": box_in(BEFORE, "b", None)}


def test_a_plan_shows_what_other_services_take_and_since_when_it_is_measured() -> None:
    made = plan(fresh(**others()))
    assert made.others["a"].startswith(
        "other services at their worst: postgresql 6.0 GiB, hugo 3.0 GiB, cron 0.5 GiB: 9.5 GiB together "
        "(measured for 5 days since "
    )
    assert made.warnings == () and "b" not in made.others


def test_a_plan_that_leaves_less_than_others_took_is_refused_with_the_one_that_is_hurt_and_what_to_write() -> None:
    grown = others(services={"postgresql.service": 31 * GIB, "hugo.service": 3 * GIB}, together=34 * GIB)
    with pytest.raises(RefusedError) as refused:
        plan(fresh(**grown))
    for part in (
        "a: engines leave 32.0 GiB, 2.0 GiB less than other services took at their worst",
        "postgresql.service would be hurt first",
        "write reserve: 38GiB",  # with a fortieth of the memory for peaks
    ):
        assert part in refused.value.message


@pytest.mark.parametrize("operation", ["rollback", "restart"])
def test_the_way_back_is_not_closed_by_what_has_grown(operation: str) -> None:
    grown = others(services={"postgresql.service": 34 * GIB}, together=34 * GIB)
    made = plan(fresh(**grown), operation=operation)
    assert any("postgresql.service would be hurt first" in warning for warning in made.warnings)


def test_a_plan_that_starts_nothing_is_never_refused() -> None:
    grown = others(services={"postgresql.service": 34 * GIB}, together=34 * GIB)
    release = layout("replicas")
    made = build_plan(
        source=release,
        target=release,
        observed=boxes_in(release, 2, a=grown),
        questions={},
        playbook=playbook("cutover"),
        operation="apply",
        lead="a",
        move="m",
        generation=2,
        previous=1,
    )
    assert made.nothing_to_do()


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"together": 34 * GIB, "measured": 0.0, "since": None}, "less than other services took"),
        ({"together": 30 * GIB}, "not for 3.2 GiB of peaks"),
        ({"total": 40 * GIB}, "at its worst at the same time"),
        ({"measured": 3 * 3600.0}, "measured for 3 h since"),
        ({"foreign": {"old.service": 70 * GIB}}, "old.service looks like an engine"),
    ],
)
def test_what_is_seen_once_or_may_come_is_a_warning(seen: dict[str, Any], said: str) -> None:
    (warning,) = plan(fresh(**others(**seen))).warnings
    assert said in warning


def test_units_that_leave_do_not_count() -> None:
    seen = others(
        services={"old-vllm.service": 70 * GIB, "cron.service": GIB},
        foreign={"older.service": 70 * GIB},
        together=71 * GIB,
        total=71 * GIB,
    )
    target = layout("replicas", superseded=["old-vllm.service", "older.service"])
    made = plan(fresh(**seen), target)
    assert made.warnings == () and "cron 1.0 GiB: 1.0 GiB together" in made.others["a"]


def test_what_others_take_does_not_change_what_a_plan_rests_on() -> None:
    assert fresh(**others())["a"].digest() == fresh()["a"].digest()


@given(
    reserve=st.integers(0, 127 * GIB),
    worst=st.integers(0, 256 * GIB),
    asked=st.none() | st.floats(0.01, 1.0),
)
@settings(deadline=None)
def test_a_budget_never_promises_more_than_the_box_has(reserve: int, worst: int, asked: float | None) -> None:
    """What a plan gives to engines, and what others took, are never more together than the box has."""
    seat = {} if asked is None else {"gpu_memory_utilization": asked}
    changes: dict[str, Any] = {"boxes__a__reserve": reserve, "layouts__replicas__qwen": {"copies": {"a": seat}}}
    try:
        target = layout("replicas", models__qwen__weights_size="1MiB", **changes)
        made = plan(fresh(**others(services={"x.service": worst}, together=worst, total=worst)), target)
    except RefusedError:
        return
    given_out = sum(rank.share for engine in made.release.engines for rank in engine.ranks) * 128 * GIB
    assert given_out <= 128 * GIB - reserve + 1
    assert given_out + worst <= 128 * GIB + 1
