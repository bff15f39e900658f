"""What `fleetctl tune` measured becomes a profile that can be shared, and the boxes tell what they are."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.errors import RefusedError
from fleetctl.onbox import kinds, tunings
from fleetctl.onbox.main import Call
from fleetctl.profiles.profile import parse_profile, written
from fleetctl.profiles.saved import saved, understood
from fleetctl.spec.fleet_model import Measured

CALL = Call(1, lambda message: None)
GIB = 1024**3
DAY = 86400.0 * 20_000  # 2024-10-04


def record(box: str = "spark1", mix: str = "email", knee: int = 8, kind: str = "knee", **more: Any) -> dict[str, Any]:
    model = more.pop("seen_model", {"name": "/srv/secret/mine", "config": {"model_type": "q"}, "quantization": "nvfp4"})
    return {
        "kind": "knee",
        "engine": f"replicas/qwen@{box}",
        "box": box,
        "model": "qwen",
        "mix": mix,
        "at": DAY,
        "answer": {"concurrency": knee, "kind": kind, "why": "throughput falls beyond it", "sure": 0.9},
        "points": [{"concurrency": n, "throughput": 10.0 * n, "ttft": 0.12345678, "requests": 3} for n in (4, 8)],
        "over": 1,
        "settings": {"gpu_memory_utilization": 0.74, "batched_tokens": 4096, "speculative": None},
        "seen": {"model": {**model, "size": 70 * GIB}, "box": {"gpu": "GB10", "memory": 121 * GIB}},
        "versions": {"vllm": "0.32.0", "driver": None},
        **more,
    }


TRIED = record(
    kind="settings",
    answer={
        "chosen": {"batched_tokens": 4096},
        "verdicts": [
            {"setting": "batched_tokens", "value": 4096, "says": "better", "change": [0.1, 0.05, 0.15]},
            {"setting": "batched_tokens", "value": 64, "says": "not measured", "change": None},
        ],
        "starts": 4,
    },
) | {"kind": "settings"}


def test_a_profile_has_the_smallest_knee_of_the_copies_the_curve_and_no_name_of_this_fleet() -> None:
    records = [
        record(knee=10),
        record("spark2", knee=8),
        record(mix="chat", knee=16),
        record(knee=9, at=DAY + 1),
        TRIED,
    ]
    measured = {"qwen": {"spark1": Measured(weights=71 * GIB, overhead=5 * GIB, at="2024-10-01")}}
    (found,) = saved(records, measured)
    profile, text = found.profile, written(found.profile)
    assert profile.settings.concurrency == {"email": 8, "chat": 16}
    assert (profile.date, profile.settings.gpu_memory_utilization) == ("2024-10-04", 0.74)
    assert profile.memory is not None and profile.memory.weights == 71 * GIB
    assert [point.tokens_per_second for point in profile.evidence_of("concurrency.email").points] == [40.0, 80.0]
    assert (
        "4096: better (+10.0%, 95 %: +5.0% to +15.0%); 64: not measured" in profile.evidence_of("batched_tokens").told
    )
    assert "90% of what is possible after 2 measurements agrees" in profile.evidence_of("concurrency.email").told
    assert "nothing else was tried" in profile.evidence_of("gpu_memory_utilization").told
    for private in ("spark", "/srv", "secret", "mine", "replicas"):
        assert private not in text
    assert profile.profile == "gb10-q-nvfp4"
    assert parse_profile(text, "x") == profile


def test_what_measured_and_did_not_keep_up_is_in_the_evidence() -> None:
    (found,) = saved([record(doubt=["it used 99% of one core"])], {})
    assert "did not keep up: it used 99% of one core" in found.profile.evidence_of("concurrency.email").told


def test_drafts_of_a_model_in_a_folder_are_left_out_for_it_is_a_path() -> None:
    drafts = {"method": "eagle3", "num_speculative_tokens": 2, "model": "/srv/drafts"}
    (found,) = saved([record(settings={"speculative": drafts})], {})
    assert found.profile.settings.speculative is None and "names a folder" in found.notes[0]
    (kept,) = saved([record(settings={"speculative": {**drafts, "model": "org/drafts"}})], {})
    assert kept.profile.settings.speculative is not None and "/srv" not in written(kept.profile)


def test_a_limit_of_the_engine_is_left_out_and_without_a_knee_there_is_nothing_to_save() -> None:
    limit = record(mix="chat", kind="limit of the engine")
    (found,) = saved([record(), limit], {})
    assert "chat" not in found.profile.settings.concurrency and "mix chat" in found.notes[0]
    for records in ([limit], [TRIED], []):
        with pytest.raises(RefusedError, match="nothing to save"):
            saved(records, {})


def test_boxes_of_two_kinds_give_two_profiles_and_a_name_is_for_one() -> None:
    other = record("big", seen={"model": {"name": "org/Tiny-1"}, "box": {"gpu": "L40S", "memory": 44 * GIB}})
    names = {one.profile.profile for one in saved([record(), other], {})}
    assert names == {"gb10-q-nvfp4", "l40s-tiny-1"}
    with pytest.raises(RefusedError, match="gb10-q-nvfp4, l40s-tiny-1"):
        saved([record(), other], {}, name="ours")
    assert saved([other], {}, name="ours")[0].profile.model.names == ("Tiny-1",)


def test_profiles_that_are_saved_together_never_have_the_same_name() -> None:
    more = {"seen": {**record()["seen"], "box": {"gpu": "GB10", "memory": 200 * GIB}}}
    found = saved([record(), record(over=2), record("big", **more)], {})
    assert [one.profile.profile for one in found] == ["gb10-q-nvfp4", "gb10x2-q-nvfp4", "gb10-q-nvfp4-2"]
    assert all(parse_profile(written(one.profile), "x") == one.profile for one in found)


def test_a_folder_without_a_config_cannot_be_known_again() -> None:
    with pytest.raises(RefusedError, match=r"no config\.json"):
        saved([record(seen_model={"name": "/srv/x"})], {})


# On the box


def test_what_was_measured_is_kept_on_the_box_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunings, "FILE", str(tmp_path / "fleetctl" / "tuned.jsonl"))
    assert tunings.tunings(CALL) == []
    for mix in ("email", "chat"):
        tunings.tuning_note(CALL, record(mix=mix))
    (tmp_path / "fleetctl" / "tuned.jsonl").open("a").write('{"engine": 1}\nnonsense\n')
    assert [one["mix"] for one in tunings.tunings(CALL)] == ["email", "chat"]


@pytest.mark.parametrize(
    ("config", "beside", "quantization", "layers"),
    [
        ({"model_type": "q", "num_hidden_layers": 4}, None, "", 4),
        ({"text_config": {"num_hidden_layers": 5}, "quantization_config": {"quant_method": "fp8"}}, None, "fp8", 5),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, None, "nvfp4", None),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}},
            None,
            "nvfp4-pack-quantized",
            None,
        ),
        ({"num_hidden_layers": True}, {"quantization": {"quant_algo": "NVFP4"}}, "nvfp4", None),
    ],
)
def test_a_model_is_known_by_its_files(
    tmp_path: Path, config: dict[str, Any], beside: Any, quantization: str, layers: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if beside is not None:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    told = kinds.model_kind(CALL, str(tmp_path))
    assert told is not None and told["quantization"] == quantization
    assert told["config"].get("num_hidden_layers") == layers
    assert kinds.model_kind(CALL, str(tmp_path / "nowhere")) is None


def test_this_machine_says_what_it_is() -> None:
    told = kinds.box_kind(CALL)
    assert told["memory"] > GIB // 4 and told["machine"]


ODD: list[Any] = [None, "x", -1, 1e300, float("nan"), [], [None], {}, {"a": {}}, True]


def damaged(value: Any) -> Iterator[Any]:
    """The value with one thing in it gone, or another in its place."""
    yield from ODD
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        for other in damaged(inner):
            changed = copy.deepcopy(value)
            changed[key] = other
            yield changed
        if isinstance(value, dict):
            yield {name: one for name, one in value.items() if name != key}


@pytest.mark.parametrize("whole", [record(), TRIED], ids=["knee", "settings"])
def test_a_kept_measurement_that_is_damaged_or_older_breaks_no_profile(whole: dict[str, Any]) -> None:
    assert understood(whole)
    for one in damaged(whole):
        if isinstance(one, dict):
            with contextlib.suppress(RefusedError):
                for made in saved([kept for kept in (one, record("spark2")) if understood(kept)], {}):
                    written(made.profile)
