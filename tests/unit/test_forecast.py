"""What a plan says of the cache of each engine: the sum from fleet.yaml and the model's own files."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.capacity.forecast import Files, Forecast, forecast
from fleetctl.checkpoint.sent import Sent
from fleetctl.checkpoint.source import read_files
from fleetctl.engine.runtimes.flags import flag_values
from fleetctl.engine.runtimes.vllm import ALIASES
from fleetctl.errors import RefusedError
from fleetctl.onbox.main import Call
from fleetctl.onbox.weights import checkpoint_files
from fleetctl.run.sizing import refuse_what_cannot_start, sizings
from fleetctl.spec.fleet import Placement
from fleetctl.spec.fleet_model import Model

GIB = 1024**3
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
PER_TOKEN = 2 * 32 * 8 * 128 * 2  # bytes in BF16: key and value, layers, KV heads, head size


def model(**more: Any) -> Model:
    given = {"weights": "/models/llama", "context": 8192, "launch": {"venv": "/opt/vllm"}, "weights_size": "15GiB"}
    return Model.model_validate({**given, **more})


def told(
    model_: Model, placement: dict[str, Any] | None = None, share: float = 0.5, config: Any = LLAMA, **flags: str
) -> Forecast:
    place = Placement.model_validate(placement or {"copies": ["a"]})
    files = Files("a:/models/llama", json.dumps(config).encode(), ())
    return forecast(
        model_, place, "a", 64 * GIB, share, files, {f"--{k.replace('_', '-')}": v for k, v in flags.items()}
    )


def test_the_cache_is_what_is_left_of_the_share_divided_by_the_bytes_of_a_token() -> None:
    found = told(model())
    assert found.tokens is not None
    left = 32 * GIB - 15 * GIB - found.tokens * PER_TOKEN  # engine and activations
    assert 0.3 * GIB < left < 6 * GIB
    assert "requests of 8,192 tokens at once" in found.lines[1]
    assert not found.cannot_start


def test_an_fp8_cache_holds_twice_as_much_and_a_split_too() -> None:
    plain = told(model()).tokens or 0
    assert told(model(), kv_cache_dtype="fp8").tokens == pytest.approx(2 * plain, rel=0.01)
    over_two = told(model(), {"split": ["a", "b"]}).tokens or 0
    assert over_two > 2 * plain


def test_what_cannot_hold_one_request_is_refused_with_the_sum() -> None:
    found = told(model(context=131072), share=0.3)
    assert found.cannot_start
    with pytest.raises(RefusedError, match="replicas/llama@a would not start") as refusal:
        refuse_what_cannot_start({"replicas/llama@a": found})
    assert "for the cache" in refusal.value.message
    assert refusal.value.hint is not None and "kv_cache_dtype" in refusal.value.hint


def test_what_was_measured_on_the_box_takes_the_place_of_what_is_computed() -> None:
    figures = {"weights": "16GiB", "overhead": "4GiB", "at": "2026-11-30"}
    calibrated = model(measured={"a": figures})
    found = told(calibrated)
    assert found.tokens is not None and found.tokens * PER_TOKEN == pytest.approx(12 * GIB, rel=0.001)
    assert found.low == found.high == found.tokens and "measured there on 2026-11-30" in found.lines[0]
    elsewhere = told(model(measured={"b": figures}))
    assert elsewhere == told(model())
    # Another division, or other batches, need another measurement.
    assert told(calibrated, {"split": ["a", "b"]}) == told(model(), {"split": ["a", "b"]})
    assert told(calibrated, max_num_batched_tokens="2048") == told(model(), max_num_batched_tokens="2048")
    assert found.beyond == 0
    # Its start was seen to take more than its share of 32 GiB for a while.
    peak = told(model(measured={"a": {**figures, "startup": "40GiB"}}))
    assert (peak.beyond, peak.tokens) == (8 * GIB, found.tokens)
    assert peak.lines[-1] == "while it starts: up to 40.0 GiB, 8.0 GiB more than its share (measured)"
    half = model(measured={"a": {**figures, "weights": "8GiB", "ranks": 2}})
    assert "weights 8.0 GiB" in told(half, {"split": ["a", "b"]}).lines[0]


def test_a_cache_that_is_given_in_bytes_is_that_many_tokens_whatever_the_share_leaves() -> None:
    place = {"copies": {"a": {"kv_cache_memory": "4GiB"}}}
    found = told(model(), place)
    assert found.tokens is not None and found.tokens * PER_TOKEN == pytest.approx(4 * GIB, rel=0.001)
    assert told(model(), place, share=0.6).tokens == found.tokens
    assert "it gets 4.0 GiB (kv_cache_memory)" in found.lines[0] and "stay free" in found.lines[0]
    assert told(model(), kv_cache_memory_bytes=str(4 * GIB)).tokens == found.tokens


def test_a_cache_that_does_not_fit_the_share_is_refused_and_one_that_may_not_is_in_doubt() -> None:
    over = told(model(), {"copies": {"a": {"kv_cache_memory": "17GiB"}}})
    assert over.cannot_start and "more than that" in over.lines[0]
    with pytest.raises(RefusedError, match="would take more than its share") as refusal:
        refuse_what_cannot_start({"replicas/llama@a": over})
    assert "lower kv_cache_memory:" in (refusal.value.hint or "")
    left = told(model()).tokens or 0
    close = told(model(), {"copies": {"a": {"kv_cache_memory": left * PER_TOKEN}}})
    assert close.in_doubt and not close.cannot_start and close.exact


@given(share=st.floats(0.02, 1.0), cache=st.none() | st.integers(2**20, 70 * GIB))
def test_weights_and_cache_of_a_forecast_without_a_doubt_fit_the_share(share: float, cache: int | None) -> None:
    seat = {} if cache is None else {"kv_cache_memory": cache}
    found = told(model(), {"copies": {"a": seat}}, share)
    if found.cannot_start or found.in_doubt:
        return
    assert found.tokens is not None
    assert 15 * GIB + max(found.tokens * PER_TOKEN, cache or 0) <= math.ceil(share * 64 * GIB)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "llama"}, "the cache is not known"),
        ({}, "the cache is not known"),
        ([], "the cache is not known"),
        ({**LLAMA, "model_type": "something-new"}, "not all of it is known"),
    ],
)
def test_what_cannot_be_told_is_said_and_stops_nothing(config: Any, said: str) -> None:
    found = told(model(), config=config)
    assert not found.cannot_start
    assert said in " ".join(found.lines)


def test_vllm_on_the_cpu_is_told_the_size_of_its_cache() -> None:
    found = told(model(environment={"VLLM_CPU_KVCACHE_SPACE": "1"}))
    assert found == Forecast(("the cache is what VLLM_CPU_KVCACHE_SPACE says",))


def test_flags_are_read_however_they_are_spelled() -> None:
    words = ["--max_num_batched_tokens=4096", "--no-enable-prefix-caching", "-tp", "2", "--enforce-eager"]
    assert flag_values(words, ALIASES) == {
        "--max-num-batched-tokens": "4096",
        "--enable-prefix-caching": "no",
        "--tensor-parallel-size": "2",
        "--enforce-eager": "",
    }


def test_a_folder_on_a_box_is_read_from_its_headers_alone(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [64, 64], "data_offsets": [0, 8192]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 8192)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "tokenizer.json").write_text("x" * 10_000)
    sent = checkpoint_files(Call(1, lambda message: None), str(tmp_path))
    assert set(sent["begins"]) == {"config.json", "model.safetensors"}
    read = read_files(Sent("a:/models/llama", sent))
    assert [(one.name, one.size) for one in read.tensors] == [("w", 8192)]
    assert json.loads(read.config) == LLAMA


@given(st.integers(1, 30))
@settings(deadline=None)
def test_with_the_least_that_it_says_an_engine_starts(reserve: int) -> None:
    """What a trial gets: enough with the most overhead that is likely, and not much more than that."""
    found = told(model(context=8192 * reserve), share=0.9)
    assert found.least is not None
    share = found.least / (64 * GIB)
    assert not told(model(context=8192 * reserve), share=share + 1e-6).in_doubt
    assert told(model(context=8192 * reserve), share=share - 0.001).in_doubt


def test_slots_for_adapters_are_in_the_sum_of_a_plan() -> None:
    """A measured overhead has them in it, where the engine had them when it was measured."""
    plain, slots = told(model()), told(model(), enable_lora="", max_loras="4", max_lora_rank="64")
    assert plain.tokens is not None and slots.tokens is not None and slots.tokens < plain.tokens
    assert "LoRA slots" in slots.lines[0] and "LoRA slots" not in plain.lines[0]
    assert told(model(), enable_lora="no", max_loras="4") == plain
    figures = {"weights": "16GiB", "overhead": "4GiB", "at": "2026-11-30"}
    measured = told(model(measured={"a": figures}), enable_lora="", max_loras="4")
    assert measured.tokens == told(model(measured={"a": figures})).tokens


def test_a_plan_shows_the_forecast_and_its_doubts() -> None:
    one = Forecast(("a sum",), tokens=10, low=1, high=20, in_doubt=True)
    assert [sizing.model_dump() for sizing in sizings({"e": one})] == [
        {"engine": "e", "lines": ("a sum",), "tokens": 10, "in_doubt": True, "exact": False, "beyond": 0}
    ]
