"""Memory of a box: (memory - reserve) as a share, rounded down, divided, and refused with the sum."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.capacity.budget import BoxBudget, box_budget
from fleetctl.errors import RefusedError
from fleetctl.spec.fleet import Fleet

GIB = 1024**3


def budget(
    memory: str | int,
    reserve: str | int,
    sizes: dict[str, str | int | None],
    *,
    fixed: dict[str, float] | None = None,
    split: bool = False,
    measured: dict[str, int] | None = None,
    cache: dict[str, str | int] | None = None,
) -> BoxBudget:
    """Budget of box `a` where one engine of each model runs, or half of one (``split``)."""
    box = {"memory": memory, "reserve": reserve}
    models: dict[str, Any] = {
        name: {"weights": f"/m/{name}", "weights_size": size, "context": 1, "launch": {"venv": "/v"}}
        for name, size in sizes.items()
    }
    settings: dict[str, Any] = {name: {"gpu_memory_utilization": value} for name, value in (fixed or {}).items()}
    for name, size in (cache or {}).items():
        settings[name] = {**settings.get(name, {}), "kv_cache_memory": size}
    placements = {
        name: {"split": {"a": settings.get(name), "b": None}} if split else {"copies": {"a": settings.get(name)}}
        for name in sizes
    }
    fleet = Fleet.model_validate(
        {
            "fleet": "f",
            "boxes": {"a": {"address": "192.0.2.1", **box}, "b": {"address": "192.0.2.2", **box}},
            "models": models,
            "layouts": {"l": placements},
            "proxy": {"box": "a"},
        }
    )
    return box_budget(fleet, "l", "a", measured or {})


@pytest.mark.parametrize(
    ("memory", "reserve", "share"),
    [
        ("121.6GiB", "31GiB", 0.74),
        ("121.6GiB", "26GiB", 0.78),
        ("100GiB", "0", 1.0),
        ("100GiB", "30GiB", 0.7),
        (100 * GIB, 30 * GIB + 1, 0.69),
        ("128GB", "121GB", 0.05),
    ],
)
def test_the_share_is_what_the_reserve_leaves_rounded_down(memory: Any, reserve: Any, share: float) -> None:
    made = budget(memory, reserve, {"qwen": None})
    assert made.share == share
    assert made.shares == {"qwen": share}


@given(st.integers(1, 2**40), st.integers(0, 2**40))
def test_the_reserve_is_always_left(memory: int, reserve: int) -> None:
    try:
        made = budget(memory, reserve, {"qwen": None})
    except RefusedError:
        assert (memory - reserve) * 100 < memory
    else:
        assert made.share * memory <= (memory - reserve) * (1 + 1e-12)


def test_a_box_without_memory_for_engines_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"memory 8\.0 GiB - reserve 9\.0 GiB = -1\.0 GiB"):
        budget("8GiB", "9GiB", {"qwen": None})


def test_weights_that_do_not_fit_are_refused_with_the_whole_sum() -> None:
    with pytest.raises(RefusedError) as refused:
        budget("96GiB", "30GiB", {"qwen": "71GiB"})
    for part in (
        "a, layout l",
        "qwen does not fit",
        "memory 96.0 GiB - reserve 30.0 GiB = 66.0 GiB",
        "0.6875, rounded down to 0.68 = 65.3 GiB",
        "weights 71.0 GiB",
        "5.7 GiB missing",
    ):
        assert part in refused.value.message
    assert refused.value.hint is not None
    assert "reserve: of a" in refused.value.hint


def test_a_split_holds_its_part_of_the_weights_on_each_box() -> None:
    made = budget("96GiB", "30GiB", {"qwen": "71GiB"}, split=True)
    assert made.weights == 71 * GIB // 2
    assert "weights 71.0 GiB / 2 boxes = 35.5 GiB: 29.8 GiB left" in made.lines[-1]


def test_measured_weights_are_used_where_the_file_gives_none() -> None:
    assert budget("96GiB", "30GiB", {"qwen": None}, measured={"qwen": 5 * GIB}).weights == 5 * GIB
    assert budget("96GiB", "30GiB", {"qwen": "6GiB"}, measured={"qwen": 5 * GIB}).weights == 6 * GIB
    unknown = budget("96GiB", "30GiB", {"qwen": None})
    assert unknown.weights is None
    assert "weights not known" in unknown.lines[-1]


def test_several_engines_divide_the_share_by_their_weights() -> None:
    assert budget("100GiB", "20GiB", {"big": "30GiB", "small": "10GiB"}).shares == {"big": 0.6, "small": 0.2}


def test_several_engines_divide_the_share_evenly_where_a_weight_is_unknown() -> None:
    assert budget("100GiB", "20GiB", {"big": "30GiB", "small": None}).shares == {"big": 0.4, "small": 0.4}


def test_what_the_file_fixes_comes_first_and_the_rest_is_divided() -> None:
    made = budget("100GiB", "20GiB", {"big": "30GiB", "x": "5GiB", "y": "5GiB"}, fixed={"big": 0.4})
    assert made.shares == {"big": 0.4, "x": 0.2, "y": 0.2}


@pytest.mark.parametrize("fixed", [{"big": 0.81}, {"big": 0.5, "small": 0.31}, {"big": 0.8}])
def test_more_than_there_is_cannot_be_fixed(fixed: dict[str, float]) -> None:
    with pytest.raises(RefusedError, match=r"is more than the 0\.80 there is"):
        budget("100GiB", "20GiB", {"big": "30GiB", "small": "10GiB"}, fixed=fixed)


def test_rounding_takes_nothing_from_the_small_that_they_need() -> None:
    made = budget("121.6GiB", "31GiB", {"big": "71GiB", "small": "5GiB"})
    assert made.shares == {"big": 0.68, "small": 0.06}


@given(st.lists(st.integers(1, 10**13), min_size=1, max_size=6), st.integers(0, 90))
def test_parts_add_up_to_the_share_and_hold_the_weights(sizes: list[int], reserve: int) -> None:
    models = {f"m{number}": size for number, size in enumerate(sizes)}
    memory = 10**13
    try:
        made = budget(memory, reserve * 10**11, models)
    except RefusedError:
        assert sum(-(-size * 100 // memory) for size in sizes) > 100 - reserve
    else:
        assert round(sum(made.shares.values()), 9) == made.share
        assert all(made.shares[model] * memory >= size * (1 - 1e-12) for model, size in models.items())


def test_a_cache_in_bytes_is_part_of_the_sum_and_has_to_fit_the_share() -> None:
    made = budget("96GiB", "16GiB", {"qwen": "50GiB"}, cache={"qwen": "20GiB"})
    assert "20.0 GiB for its cache (kv_cache_memory)" in made.lines[-1]
    assert "9.7 GiB left for the engine itself" in made.lines[-1]
    with pytest.raises(RefusedError, match=r"qwen does not fit, 0\.3 GiB missing") as refused:
        budget("96GiB", "16GiB", {"qwen": "50GiB"}, cache={"qwen": "30GiB"})
    assert "lower kv_cache_memory:" in (refused.value.hint or "")
    with pytest.raises(RefusedError, match="does not fit"):
        budget("96GiB", "16GiB", {"qwen": None}, cache={"qwen": "81GiB"})


_SIZES = st.none() | st.integers(1, 2**38)


@given(
    memory=st.integers(2**30, 2**38),
    reserve=st.integers(0, 2**38),
    models=st.lists(st.tuples(_SIZES, _SIZES, st.none() | st.floats(0.01, 1.0)), min_size=1, max_size=5),
    split=st.booleans(),
)
def test_a_budget_never_promises_more_than_the_box_has(
    memory: int, reserve: int, models: list[tuple[int | None, int | None, float | None]], split: bool
) -> None:
    """Shares, and weights and caches where they are known, fit what the reserve leaves, in every mixture."""
    names = [f"m{number}" for number in range(len(models))]
    try:
        made = budget(
            memory,
            reserve,
            {name: size for name, (size, _, _) in zip(names, models, strict=True)},
            fixed={name: share for name, (_, _, share) in zip(names, models, strict=True) if share is not None},
            cache={name: cache for name, (_, cache, _) in zip(names, models, strict=True) if cache is not None},
            split=split,
        )
    except RefusedError:
        return
    usable = memory - reserve
    assert usable >= 0
    assert sum(made.shares.values()) * memory <= usable * (1 + 1e-9)
    for name, (size, cache, share) in zip(names, models, strict=True):
        here = -(-(size or 0) // (2 if split else 1))
        assert here + (cache or 0) <= made.shares[name] * memory * (1 + 1e-9)
        assert share is None or made.shares[name] == pytest.approx(share, abs=1e-6)
