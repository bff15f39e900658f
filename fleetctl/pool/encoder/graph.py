"""The graph of BERT and its kin (RoBERTa, XLM-RoBERTa) for ONNX Runtime, written from config.json. Pure.

The weights are not copied: the graph says where each of them is in ``model.safetensors`` (ONNX's *external data*), and
ONNX Runtime maps that file. All operators are ONNX's own, so that every execution provider has them; ONNX Runtime fuses
them as it loads the graph, and on CPUs that was faster than naming its fused attention (bench/pool_encoder.py).

Inputs: ``input_ids`` and ``attention_mask`` (1: a token, 0: padding), int32, [texts, tokens]. Output:
``last_hidden_state``, float32, [texts, tokens, width]. Source of the formulae: "BERT: Pre-training of Deep
Bidirectional Transformers" (arXiv 1810.04805), and ``BertModel`` of Hugging Face transformers for the names of weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fleetctl.pool.encoder import onnxproto
from fleetctl.pool.encoder.errors import ModelError
from fleetctl.pool.encoder.recipe import first_position
from fleetctl.pool.encoder.weights import Tensor

KNOWN = ("bert", "camembert", "roberta", "xlm-roberta")
"""``model_type`` of the models that a graph can be written for."""
INPUTS = ("input_ids", "attention_mask")
OUTPUT = "last_hidden_state"
_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
_STORED = {"F32": onnxproto.FLOAT, "F16": onnxproto.FLOAT16, "BF16": onnxproto.BFLOAT16}
_PREFIXES = ("", "bert.", "roberta.")
_NO_ATTENTION = -10_000.0
"""What is added to the score of padding: e to its power is zero in float32, and it stays finite in float16."""


def write_graph(config: Mapping[str, Any], tensors: Mapping[str, Tensor], location: str) -> bytes:
    """The model as ONNX, its weights in the file ``location``. Raises ModelError for what it does not know."""
    return _Graph(config, tensors, location).whole()


class _Graph:
    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], location: str) -> None:
        self.config = config
        self.tensors = tensors
        self.location = location
        self.prefix = next((one for one in _PREFIXES if f"{one}embeddings.LayerNorm.weight" in tensors), "")
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.width, self.heads = self.number("hidden_size"), self.number("num_attention_heads")
        self.epsilon = float(config.get("layer_norm_eps", 1e-12))
        self.act = str(config.get("hidden_act", "gelu"))
        if self.act not in (*_GELU, "relu"):
            raise ModelError(f"config.json has hidden_act {self.act}; known are {', '.join(_GELU)} and relu")
        if self.width % self.heads:
            raise ModelError(f"config.json has hidden_size {self.width}, which {self.heads} heads cannot share")
        positions = config.get("position_embedding_type") or "absolute"
        if positions != "absolute":
            raise ModelError(f"config.json has position_embedding_type {positions}; known is absolute")

    def whole(self) -> bytes:
        x = self.embeddings()
        mask = self.mask()
        for number in range(self.number("num_hidden_layers")):
            x = self.layer(x, mask, f"encoder.layer.{number}")
        self.nodes.append(onnxproto.node("Identity", [x], OUTPUT, {}))
        shape = ["texts", "tokens"]
        inputs = [onnxproto.value(name, onnxproto.INT32, shape) for name in INPUTS]
        outputs = [onnxproto.value(OUTPUT, onnxproto.FLOAT, [*shape, self.width])]
        return onnxproto.model(self.nodes, list(self.constants.values()), inputs, outputs)

    # The parts of the model

    def embeddings(self) -> str:
        words = self.node("Gather", self.weight("embeddings.word_embeddings"), "input_ids")
        first = first_position(self.config)
        length = self.node("Slice", self.node("Shape", "input_ids"), self.ints([1]), self.ints([2]))
        end = self.node("Add", length, self.ints([first]))
        positions = self.weight("embeddings.position_embeddings")
        positions = self.node("Slice", positions, self.ints([first]), end, self.ints([0]))
        segment = self.node("Gather", self.weight("embeddings.token_type_embeddings"), self.ints(0))  # one text, one
        return self.normalised(words, self.node("Add", positions, segment), "embeddings.LayerNorm")

    def mask(self) -> str:
        padding = self.node("Sub", self.real(1.0), self.node("Cast", "attention_mask", to=onnxproto.FLOAT))
        return self.node("Unsqueeze", self.node("Mul", padding, self.real(_NO_ATTENTION)), self.ints([1, 2]))

    def layer(self, x: str, mask: str, name: str) -> str:
        attended = self.linear(self.attention(x, mask, f"{name}.attention.self"), f"{name}.attention.output.dense")
        x = self.normalised(attended, x, f"{name}.attention.output.LayerNorm")
        inner = self.linear(x, f"{name}.intermediate.dense")
        gelu = _GELU.get(self.act)
        inner = self.node("Relu", inner) if gelu is None else self.node("Gelu", inner, approximate=gelu)
        return self.normalised(self.linear(inner, f"{name}.output.dense"), x, f"{name}.output.LayerNorm")

    def attention(self, x: str, mask: str, name: str) -> str:
        query = self.split(self.linear(x, f"{name}.query"), [0, 2, 1, 3])
        key = self.split(self.linear(x, f"{name}.key"), [0, 2, 3, 1])
        value = self.split(self.linear(x, f"{name}.value"), [0, 2, 1, 3])
        scores = self.node("Mul", self.node("MatMul", query, key), self.real(1 / math.sqrt(self.width / self.heads)))
        shares = self.node("Softmax", self.node("Add", scores, mask), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", shares, value), perm=[0, 2, 1, 3])
        return self.node("Reshape", mixed, self.ints([0, 0, self.width]))

    def split(self, x: str, order: list[int]) -> str:
        """[texts, tokens, width] to one matrix per head."""
        heads = self.node("Reshape", x, self.ints([0, 0, self.heads, self.width // self.heads]))
        return self.node("Transpose", heads, perm=order)

    def linear(self, x: str, name: str) -> str:
        turned = self.node("Transpose", self.weight(name), perm=[1, 0])  # once, when the graph is loaded
        return self.node("Add", self.node("MatMul", x, turned), self.weight(name, "bias"))

    def normalised(self, x: str, skip: str, name: str) -> str:
        total, weights = self.node("Add", x, skip), (self.weight(name), self.weight(name, "bias"))
        return self.node("LayerNormalization", total, *weights, axis=-1, epsilon=self.epsilon)

    # What a graph is made of

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A new node; the name of its output."""
        output = f"{operator}_{len(self.nodes)}"
        self.nodes.append(onnxproto.node(operator, inputs, output, attributes))
        return output

    def weight(self, name: str, part: str = "weight") -> str:
        """A weight as float32, whatever it is stored as."""
        full = f"{self.prefix}{name}.{part}"
        tensor = self.tensors.get(full)
        if tensor is None:
            raise ModelError(f"the weights have no {full}, as this kind of model has", hint="fetch the model again")
        if tensor.dtype not in _STORED:
            raise ModelError(f"the weight {full} is stored as {tensor.dtype}; known are {', '.join(_STORED)}")
        if full not in self.constants:
            kind, shape = _STORED[tensor.dtype], tensor.shape
            self.constants[full] = onnxproto.stored(full, kind, shape, self.location, tensor.offset, tensor.length)
        return full if tensor.dtype == "F32" else self.node("Cast", full, to=onnxproto.FLOAT)

    def ints(self, values: int | Sequence[int]) -> str:
        """A constant of whole numbers; the name of it."""
        return self.constant(onnxproto.INT64, values)

    def real(self, value: float) -> str:
        """A constant; the name of it."""
        return self.constant(onnxproto.FLOAT, value)

    def constant(self, kind: int, values: float | Sequence[float]) -> str:
        name = f"constant_{kind}_{values}"
        if name not in self.constants:
            self.constants[name] = onnxproto.constant(name, kind, values)
        return name

    def number(self, key: str) -> int:
        value = self.config.get(key)
        if type(value) is not int or value < 1:
            raise ModelError(f"config.json has no {key} that is a number")
        return value
