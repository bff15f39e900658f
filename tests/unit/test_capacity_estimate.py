"""The whole sum, and the advice that follows from it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.capacity.advice import Verdict, advise
from fleetctl.capacity.attention import Launch
from fleetctl.capacity.config import read_shape
from fleetctl.capacity.estimate import Estimate, Lora, Room, estimate
from fleetctl.capacity.headers import of_metadata
from fleetctl.capacity.logs import parse_log
from fleetctl.capacity.lora import lora_bytes
from fleetctl.capacity.matrices import adapted_width
from fleetctl.capacity.overhead import Overhead, calibrated, model_overhead
from fleetctl.capacity.shape import ModelShape
from fleetctl.capacity.study import Known, study
from fleetctl.errors import SpecError

GIB = 1024**3
GB10 = int(121.63 * GIB)
CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
}
SHAPE = read_shape(json.dumps(CONFIG))
UNKNOWN = read_shape(json.dumps({**CONFIG, "model_type": "never_heard_of"}))


def summed(
    shape: ModelShape = SHAPE, *, weights: int = 61 * GIB, share: float = 0.76, memory: int = GB10, **launch: Any
) -> Estimate:
    return estimate(shape, Launch(**{"context": 32768, **launch}), Room(memory, share), weights)


def test_the_lines_add_up_to_the_memory_for_the_cache() -> None:
    one = summed(weights=61 * GIB)
    assert sum(line.size for line in one.lines) == one.outcome.available
    assert one.lines[0].size == GB10
    assert [line.what for line in one.lines if line.estimate] == ["engine", "activations"]


def test_a_dense_model_of_a_public_log_is_foreseen_from_share_and_weights() -> None:
    """Row T9: two L40S of 44.42 GiB at 0.90, 30.71 GiB of weights on each: 3,947 blocks of 16 tokens."""
    one = summed(weights=int(2 * 30.71 * GIB), share=0.9, memory=int(44.42 * GIB), tp=2)
    assert one.outcome.tokens == pytest.approx(3947 * 16, rel=0.03)
    assert one.overhead.total == pytest.approx((0.30 + 1.26) * GIB, rel=0.2)


def test_overhead_of_a_mixture_goes_through_what_was_measured() -> None:
    mixture = replace(SHAPE, experts=128)
    for tokens, measured in ((2048, 1.39), (8224, 5.30)):
        overhead = model_overhead(mixture, Launch(context=32768, batched_tokens=tokens))
        assert overhead.activations == pytest.approx(measured * GIB, rel=0.01)
    assert overhead.low < overhead.total < overhead.high


@pytest.mark.parametrize(
    ("vocabulary", "sequences", "tp", "logged"),
    [
        (128256, 256, 1, 1.26),  # vllm#10511: a Llama of 8B, and the same on each of two ranks
        (128256, 256, 2, 1.26),
        (128256, 1024, 1, 4.76),  # llm-d-benchmark: that model with vLLM's own default of sequences
        (151936, 1024, 1, 5.56),  # one of 0.6B
        (201088, 1024, 1, 7.38),  # a mixture
    ],
)
def test_a_small_model_takes_what_sampling_for_all_sequences_at_once_takes(
    vocabulary: int, sequences: int, tp: int, logged: float
) -> None:
    shape = replace(SHAPE, hidden=1024, intermediate=3072, vocabulary=vocabulary)
    peak = model_overhead(shape, Launch(context=8192, tp=tp, sequences=sequences)).activations
    assert peak == pytest.approx(logged * GIB, rel=0.08)
    few = model_overhead(shape, Launch(context=8192, tp=tp, sequences=12)).activations
    assert few < 0.3 * GIB, "with the concurrency of a fleet the batches count"


def test_a_log_replaces_the_estimate() -> None:
    text = "Model loading took 73.97 GiB memory and 99.0 seconds\nAvailable KV cache memory: 8.22 GiB\n"
    found = study(
        SHAPE,
        Known(log=parse_log(text)),
        [Launch(context=32768)],
        Room(GB10, 0.72),
        lora=Lora(),
        requests=1,
    )
    (one,) = found.estimates
    assert one.overhead.measured
    assert one.overhead.total == pytest.approx((0.72 * 121.63 - 73.97 - 8.22) * GIB, abs=1000)
    assert one.outcome.available == pytest.approx(8.22 * GIB, abs=2)
    assert one.low == one.high == one.outcome


def test_memory_that_moved_while_the_engine_started_gives_a_negative_overhead_and_no_crash() -> None:
    assert calibrated(requested=90 * GIB, weights=20 * GIB, available=90 * GIB).total == -20 * GIB


@pytest.mark.parametrize(
    ("changes", "verdict", "boxes", "said"),
    [
        ({"weights": 30 * GIB}, Verdict.COPY, 1, "a copy on each box"),
        ({"weights": 100 * GIB}, Verdict.SPLIT, 2, "1 box has no room for the model and a cache"),
        ({"weights": 300 * GIB}, Verdict.SPLIT, 4, "2 boxes have no room"),
        ({"weights": 900 * GIB}, Verdict.NONE, 0, "no division here holds"),
    ],
)
def test_a_copy_per_box_where_it_fits_and_a_split_only_where_it_does_not(
    changes: dict[str, Any], verdict: Verdict, boxes: int, said: str
) -> None:
    advice = advise([summed(tp=tp, **changes) for tp in (1, 2, 4)])
    assert (advice.verdict, advice.boxes) == (verdict, boxes)
    assert said in advice.text


def test_more_requests_may_need_a_split_although_the_model_fits_one_box() -> None:
    both = [summed(weights=70 * GIB, tp=tp) for tp in (1, 2)]
    few, many = advise(both, requests=1), advise(both, requests=6)
    assert (few.verdict, many.verdict) == (Verdict.COPY, Verdict.SPLIT)
    assert "of the 6 requests of full context" in many.text


def test_a_close_call_is_told_as_one() -> None:
    room = next(
        one
        for weights in range(60, 95)
        if (one := summed(weights=weights * GIB)).outcome.requests >= 1 > one.low.requests
    )
    advice = advise([room])
    assert not advice.sure
    assert "It is close" in advice.text


def test_a_family_that_is_not_known_gets_bounds() -> None:
    one = summed(UNKNOWN)
    assert not one.exact
    assert one.high is None
    assert one.low.tokens <= one.outcome.tokens
    assert "not all of its caches are known" in advise([summed(UNKNOWN, weights=89 * GIB)]).text


def test_slots_for_adapters_come_out_of_the_cache() -> None:
    without = summed()
    launch, room = Launch(context=32768), Room(GB10, 0.76)
    slots = estimate(SHAPE, launch, room, 61 * GIB, lora=Lora(slots=4, rank=64))
    taken = without.outcome.available - slots.outcome.available
    assert taken == lora_bytes(SHAPE, 4, 64) > 0
    assert lora_bytes(SHAPE, 8, 64) == 2 * taken
    assert lora_bytes(SHAPE, 4, 64, tp=2) < taken


def test_slots_take_what_a_real_engine_set_aside() -> None:
    """vLLM 0.32 on the CPU, this model, --max-loras 2 --max-lora-rank 16: all lora_a_stacked and lora_b_stacked."""
    small = {"num_hidden_layers": 3, "hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "vocab_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    assert lora_bytes(read_shape(json.dumps({"model_type": "llama", **small, **heads})), 2, 16) == 475_136


PACKED = {
    "16 bits": ("q_proj.weight", "BF16", [256, 128], ""),
    "NVFP4": ("q_proj.weight", "U8", [256, 64], "modelopt"),
    "INT4": ("q_proj.weight_packed", "I32", [256, 16], "compressed-tensors"),
    "AWQ": ("q_proj.qweight", "I32", [128, 32], "awq"),
    "GPTQ": ("q_proj.qweight", "I32", [16, 256], "gptq"),
}


@pytest.mark.parametrize("form", PACKED)
def test_adapters_are_as_wide_as_the_matrix_however_it_is_packed(form: str) -> None:
    name, dtype, sizes, method = PACKED[form]
    entries = [
        (f"model.layers.0.self_attn.{name}", dtype, sizes),
        ("model.layers.0.input_layernorm.weight", "BF16", [128]),
    ]
    tensors = of_metadata(entries, "here")
    embedding = 2 * (SHAPE.vocabulary + SHAPE.hidden)
    assert adapted_width(tensors, SHAPE, method=method) - embedding == 128 + 256
    assert adapted_width(tensors, SHAPE, tp=2, method=method) - embedding == 128 + 128


def test_every_expert_has_adapters_of_its_own() -> None:
    """vLLM 0.32 on the CPU, a mixture of 4 experts, --max-loras 4 --max-lora-rank 16: 1,769,472 bytes for experts."""
    small = {"num_hidden_layers": 3, "hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "vocab_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    dense = read_shape(json.dumps({"model_type": "llama", **small, **heads}))
    mixture = read_shape(json.dumps({"model_type": "mixtral", "num_local_experts": 4, **small, **heads}))
    block = 3 * (3 * 128 + 3 * 256) * 4 * 16 * 2
    assert lora_bytes(mixture, 4, 16) - (lora_bytes(dense, 4, 16) - block) == 1_769_472


@pytest.mark.parametrize(("share", "memory"), [(0.0, GIB), (1.01, GIB), (-1.0, GIB), (0.5, 0)])
def test_a_share_or_a_memory_that_cannot_be_is_refused(share: float, memory: int) -> None:
    with pytest.raises(SpecError):
        Room(memory, share)


def test_weights_that_nobody_knows_are_asked_for() -> None:
    with pytest.raises(SpecError, match="the weights are not known"):
        study(SHAPE, Known(), [Launch(context=1)], Room(GB10, 0.5), lora=Lora(), requests=1)


def test_a_division_that_the_engine_would_refuse_does_not_hide_the_others() -> None:
    launches = [Launch(context=32768, tp=tp) for tp in (1, 3)]
    found = study(SHAPE, Known(weights=61 * GIB), launches, Room(GB10, 0.76), lora=Lora(), requests=1)
    assert [one.launch.tp for one in found.estimates] == [1]
    assert [(launch.tp, message) for launch, message in found.refused] == [
        (3, "40 attention heads cannot be divided over 3 ranks")
    ]


@settings(max_examples=100)
@given(
    st.integers(1, 400 * GIB),
    st.integers(1, 400 * GIB),
    st.floats(0.01, 1),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
)
def test_a_sum_never_promises_more_than_the_box_has(memory: int, weights: int, share: float, tp: int, pp: int) -> None:
    one = summed(weights=weights, share=share, memory=memory, tp=tp, pp=pp)
    held = one.paging.blocks([max(one.outcome.available, 0)]) * max(one.paging.stage_bytes)
    assert one.room.requested + one.room.rest == memory
    assert max(one.outcome.available, held) + one.weights + one.overhead.total <= max(
        one.room.requested, one.weights + one.overhead.total
    )
    assert one.outcome.tokens >= 0
    assert one.low.tokens <= one.outcome.tokens <= (one.high or one.outcome).tokens


@settings(max_examples=60)
@given(st.integers(1, 200 * GIB), st.floats(0.1, 1))
def test_more_boxes_never_hold_fewer_requests(weights: int, share: float) -> None:
    held = [summed(weights=weights, share=share, tp=tp).outcome.requests for tp in (1, 2, 4, 8)]
    assert held == sorted(held)


def test_overhead_that_was_measured_has_no_spread() -> None:
    assert Overhead(0, 5 * GIB, measured=True).low == Overhead(0, 5 * GIB, measured=True).high == 5 * GIB
