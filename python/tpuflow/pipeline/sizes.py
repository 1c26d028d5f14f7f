"""Bytes of constants, and of the process."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.partitioning import device_networks

if TYPE_CHECKING:
    from tpuflow import _core
    from tpuflow.frontend import FloatModel
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["Sizes", "activation_bytes", "bit_operations", "float_bytes", "graph_bytes", "peak_rss_bytes"]


@dataclass(frozen=True)
class Sizes:
    """Bytes of all constants, as floats and as stored integers."""

    floating: int | None
    quantized: int


def float_bytes(model: FloatModel) -> int:
    """Bytes of all constants of a normalised float model."""
    values = model.model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


def graph_bytes(graph: AnyGraph) -> int:
    """Bytes of all constants of a graph, as stored in its file; the host's are not counted."""
    return sum(
        _bytes(tensor) for part in device_networks(graph) for tensor in part.tensors if tensor.is_constant
    )


def activation_bytes(graph: AnyGraph) -> int:
    """Most bytes of activations that are alive at a time, layer after layer; of segments the largest.

    A tensor is alive from the layer that makes it (an input: from the start) to the last that reads it (an
    output: to the end). What a schedule needs may be less, for it may take layers in parts, or more.
    """
    return max((_activation_bytes(part) for part in device_networks(graph)), default=0)


def _activation_bytes(graph: _core.Graph) -> int:
    layers, tensors = graph.layers, graph.tensors
    last = {tensor: index for index, layer in enumerate(layers) for tensor in layer.operands}
    last |= dict.fromkeys(graph.outputs, len(layers))
    alive = {tensor for tensor in graph.inputs if not tensors[tensor].is_constant}
    most = sum(_bytes(tensors[tensor]) for tensor in alive)
    for index, layer in enumerate(layers):
        alive.add(layer.output)
        most = max(most, sum(_bytes(tensors[tensor]) for tensor in alive))
        alive = {tensor for tensor in alive if last.get(tensor, index) > index}
    return most


def bit_operations(graph: AnyGraph) -> int:
    """Multiply-accumulates times the bits of both factors, as stored."""
    found = 0
    for part in device_networks(graph):
        tensors = part.tensors
        for layer in part.layers:
            bits = [8 * np.dtype(tensors[each].dtype).itemsize for each in layer.operands[:2]]
            found += layer.macs * int(np.prod(bits)) if layer.macs else 0
    return found


def _bytes(tensor: _core.Tensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
