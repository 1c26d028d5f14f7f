"""Models as bytes and arrays, to be sent to other processes.

A model is a graph of objects that refer to each other, too deep to be pickled, and its protocol buffer holds
neither weights of more than 2 GB nor what the frontend notes at values and nodes. So large weights go beside
the buffer as arrays, and notes by name of the value or place of the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PackedModel", "pack", "unpack"]

LARGE_BYTES = 4096
"""Weights of fewer bytes stay in the buffer."""

ARRAYS = frozenset(
    {
        ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8,
        ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32, ir.DataType.UINT32, ir.DataType.INT64,
        ir.DataType.UINT64,
    }
)  # fmt: skip
"""Element types that NumPy has; others stay in the buffer whatever their size."""

Notes = dict[str, Any]


@dataclass(frozen=True)
class PackedModel:
    """A model in a form that can be pickled.

    Attributes:
        proto: Its protocol buffer, which names large weights and does not hold them.
        weights: These, by name.
        nodes: Notes of nodes, by place.
        values: Notes of values, by name.
    """

    proto: bytes
    weights: dict[str, NDArray[np.generic]]
    nodes: dict[int, Notes]
    values: dict[str, Notes]


def pack(model: ir.Model) -> PackedModel:
    """The model in a form that can be pickled; it stays as it is."""
    light, weights = model.clone(), {}
    for name, value in light.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < LARGE_BYTES or tensor.dtype not in ARRAYS:
            continue
        weights[name] = tensor.numpy()
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = ir.ExternalTensor("apart", 0, tensor.nbytes, tensor.dtype, shape=shape, name=name)
    nodes = {at: dict(node.meta) for at, node in enumerate(model.graph.all_nodes()) if node.meta}
    values = {value.name: dict(value.meta) for value in _values(model) if value.name and value.meta}
    return PackedModel(ir.serde.serialize_model(light).SerializeToString(), weights, nodes, values)


def unpack(packed: PackedModel) -> ir.Model:
    """The model that was packed."""
    model = ir.serde.deserialize_model(onnx.ModelProto.FromString(packed.proto))
    for name, array in packed.weights.items():
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    for at, node in enumerate(model.graph.all_nodes()):
        node.meta.update(packed.nodes.get(at, {}))
    for value in _values(model):
        value.meta.update(packed.values.get(value.name or "", {}))
    return model


def _values(model: ir.Model) -> Iterator[ir.Value]:
    graph = model.graph
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs
