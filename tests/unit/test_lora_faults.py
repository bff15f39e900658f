"""A bad adapter is known by its files, before anything is sent: a case a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetctl.capacity.adapter import Base, doubts, faults, rank_of
from fleetctl.checkpoint.adapter import find_adapters, read_adapter
from fleetctl.checkpoint.source import Folder, read_files
from fleetctl.errors import SpecError
from fleetctl.lab.tinylora import make_tiny_base, make_tiny_lora
from fleetctl.onbox.adapters import digest_of


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    read = read_files(Folder(make_tiny_base(tmp_path_factory.mktemp("base"))))
    return Base(read.where, tuple(read.tensors))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({}, None),
        ({"rank": 16}, None),
        ({"modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}, None),
        ({"rank_pattern": {"q_proj": 8}}, None),
        ({"modules_to_save": ["score"]}, None),
        ({"init_lora_weights": "gaussian"}, None),
        ({"rank": 32}, "its rank is 32, and the model takes 16 at most"),
        ({"rank_pattern": {"q_proj": 64}}, "its rank is 64"),
        ({"hidden": 256}, "a model of another size: model.layers.0.self_attn.q_proj is 256x256 there and 128x128"),
        ({"layers": 3}, "has no model.layers.2.self_attn.q_proj, model.layers.2.self_attn.v_proj"),
        ({"modules": ["foo_proj"]}, "for another model"),
        ({"r": 4}, "do not have the rank that adapter_config.json says (4)"),
        ({"bias": "all"}, "bias is all"),
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, "LoRA with a bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save has lm_head"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is pissa"),
        ({"layer_replication": [[0, 1]]}, "replicated layers"),
        ({"target_modules": None}, "no target_modules"),
        ({"r": "eight"}, "r is 'eight', not a whole number"),
        ({"lora_alpha": None}, "lora_alpha is missing"),
    ],
)
def test_what_is_wrong_with_an_adapter_is_said_in_words(
    base: Base, tmp_path: Path, how: dict[str, Any], says: str | None
) -> None:
    read = read_adapter(make_tiny_lora(tmp_path / "a", **how)).adapter
    try:
        told = "; ".join(faults(read, base, 16))
    except SpecError as error:
        told = error.message
    assert (told == "") if says is None else (says in told), told


def test_without_the_models_files_its_shapes_are_not_judged(tmp_path: Path) -> None:
    read = read_adapter(make_tiny_lora(tmp_path / "a", hidden=256)).adapter
    assert faults(read, Base("org/model"), 16) == []


def test_a_wrapper_around_the_model_does_not_hide_its_layers(base: Base, tmp_path: Path) -> None:
    folder = make_tiny_lora(tmp_path / "a")
    path = folder / "adapter_model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = (
        whole[8 : 8 + length]
        .replace(b"base_model.model.model.layers", b"base_model.model.language_model.layers")
        .strip()
    )
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole[8 + length :])
    assert faults(read_adapter(folder).adapter, base, 16) == []


def test_one_that_was_made_for_another_model_is_doubted_and_not_refused(base: Base, tmp_path: Path) -> None:
    read = read_adapter(make_tiny_lora(tmp_path / "a", base_model_name_or_path="org/Other-7B")).adapter
    assert faults(read, base, 16) == []
    assert "org/Other-7B" in doubts(read, ["/models/tiny"])[0]
    for name in ("/home/me/tiny", "org/Tiny", "tiny/"):
        same = read_adapter(make_tiny_lora(tmp_path / "b", base_model_name_or_path=name)).adapter
        assert doubts(same, ["/models/tiny"]) == [], name


def _cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:3000])


def _longer(folder: Path) -> None:
    with (folder / "adapter_model.safetensors").open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_cut, "bytes, and its header tells of"),
        (_longer, "bytes, and its header tells of"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b""), "only 0 bytes"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"\xff" * 100), "a header of"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "no adapter_model.safetensors"),
        (lambda f: (f / "adapter_config.json").unlink(), "no adapter_config.json"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "not a JSON object"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "not JSON"),
    ],
)
def test_files_that_are_missing_or_damaged_are_told(tmp_path: Path, spoil: Any, says: str) -> None:
    folder = make_tiny_lora(tmp_path / "a")
    spoil(folder)
    with pytest.raises(SpecError) as told:
        read_adapter(folder)
    assert says in told.value.message


def test_the_rank_is_the_highest_of_all_patterns(tmp_path: Path) -> None:
    assert rank_of(read_adapter(make_tiny_lora(tmp_path / "a", rank_pattern={"v_proj": 64})).adapter) == 64


def test_a_folder_of_folders_is_all_that_are_in_it(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make_tiny_lora(tmp_path / "all" / name)
    (tmp_path / "all" / "notes").mkdir()
    assert [one.name for one in find_adapters(tmp_path / "all")] == ["a", "b"]
    assert find_adapters(tmp_path / "all" / "a") == [tmp_path / "all" / "a"]
    with pytest.raises(SpecError, match=r"no adapter_config\.json"):
        find_adapters(tmp_path / "all" / "notes")
    with pytest.raises(SpecError, match="no such folder"):
        find_adapters(tmp_path / "nowhere")


def test_both_sides_name_a_content_alike(tmp_path: Path) -> None:
    one, other = (read_adapter(make_tiny_lora(tmp_path / name, seed=seed)) for name, seed in (("a", 1), ("b", 2)))
    assert one.digest != other.digest
    assert one.digest == digest_of(json.loads(json.dumps(one.files)))
