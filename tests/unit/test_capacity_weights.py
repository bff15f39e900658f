"""Headers of safetensors files, and the weights that follow from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import CONFIG, Tensors, data_size, header, llama, write_model, write_shard
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.capacity.attention import Launch
from fleetctl.capacity.config import read_shape
from fleetctl.capacity.headers import FIRST_READ, Tensor, header_length, parse_header, read_tensors
from fleetctl.capacity.weights import Part, format_counts, loaded_size, part_of, weigh
from fleetctl.checkpoint.source import Folder, read_checkpoint
from fleetctl.errors import SpecError

SHAPE = read_shape(json.dumps(CONFIG))
SMALL: Tensors = {"a.weight": ("BF16", [4, 8]), "b": ("F8_E4M3", [3]), "c": ("F4", [3, 3]), "d": ("I64", [])}


def tensors_of(tensors: Tensors) -> list[Tensor]:
    start = header(tensors)
    return parse_header(start[FIRST_READ:], "x")


def test_names_types_and_sizes_are_read_from_the_first_bytes(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", SMALL)
    sizes = {tensor.name: tensor.size for tensor in read_tensors(Folder(tmp_path))}
    assert sizes == {"a.weight": 64, "b": 3, "c": 5, "d": 8}


def test_a_checkpoint_in_several_files_is_read_by_its_index(tmp_path: Path) -> None:
    write_model(tmp_path, tensors={"model.embed_tokens.weight": ("BF16", [2, 2])})
    write_shard(tmp_path / "more.safetensors", {"lm_head.weight": ("BF16", [2, 2])})
    places = {"model.embed_tokens.weight": "model.safetensors", "lm_head.weight": "more.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    write_shard(tmp_path / "other.safetensors", {"stray": ("F32", [100])})
    assert [tensor.name for tensor in read_checkpoint(str(tmp_path)).tensors] == sorted(places, reverse=True)


def test_the_publishers_second_copy_in_one_file_is_not_counted(tmp_path: Path) -> None:
    write_model(tmp_path)
    write_shard(tmp_path / "consolidated.safetensors", llama())
    assert sum(tensor.size for tensor in read_checkpoint(str(tmp_path)).tensors) == data_size(llama())


def broken(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    index = folder / "model.safetensors.index.json"
    match how:
        case "empty":
            weights.write_bytes(b"")
        case "a web page":
            weights.write_bytes(b"<!DOCTYPE html><html>gone</html>")
        case "a pointer of git-lfs":
            weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        case "header cut off":
            weights.write_bytes(whole[:100])
        case "data cut off":
            weights.write_bytes(whole[:-1])
        case "no config":
            (folder / "config.json").unlink()
        case "a shard missing":
            index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}))
        case "index without a map":
            index.write_text("{}")
        case "index that leads out":
            index.write_text(json.dumps({"weight_map": {"a": "../secret"}}))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("empty", "only 0 bytes"),
        ("a web page", "a header of"),
        ("a pointer of git-lfs", "a header of"),
        ("header cut off", "not JSON"),
        ("data cut off", "and its header tells of"),
        ("no config", "no config.json in it"),
        ("a shard missing", "1 of 2 files of weights are missing: gone.safetensors"),
        ("index without a map", "no weight_map"),
        ("index that leads out", "outside the folder"),
    ],
)
def test_a_damaged_download_is_told_with_its_file(tmp_path: Path, how: str, said: str) -> None:
    folder = write_model(tmp_path / "model")
    broken(folder, how)
    with pytest.raises(SpecError) as told:
        read_checkpoint(str(folder))
    assert said in told.value.message
    assert str(folder) in told.value.message


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (5, "is not an object"),
        ({"dtype": "F7", "shape": [1], "data_offsets": [0, 1]}, "the type F7 is not known"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "no proper shape"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "no proper shape"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0]}, "no proper shape"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "4 bytes for a shape of [2] in F32"),
    ],
)
def test_an_entry_that_contradicts_itself_is_told(entry: object, said: str) -> None:
    with pytest.raises(SpecError) as told:
        parse_header(json.dumps({"weight": entry}).encode(), "x")
    assert said in told.value.message


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=64), st.tuples(st.integers(0, 200), st.integers(0, 255))))
def test_whatever_the_bytes_are_there_is_a_list_or_one_clear_error(change: bytes | tuple[int, int]) -> None:
    start = bytearray(header(SMALL))
    if isinstance(change, bytes):
        start = bytearray(change)
    else:
        start[change[0] % len(start)] = change[1]
    try:
        length = header_length(bytes(start[:FIRST_READ]), "x")
        parse_header(bytes(start[FIRST_READ : FIRST_READ + min(length, 10_000)]), "x")
    except SpecError as error:
        assert error.message


FORMATS: list[tuple[str, str, Tensors, dict[str, int]]] = [
    ("BF16", "", {"l.weight": ("BF16", [4, 4])}, {"BF16": 32}),
    (
        "NVFP4 of ModelOpt",
        "modelopt",
        {
            "l.weight": ("U8", [16, 8]),
            "l.weight_scale": ("F8_E4M3", [16, 1]),
            "l.weight_scale_2": ("F32", []),
            "h.weight": ("BF16", [2, 2]),
        },
        {"NVFP4": 144, "BF16": 8, "F32": 4},
    ),
    (
        "NVFP4 of compressed-tensors",
        "compressed-tensors",
        {
            "l.weight_packed": ("U8", [16, 8]),
            "l.weight_scale": ("F8_E4M3", [16, 1]),
            "l.weight_global_scale": ("F32", [1]),
        },
        {"NVFP4": 144, "F32": 4},
    ),
    (
        "MXFP4 of gpt-oss",
        "mxfp4",
        {"e.gate_up_proj_blocks": ("U8", [2, 4, 16]), "e.gate_up_proj_scales": ("U8", [2, 4])},
        {"MXFP4": 136},
    ),
    ("MXFP4", "quark", {"l.weight": ("U8", [16, 16]), "l.weight_scale": ("F8_E8M0", [16, 1])}, {"MXFP4": 272}),
    (
        "FP8 in blocks",
        "fp8",
        {"l.weight": ("F8_E4M3", [16, 16]), "l.weight_scale_inv": ("F32", [1, 1])},
        {"FP8": 256, "F32": 4},
    ),
    (
        "AWQ",
        "awq",
        {"l.qweight": ("I32", [16, 2]), "l.qzeros": ("I32", [1, 2]), "l.scales": ("F16", [1, 16])},
        {"AWQ": 168},
    ),
    ("GPTQ", "gptq", {"l.qweight": ("I32", [2, 16]), "l.g_idx": ("I32", [16])}, {"GPTQ": 192}),
    (
        "INT4 of compressed-tensors",
        "compressed-tensors",
        {"l.weight_packed": ("I32", [16, 2]), "l.weight_scale": ("BF16", [16, 1])},
        {"INT4": 128, "BF16": 32},
    ),
]


@pytest.mark.parametrize(("method", "tensors", "expected"), [f[1:] for f in FORMATS], ids=[f[0] for f in FORMATS])
def test_each_format_is_told_from_the_others(method: str, tensors: Tensors, expected: dict[str, int]) -> None:
    assert format_counts(tensors_of(tensors), method) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.1.mlp.down_proj.weight", (Part.LAYER, 1)),
        ("model.language_model.layers.0.self_attn.q_proj.weight", (Part.LAYER, 0)),
        ("transformer.h.1.attn.c_attn.weight", (Part.LAYER, 1)),
        ("model.layers.2.eh_proj.weight", (Part.DRAFT, 0)),  # DeepSeek's draft head is numbered after the layers
        ("mtp.layers.0.mlp.experts.3.up_proj.weight", (Part.DRAFT, 0)),
        ("model.visual.blocks.1.attn.qkv.weight", (Part.ENCODER, 0)),
        ("vision_tower.vision_model.encoder.layers.1.mlp.fc1.weight", (Part.ENCODER, 0)),
        ("model.embed_tokens.weight", (Part.EMBEDDING, 0)),
        ("lm_head.weight", (Part.HEAD, 0)),
        ("model.layers.1.ple.ple_embedding.ngram_embedding.weight", (Part.TABLE, 0)),
        ("model.norm.weight", (Part.REST, 0)),
    ],
)
def test_each_tensor_belongs_to_a_part_of_the_model(name: str, expected: tuple[Part, int]) -> None:
    assert part_of(name, layers=2) == expected


def test_single_precision_matrices_are_loaded_as_half_and_scales_stay_as_they_are() -> None:
    sizes = {"l.weight": ("F32", [8, 8]), "l.weight_scale": ("F32", [8, 1]), "n.weight": ("F32", [8])}
    assert [loaded_size(tensor) for tensor in tensors_of(sizes)] == [128, 32, 32]


def test_ranks_share_matrices_and_copy_the_rest() -> None:
    tensors = tensors_of(llama())
    one = weigh(tensors, SHAPE, Launch(context=4096))
    assert one.stages == (one.loaded,) == (data_size(llama()),)
    two = weigh(tensors, SHAPE, Launch(context=4096, tp=2))
    vectors = 3 * 64 * 2
    assert two.stages == ((one.loaded - vectors) // 2 + vectors,)
    # With four ranks and two KV heads, each rank holds half of the keys and values, not a quarter.
    four = weigh(tensors, SHAPE, Launch(context=4096, tp=4))
    kept = 2 * 2 * 32 * 64 * 2
    assert four.stages == ((one.loaded - vectors - kept) // 4 + vectors + kept // 2,)


def test_stages_hold_their_layers_and_the_ends_hold_the_rest() -> None:
    whole = weigh(tensors_of(llama()), SHAPE, Launch(context=4096))
    first, last = weigh(tensors_of(llama()), SHAPE, Launch(context=4096, pp=2)).stages
    assert first + last == whole.loaded
    assert first - last == 64 * 2  # the last norm is counted with the first stage


def test_a_tied_output_layer_and_an_unused_draft_head_are_not_loaded() -> None:
    draft: Tensors = {"mtp.fc.weight": ("BF16", [64, 128])}
    tensors = tensors_of({**llama(), **draft})
    tied = read_shape(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    plain = weigh(tensors, SHAPE, Launch(context=4096)).loaded
    assert plain == data_size(llama())
    assert weigh(tensors, SHAPE, Launch(context=4096, spec_tokens=1)).loaded == plain + data_size(draft)
    assert weigh(tensors, tied, Launch(context=4096)).loaded == plain - 512 * 64 * 2
