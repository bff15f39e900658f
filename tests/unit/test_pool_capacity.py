"""What of a box's memory a pool has: pinned engines together, every other one beside them."""

from __future__ import annotations

import pytest
from pooled import pooled

from fleetctl.capacity.pool import Lodger, pool_room
from fleetctl.errors import RefusedError
from fleetctl.plan.others import left_for_others
from fleetctl.spec.units import parse_size

GIB = 1024**3


def lines(**changes: object) -> list[str]:
    """The sum of box b, as plan shows it."""
    return list(next(budget for budget in pooled(**changes).budgets if budget.box == "b").lines)


def in_layout(**placements: object) -> dict[str, object]:
    return {"layouts__pool": placements}


def test_a_pool_has_all_that_the_reserve_leaves() -> None:
    assert lines() == [
        "memory 128.0 GiB - reserve 16.0 GiB = 112.0 GiB for engines",
        "pool: 112.0 GiB for its engines together",
        "minilm: pinned, weights 0.1 GiB + 1.0 GiB = 1.1 GiB",
        "pinned engines take 1.1 GiB: 110.9 GiB left",
        "small: 12.0 GiB when it is asked for: 98.9 GiB left",
    ]


def test_a_pool_beside_other_engines_has_what_they_leave() -> None:
    qwen = {"copies": {"b": {"gpu_memory_utilization": 0.7}}}
    told = lines(**in_layout(qwen=qwen, small={"pool": ["b"], "memory": "12GiB"}))
    assert told[-2:] == [
        "pool: 22.4 GiB for its engines together",
        "small: 12.0 GiB when it is asked for: 10.4 GiB left",
    ]


def test_pinned_engines_that_do_not_fit_together_are_refused_with_the_sum() -> None:
    pins = {name: {"pool": ["b"], "pin": True, "memory": "60GiB"} for name in ("minilm", "small")}
    with pytest.raises(RefusedError, match=r"the pinned engines do not fit together, 8.0 GiB missing") as refused:
        lines(**in_layout(**pins))
    assert "pinned engines take 120.0 GiB: 8.0 GiB missing" in refused.value.message
    assert refused.value.hint == "take pin: from one of minilm, small, lower its memory:, or take b out of pool:"


def test_an_engine_that_does_not_fit_beside_the_pinned_ones_could_never_be_loaded() -> None:
    placements = {
        "minilm": {"pool": ["b"], "pin": True, "memory": "60GiB"},
        "small": {"pool": ["b"], "memory": "60GiB"},
    }
    with pytest.raises(RefusedError, match=r"small does not fit beside the pinned ones, 8.0 GiB missing"):
        lines(**in_layout(**placements))


def test_engines_that_are_not_pinned_need_not_fit_together() -> None:
    both = {name: {"pool": ["b"], "memory": "100GiB"} for name in ("minilm", "small")}
    assert lines(**in_layout(**both))[-2:] == [
        "small: 100.0 GiB when it is asked for: 12.0 GiB left",
        "2 are not pinned, 200.0 GiB together: 1 of them fits at once, the largest: minilm",
    ]


def test_an_engine_with_a_cache_gets_the_share_that_its_memory_is_of_the_box() -> None:
    release = pooled()
    assert release.pool is not None
    shares = {one.engine.model: one.engine.head.share for one in release.pool.lodgers}
    assert shares["small"] == 0.0937 and shares["small"] * 128 * GIB <= parse_size("12GiB")


def test_a_pool_leaves_the_reserve_to_others_and_no_more() -> None:
    release = pooled()
    assert [left_for_others(release, budget) for budget in release.budgets] == [32 * GIB, 16 * GIB]


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ([12], ""),
        ([12, 4], "all 2 that are not pinned fit at once: 6.4 GiB left"),
        ([12, 8, 4], "3 are not pinned, 24.0 GiB together: 2 of them fit at once, the 2 largest: m12, m8"),
        ([20, 4, 2], "3 are not pinned, 26.0 GiB together: 1 to 2 of them fit at once, the largest: m20"),
    ],
)
def test_what_fits_at_once_is_told(sizes: list[int], told: str) -> None:
    lodgers = [Lodger(f"m{size}", size * GIB, False, "") for size in sizes]
    room = pool_room("b", "b, layout pool", int(22.4 * GIB), lodgers)
    assert [line for line in room.lines if "at once" in line] == ([told] if told else [])
