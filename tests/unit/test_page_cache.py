"""The page cache is dropped only where it is allowed, needed and of use; and a cache in bytes gets to the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planned import BEFORE, GIB, boxes_in, layout, plan

from fleetctl.onbox import pagecache
from fleetctl.onbox.main import Call
from fleetctl.plan.types import Plan

COPY_UNIT = "/etc/systemd/system/fleetctl-replicas-qwen.service"


def steps(made: Plan) -> list[tuple[str, str]]:
    return [(step.kind, step.box) for step in made.steps]


def dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, available: int, need: int) -> dict[str, Any]:
    target = tmp_path / "drop_caches"
    target.touch()
    monkeypatch.setattr(pagecache, "meminfo", lambda: {"MemFree": free, "MemAvailable": available})
    told = pagecache.drop_page_cache(Call(1, lambda message: None), need, str(target))
    assert target.read_text() == ("1\n" if told["dropped"] else "")
    return told


def test_it_is_dropped_when_too_little_is_free_and_enough_could_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dropped(tmp_path, monkeypatch, 10, 100, 50)["dropped"]


@pytest.mark.parametrize(("free", "available", "why"), [(60, 100, "are free"), (10, 40, "it is not the page cache")])
def test_it_stays_where_enough_is_free_and_where_processes_hold_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, available: int, why: str
) -> None:
    told = dropped(tmp_path, monkeypatch, free, available, 50)
    assert not told["dropped"] and why in told["why"]


def test_a_box_that_does_not_let_it_be_dropped_says_so_and_the_move_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagecache, "meminfo", lambda: {"MemFree": 1, "MemAvailable": 9})
    told = pagecache.drop_page_cache(Call(1, lambda message: None), 5, str(tmp_path / "no" / "drop_caches"))
    assert not told["dropped"] and "cannot be written" in told["why"]


def test_the_plan_has_the_step_for_a_box_that_allows_it_between_the_wait_for_memory_and_the_start() -> None:
    target = layout("replicas", boxes__a__page_cache="drop")
    made = plan(layout("split"), target, boxes_in(layout("split")))
    of_a = [kind for kind, box in steps(made) if box == "a"]
    assert of_a.index("await_free") < of_a.index("drop_page_cache") < of_a.index("start_engine")
    assert ("drop_page_cache", "b") not in steps(made)
    step = next(step for step in made.steps if step.kind == "drop_page_cache")
    assert step.params["need"] == int(0.75 * 128 * GIB) and "96.0 GiB" in step.summary


def test_without_the_key_there_is_no_such_step() -> None:
    made = plan(BEFORE, layout("replicas"), boxes_in(BEFORE, None), book="cutover")
    assert "drop_page_cache" not in dict(steps(made))


def test_the_engine_is_told_its_cache_in_bytes_and_its_share_still() -> None:
    seats = {"a": {"kv_cache_memory": "20GiB"}, "b": None}
    release = layout("replicas", layouts__replicas__qwen={"copies": seats})
    units = {box: next(f.content for f in release.files[box] if f.path == COPY_UNIT) for box in ("a", "b")}
    assert f"--gpu-memory-utilization 0.75 --kv-cache-memory-bytes {20 * GIB} " in units["a"]
    assert "--kv-cache-memory-bytes" not in units["b"]
