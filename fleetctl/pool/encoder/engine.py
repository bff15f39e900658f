"""A model in ONNX Runtime: token numbers in, vectors out.

Everything is computed in float32. With 8-bit products it was 2.2 times as fast, but the cosine of a text's vector with
the right one fell to 0.979; with a scale for every 32 weights to 0.9987, 1.2 times as fast (bench/pool_encoder.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetctl.pool.encoder import graph, pooling
from fleetctl.pool.encoder.errors import ModelError
from fleetctl.pool.encoder.recipe import Recipe
from fleetctl.pool.encoder.weights import read_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

CPU = "CPUExecutionProvider"
_EXPORTED = ("onnx/model.onnx", "model.onnx")
_SETTINGS = {"CUDAExecutionProvider": {"use_tf32": "0"}}  # else its float32 products have 10 bits
_KNOWN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Engine:
    """A model that is loaded. Safe in several threads."""

    def __init__(self, recipe: Recipe, threads: int, provider: str = CPU) -> None:
        """``threads``: of one batch. Raises ModelError, where the model or the provider cannot be used."""
        import numpy as np
        import onnxruntime as ort

        if provider not in ort.get_available_providers():
            told = ", ".join(ort.get_available_providers())
            raise ModelError(f"this build of ONNX Runtime has no {provider}; it has {told}")
        self.recipe = recipe
        self.padding = int(recipe.config.get("pad_token_id") or 0)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.enable_mem_pattern = False  # for inputs that always have the same shape
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        source, beside = _source(recipe)
        if beside is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(beside))
        try:
            self._session = ort.InferenceSession(source, options, [provider], [_SETTINGS.get(provider, {})])
        except Exception as error:  # the library has no base class for its own
            raise ModelError(f"ONNX Runtime cannot load {recipe.folder}: {error}") from None
        if provider not in self._session.get_providers():  # it goes on without, and only says so in its log
            raise ModelError(f"{provider} could not be started on this box", hint="see what ONNX Runtime says of it")
        kinds = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}
        self._inputs = {one.name: kinds.get(one.type) for one in self._session.get_inputs()}
        unknown = [name for name, kind in self._inputs.items() if name not in _KNOWN_INPUTS or kind is None]
        if unknown or "input_ids" not in self._inputs:
            told = f"inputs {', '.join(self._inputs)}; known are {', '.join(_KNOWN_INPUTS)}, as whole numbers"
            raise ModelError(f"the ONNX file in {recipe.folder} has {told}")
        outputs = [one.name for one in self._session.get_outputs() if len(one.shape or ()) == 3]
        if not outputs:
            raise ModelError(f"the ONNX file in {recipe.folder} has no output of [texts, tokens, width]")
        self._output = graph.OUTPUT if graph.OUTPUT in outputs else outputs[0]
        self.size = len(self._first())
        """Numbers of a vector."""

    def embed(self, texts: Sequence[Sequence[int]]) -> NDArray[Any]:
        """The vectors of these texts, [texts, size]; they are computed together."""
        import numpy as np

        longest = max(map(len, texts))
        ids: NDArray[Any] = np.full((len(texts), longest), self.padding, np.int32)
        mask: NDArray[Any] = np.zeros((len(texts), longest), np.int32)
        for row, tokens in enumerate(texts):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        feed = {name: given[name].astype(kind, copy=False) for name, kind in self._inputs.items()}
        hidden = self._session.run([self._output], feed)[0]
        vectors = pooling.pool(hidden, mask, self.recipe.pooling)
        return pooling.normalised(vectors) if self.recipe.normalise else vectors

    def _first(self) -> Any:
        import numpy as np

        try:
            vector = self.embed([[self.padding + 1] * 8])[0]
        except Exception as error:  # as above
            raise ModelError(f"ONNX Runtime cannot compute {self.recipe.folder}: {error}") from None
        if not np.isfinite(vector).all():
            raise ModelError(f"{self.recipe.folder} makes vectors that are no numbers", hint="fetch the model again")
        return vector


def _source(recipe: Recipe) -> tuple[bytes | str, Path | None]:
    """The model for ONNX Runtime, and the folder of its weights where it is not a file."""
    weights = recipe.folder / "model.safetensors"
    if recipe.kind in graph.KNOWN and weights.is_file():
        there = weights.resolve()  # ONNX Runtime follows no link out of the folder that it is given
        return graph.write_graph(recipe.config, read_header(there), there.name), there.parent
    exported = next((path for name in _EXPORTED if (path := recipe.folder / name).is_file()), None)
    if exported is not None:
        return str(exported), None
    raise ModelError(
        f"{recipe.folder} has neither model.safetensors of a kind that is known ({', '.join(graph.KNOWN)}; this is "
        f"{recipe.kind or 'not said'}) nor {' or '.join(_EXPORTED)}",
        hint="serve this model with another runtime, or export it to ONNX once",
    )
