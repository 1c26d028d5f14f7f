"""The protocol buffers of a TensorFlow graph, declared at run time.

Only what a frozen graph needs: nodes, attributes, tensors. The messages live in a pool of their own, so that
they never meet those of an installed TensorFlow; fields that are not declared here are skipped. This replaces
a dependency on TensorFlow, or on the packages that carry its messages and much besides.

Source: graph.proto, node_def.proto, attr_value.proto, tensor.proto, tensor_shape.proto and types.proto of
https://github.com/tensorflow/tensorflow/tree/master/tensorflow/core/framework
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from onnx import TensorProto

from tpuflow.errors import ModelError

__all__ = ["DTYPES", "GraphDef", "array_of", "shape_of"]

Message = Any
"""A message of a type made at run time, which no checker knows."""

NUMBER = {
    "float": 2, "int64": 3, "int32": 5, "bool": 8, "string": 9, "message": 11, "bytes": 12, "double": 1,
    "uint32": 13, "uint64": 4,
}  # fmt: skip
"""Type numbers of protocol buffer fields."""

MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Dim": {"size": (1, "int64"), "name": (2, "string")},
    "TensorShapeProto": {"dim": (2, "*Dim"), "unknown_rank": (3, "bool")},
    "TensorProto": {
        "dtype": (1, "int32"), "tensor_shape": (2, "TensorShapeProto"), "tensor_content": (4, "bytes"),
        "half_val": (13, "*int32"), "float_val": (5, "*float"), "double_val": (6, "*double"),
        "int_val": (7, "*int32"), "string_val": (8, "*bytes"), "int64_val": (10, "*int64"),
        "bool_val": (11, "*bool"), "uint32_val": (16, "*uint32"), "uint64_val": (17, "*uint64"),
    },
    "ListValue": {
        "s": (2, "*bytes"), "i": (3, "*int64"), "f": (4, "*float"), "b": (5, "*bool"), "type": (6, "*int32"),
        "shape": (7, "*TensorShapeProto"), "tensor": (8, "*TensorProto"),
    },
    "AttrValue": {
        "list": (1, "ListValue"), "s": (2, "bytes"), "i": (3, "int64"), "f": (4, "float"), "b": (5, "bool"),
        "type": (6, "int32"), "shape": (7, "TensorShapeProto"), "tensor": (8, "TensorProto"),
    },
    "AttrEntry": {"key": (1, "string"), "value": (2, "AttrValue")},
    "NodeDef": {
        "name": (1, "string"), "op": (2, "string"), "input": (3, "*string"), "device": (4, "string"),
        "attr": (5, "*AttrEntry"),
    },
    "GraphDef": {"node": (1, "*NodeDef")},
}  # fmt: skip
"""By message: field -> (number, type), `*` for repeated ones. A map is a
repeated pair of key and value: it is written alike."""


def _declare_messages() -> type[Message]:
    file = descriptor_pb2.FileDescriptorProto(name="graphdef.proto", package="graphdef", syntax="proto3")
    for message, fields in MESSAGES.items():
        made = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            scalar = kind.lstrip("*")
            field = made.field.add(
                name=name, number=number, label=3 if kind.startswith("*") else 1, type=NUMBER.get(scalar, 11)
            )
            if scalar not in NUMBER:
                field.type_name = f".graphdef.{scalar}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName("graphdef.GraphDef"))
    return found


GraphDef = _declare_messages()

DTYPES: dict[int, tuple[np.dtype[Any], int, str]] = {
    1: (np.dtype(np.float32), TensorProto.FLOAT, "float_val"),
    2: (np.dtype(np.float64), TensorProto.DOUBLE, "double_val"),
    3: (np.dtype(np.int32), TensorProto.INT32, "int_val"),
    4: (np.dtype(np.uint8), TensorProto.UINT8, "int_val"),
    5: (np.dtype(np.int16), TensorProto.INT16, "int_val"),
    6: (np.dtype(np.int8), TensorProto.INT8, "int_val"),
    9: (np.dtype(np.int64), TensorProto.INT64, "int64_val"),
    10: (np.dtype(np.bool_), TensorProto.BOOL, "bool_val"),
    17: (np.dtype(np.uint16), TensorProto.UINT16, "int_val"),
    19: (np.dtype(np.float16), TensorProto.FLOAT16, "half_val"),
    22: (np.dtype(np.uint32), TensorProto.UINT32, "uint32_val"),
    23: (np.dtype(np.uint64), TensorProto.UINT64, "uint64_val"),
}
"""By type number: NumPy's type, ONNX's type, the field values stand in."""


def array_of(tensor: Message, where: str) -> npt.NDArray[Any]:
    """The elements of a tensor message.

    Raises:
        ModelError: If its type is not supported or its data does not fill its shape.
    """
    if tensor.dtype not in DTYPES:
        raise ModelError(f"{where}: constants of type {tensor.dtype} are not supported")
    kind, _, field = DTYPES[tensor.dtype]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    size = int(np.prod(shape, dtype=np.int64))
    if tensor.tensor_content:
        if len(tensor.tensor_content) != size * kind.itemsize:
            raise ModelError(f"{where}: the constant is truncated: its data does not fill shape {shape}")
        return np.frombuffer(tensor.tensor_content, kind.newbyteorder("<")).astype(kind).reshape(shape)
    values = list(getattr(tensor, field))
    if len(values) > size or (size and not values and field != "float_val"):
        values = values[:size] or [0]
    array = np.array(values, np.uint16).view(np.float16) if field == "half_val" else np.array(values, kind)
    if size and array.size < size:  # the last value stands for all that follow
        last = array[-1] if array.size else kind.type(0)
        array = np.concatenate([array, np.full(size - array.size, last, kind)])
    return array.astype(kind, copy=False).reshape(shape)


def shape_of(shape: Message) -> list[int] | None:
    """The sizes of a shape message, -1 for unknown ones; None for an unknown rank."""
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]
