"""The messages of the ONNX format that a graph needs, for the protobuf library that ONNX Runtime brings along.

Names and numbers of the fields are those of ``onnx/onnx.proto`` (ONNX 1.15 and later). The package ``onnx`` itself
would be a seventh of all that this server installs (25 of 172 MB), for these few.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

FLOAT, INT32, INT64, FLOAT16, BFLOAT16 = 1, 6, 7, 10, 16
"""TensorProto.DataType."""
_EXTERNAL = 1  # TensorProto.DataLocation
_ATTRIBUTES = {float: ("f", 1), int: ("i", 2), str: ("s", 3), list: ("ints", 7)}  # AttributeProto.AttributeType

# Message → field → its number and kind; * is repeated.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Model": {
        "ir_version": (1, "int64"),
        "producer_name": (2, "string"),
        "graph": (7, "Graph"),
        "opset_import": (8, "*Opset"),
    },
    "Opset": {"domain": (1, "string"), "version": (2, "int64")},
    "Graph": {
        "node": (1, "*Node"),
        "name": (2, "string"),
        "initializer": (5, "*Tensor"),
        "input": (11, "*Value"),
        "output": (12, "*Value"),
    },
    "Node": {
        "input": (1, "*string"),
        "output": (2, "*string"),
        "name": (3, "string"),
        "op_type": (4, "string"),
        "attribute": (5, "*Attribute"),
    },
    "Attribute": {
        "name": (1, "string"),
        "f": (2, "float"),
        "i": (3, "int64"),
        "s": (4, "bytes"),
        "ints": (8, "*int64"),
        "type": (20, "int32"),
    },
    "Tensor": {
        "dims": (1, "*int64"),
        "data_type": (2, "int32"),
        "name": (8, "string"),
        "raw_data": (9, "bytes"),
        "external_data": (13, "*Entry"),
        "data_location": (14, "int32"),
    },
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "Value": {"name": (1, "string"), "type": (2, "Type")},
    "Type": {"tensor_type": (1, "TensorType")},
    "TensorType": {"elem_type": (1, "int32"), "shape": (2, "Shape")},
    "Shape": {"dim": (1, "*Dimension")},
    "Dimension": {"dim_value": (1, "int64"), "dim_param": (2, "string")},
}


@cache
def _kinds() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="fleetctl/onnx.proto", package="fleetctl.onnx", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for one, (number, kind) in fields.items():
            label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
            plain = kind.removeprefix("*")
            if plain in _MESSAGES:
                added = message.field.add(name=one, number=number, label=label, type=field.TYPE_MESSAGE)
                added.type_name = f".fleetctl.onnx.{plain}"
            else:
                message.field.add(name=one, number=number, label=label, type=getattr(field, f"TYPE_{plain.upper()}"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"fleetctl.onnx.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def node(operator: str, inputs: Sequence[str], output: str, attributes: Mapping[str, Any]) -> Any:
    """An operator of ONNX's own domain. Attributes are numbers, texts and lists of whole numbers."""
    made = _kinds()["Node"](op_type=operator, name=output, input=inputs, output=[output])
    for name, value in attributes.items():
        field, kind = _ATTRIBUTES[type(value)]
        set_to = value.encode() if isinstance(value, str) else value
        made.attribute.add(name=name, type=kind, **{field: set_to})
    return made


def constant(name: str, kind: int, values: float | Sequence[float]) -> Any:
    """A tensor of FLOAT or INT64: a list of one dimension, or a single number."""
    listed = values if isinstance(values, Sequence) else [values]
    raw = struct.pack(f"<{len(listed)}{'f' if kind == FLOAT else 'q'}", *listed)
    dims = [len(listed)] if isinstance(values, Sequence) else []
    return _kinds()["Tensor"](name=name, data_type=kind, dims=dims, raw_data=raw)


def stored(name: str, kind: int, dims: Sequence[int], location: str, offset: int, length: int) -> Any:
    """A tensor whose bytes are in the file ``location``."""
    made = _kinds()["Tensor"](name=name, data_type=kind, dims=dims, data_location=_EXTERNAL)
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        made.external_data.add(key=key, value=str(value))
    return made


def value(name: str, kind: int, shape: Sequence[str | int]) -> Any:
    """An input or an output; a dimension with a name may have any size."""
    dims = [{"dim_value": one} if isinstance(one, int) else {"dim_param": one} for one in shape]
    return _kinds()["Value"](name=name, type={"tensor_type": {"elem_type": kind, "shape": {"dim": dims}}})


def model(nodes: Sequence[Any], constants: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> bytes:
    """A whole model, as the bytes of an ONNX file: operator set 20, the first with Gelu, and what belongs to it."""
    graph = _kinds()["Graph"](name="encoder", node=nodes, initializer=constants, input=inputs, output=outputs)
    opsets = [_kinds()["Opset"](domain="", version=20)]
    made = _kinds()["Model"](ir_version=9, producer_name="fleetctl", graph=graph, opset_import=opsets)
    return bytes(made.SerializeToString(deterministic=True))
