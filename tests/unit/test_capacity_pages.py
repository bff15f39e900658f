"""From a model's shape to blocks and tokens. Right values are vLLM's own, or sums that the comments write out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.capacity.attention import CPU, Launch, token_bytes
from fleetctl.capacity.config import read_shape
from fleetctl.capacity.kvdtype import NAMES, known_dtype, side_bytes
from fleetctl.capacity.pages import page_model, stage_of_layers
from fleetctl.capacity.shape import Full, Latent, Layer, ModelShape, Part, State, Window
from fleetctl.errors import SpecError

GIB = 1024**3


def model(*layers: Layer, draft: tuple[Layer, ...] = (), **more: Any) -> ModelShape:
    given = {"context": 4096, "hidden": 64, "intermediate": 64, "heads": 64, "vocabulary": 100, **more}
    return ModelShape("config.json", "llama", layers, draft=draft, **given)


FULL = Layer((Full(8, 128, 128),))
WINDOW = Layer((Window(8, 128, 128, 1024),))
LATENT = Layer((Latent(576),))
STATE = Layer((State((Part(8192, 3, 2, grows=True), Part(32, 128 * 128, 4))),))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("auto", 256), ("bfloat16", 256), ("float32", 512), ("fp8", 128), ("fp8_e5m2", 128),
        ("nvfp4", 64 + 8),  # half a byte each, and a scale of one byte for 16
        ("int8_per_token_head", 128 + 4), ("fp8_per_token_head", 128 + 4), ("int4_per_token_head", 64 + 4),
    ],
)  # fmt: skip
def test_a_head_of_128_costs_what_its_dtype_says(dtype: str, expected: int) -> None:
    assert side_bytes(dtype, 128, 2) == expected


@pytest.mark.parametrize(("written", "meant"), [("BF16", "bfloat16"), (" fp16 ", "float16"), ("FP8", "fp8")])
def test_dtypes_are_known_by_their_usual_short_names(written: str, meant: str) -> None:
    assert known_dtype(written) == meant


@pytest.mark.parametrize(
    ("tp", "layer", "expected"),
    [
        (1, FULL, 8 * 2 * 256),
        (4, FULL, 2 * 2 * 256),
        (8, FULL, 1 * 2 * 256),
        (16, FULL, 1 * 2 * 256),  # fewer KV heads than ranks: copied
        (1, LATENT, 576 * 2),
        (8, LATENT, 576 * 2),  # a latent vector is the same on every rank
    ],
)
def test_a_token_on_one_rank(tp: int, layer: Layer, expected: int) -> None:
    assert token_bytes(layer.caches[0], model(layer), Launch(context=4096, tp=tp)) == expected


# A state of 8192 x 3 x 2 + 32 x 16384 x 4 = 2,146,304 bytes; a token of 8 heads of 128 in BF16 is 4,096: 524, so 528.
@pytest.mark.parametrize(
    ("settings", "block", "per_request"),
    [
        ({}, 528, 8 + 3 * 2),  # 4096 tokens in 8 blocks, and 3 groups of states with prefix caching
        ({"prefix_caching": False}, 528, 8 + 3 * 1),
        ({"kv": "fp8"}, 1056, 4 + 3 * 2),
        ({"spec_tokens": 2}, 544, 8 + 3 * 4),  # the convolution grows by 2 rows: 2,179,072 bytes
        ({"tp": 2}, 528, 8 + 3 * 2),
        ({"backend": CPU}, 640, 7 + 3 * 2),  # blocks of 128 there
    ],
)
def test_blocks_grow_until_a_page_holds_a_state(settings: dict[str, Any], block: int, per_request: int) -> None:
    paged = page_model(model(*([STATE] * 3 + [FULL]) * 2), Launch(context=4096, **settings))
    assert (paged.block, paged.per_request) == (block, per_request)


def test_layers_stand_in_groups_of_the_rarest_kind_or_of_the_commonest_where_they_are_close() -> None:
    def sizes(*layers: Layer) -> list[int]:
        groups = page_model(model(*layers), Launch(context=8192)).groups
        return sorted(len(group.members) for group in groups)

    assert sizes(*[FULL] * 10, *[WINDOW] * 20) == [10, 10, 10]
    assert sizes(*[FULL] * 12, *[WINDOW] * 13) == [12, 13]
    assert sizes(*[FULL] * 4, *[WINDOW] * 10) == [3, 3, 4, 4]


def test_a_window_holds_itself_and_what_is_under_way_in_one_block_more() -> None:
    launch = Launch(context=100_000, batched_tokens=2048, batches=2)
    # 1023 + 2 x 2048 = 5119 tokens in 320 blocks of 16, and one
    assert page_model(model(*[WINDOW] * 3), launch).per_request == 321
    assert page_model(model(*[WINDOW] * 3), Launch(context=1000)).per_request == 63 + 1


def test_windows_beside_a_latent_cache_that_cannot_be_padded_keep_the_whole_context() -> None:
    odd = Layer((Window(3, 100, 100, 1024),))
    paged = page_model(model(LATENT, odd), Launch(context=4096))
    assert [len(group.members) for group in paged.groups] == [2]
    assert paged.per_request == 4096 // 16


@pytest.mark.parametrize(
    ("layers", "pp", "stages"),
    [
        (8, 2, [4, 4]),
        (9, 2, [5, 4]),
        (10, 4, [2, 3, 3, 2]),
        (11, 4, [3, 3, 3, 2]),
        (3, 3, [1, 1, 1]),
    ],
)
def test_stages_get_layers_as_vllm_gives_them(layers: int, pp: int, stages: list[int]) -> None:
    placed = stage_of_layers(layers, pp)
    assert [placed.count(stage) for stage in range(pp)] == stages


def test_the_stage_with_the_least_room_decides() -> None:
    paged = page_model(model(*[FULL] * 8), Launch(context=4096, pp=2))
    assert paged.stage_bytes == (4 * 65536, 4 * 65536)
    assert paged.blocks([GIB, GIB // 2]) == GIB // 2 // (4 * 65536)
    with pytest.raises(SpecError):
        paged.blocks([1, 2, 3])


def test_a_draft_head_stands_on_the_last_stage_and_only_where_it_is_used() -> None:
    shape = model(*[FULL] * 8, draft=(FULL,))
    assert page_model(shape, Launch(context=4096, pp=2)).stage_bytes == (4 * 65536, 4 * 65536)
    assert page_model(shape, Launch(context=4096, pp=2, spec_tokens=1)).stage_bytes == (4 * 65536, 5 * 65536)


def test_it_starts_when_one_request_fits_beside_the_block_that_is_never_used() -> None:
    paged = page_model(model(FULL), Launch(context=4096))
    page = paged.stage_bytes[0]
    assert not paged.starts([256 * page])
    assert paged.starts([257 * page])
    assert paged.needed(1) == (257 * page,)
    assert paged.needed(2.5) == (640 * page,)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tp": 3}, "64 attention heads cannot be divided over 3 ranks"),
        ({"tp": 0}, "tensor-parallel size 0"),
        ({"pp": 3}, "2 layers cannot be divided over 3"),
        ({"context": 0}, "context 0"),
        ({"kv": "fp7"}, "KV dtype fp7 is not known"),
        ({"state": "int4"}, "state dtype int4"),
        ({"spec_tokens": -1}, "speculative tokens -1"),
    ],
)
def test_what_an_engine_would_refuse_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        page_model(model(FULL, FULL), Launch(**{"context": 4096, **settings}))


def test_kv_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(SpecError, match="6 KV heads cannot be divided over 4 ranks"):
        page_model(model(Layer((Full(6, 128, 128),)), heads=24), Launch(context=4096, tp=4))


LAYERS = st.lists(st.sampled_from([FULL, WINDOW, STATE]), min_size=1, max_size=24).filter(
    lambda layers: any(layer is not STATE for layer in layers)
)
KV = st.sampled_from([name for name in NAMES if name != "nvfp4"])
MEMORY = st.integers(1, 200 * GIB)
CONTEXTS = st.integers(1, 1 << 20)
FEW = settings(max_examples=150)


@FEW
@given(LAYERS, MEMORY, CONTEXTS, st.integers(0, 3), KV)
def test_more_ranks_never_hold_fewer_requests(
    layers: list[Layer], memory: int, context: int, power: int, kv: str
) -> None:
    def held(tp: int) -> float:
        return page_model(model(*layers), Launch(context=context, tp=tp, kv=kv)).concurrency([memory])

    # Blocks are rounded, so a rank more may cost a block; never more than that.
    fewer, more = held(2**power), held(2 ** (power + 1))
    slack = 2 / page_model(model(*layers), Launch(context=context, tp=2 ** (power + 1), kv=kv)).per_request
    assert more >= fewer * (1 - 0.02) - slack


@FEW
@given(LAYERS, MEMORY, MEMORY, CONTEXTS, KV)
def test_more_memory_never_holds_less(layers: list[Layer], one: int, other: int, context: int, kv: str) -> None:
    paged = page_model(model(*layers), Launch(context=context, kv=kv))
    less, more = sorted([one, other])
    assert paged.tokens([less]) <= paged.tokens([more])
    assert paged.starts([less]) <= paged.starts([more])


@FEW
@given(LAYERS, MEMORY, CONTEXTS, KV)
def test_blocks_never_take_more_than_there_is(layers: list[Layer], memory: int, context: int, kv: str) -> None:
    paged = page_model(model(*layers), Launch(context=context, kv=kv))
    assert paged.blocks([memory]) * paged.stage_bytes[0] <= memory


@FEW
@given(LAYERS, CONTEXTS, st.floats(0.01, 50))
def test_the_memory_that_is_called_needed_holds_what_it_is_for(
    layers: list[Layer], context: int, wanted: float
) -> None:
    paged = page_model(model(*layers), Launch(context=context))
    needed = paged.needed(wanted)
    assert paged.starts(needed)
    assert paged.concurrency(needed) >= wanted


def test_one_full_context_needs_what_a_public_log_says() -> None:
    """MiniMax-M2.7 over two boxes: 62 layers with 8 KV heads of 128 need 23.25 GiB for 196,608 tokens."""
    config = {"model_type": "minimax_m2", "num_hidden_layers": 62, "num_attention_heads": 48, "hidden_size": 3072}
    shape = read_shape(json.dumps({**config, "num_key_value_heads": 8, "head_dim": 128}))
    paged = page_model(shape, Launch(context=196608, tp=2))
    assert paged.per_request * paged.stage_bytes[0] == 23.25 * GIB
