"""Networks at every stage as nodes TensorBoard draws."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.frontend.values import shape_of
from tpuflow.partitioning import HostSegment, Partitioned
from tpuflow.report.tensorboard.writer import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from tpuflow import _core
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["float_nodes", "layer_nodes", "network_bytes"]


def float_nodes(graph: ir.Graph, known: Mapping[str, ir.Value] | None = None) -> list[Node]:
    """Nodes of a float model; weights count for the first node that reads them.

    Args:
        graph: The model's graph.
        known: Values by name whose shapes follow from the graph, where it does not state them itself.
    """

    def with_shape(value: ir.Value) -> ir.Value:
        return value if known is None else known.get(value.name or "", value)

    makers: dict[ir.Value, Node] = {}
    nodes = []
    for value in graph.inputs:
        node = Node(value.name or "", "Placeholder", shape=_shape(value), dtype=_dtype(value))
        node.size = _bytes(value)
        makers[value] = node
        nodes.append(node)
    counted: set[ir.Value] = set()
    for source in graph:
        read = [value for value in source.inputs if value is not None]
        node = Node(source.name or "", source.op_type, [makers[value] for value in read if value in makers])
        weights = [value for value in read if value.const_value is not None]
        for attribute in source.attributes.values():
            if attribute.type.name not in {"TENSOR", "GRAPH", "GRAPHS", "TENSORS"}:
                node.attributes[attribute.name] = attribute.value
        for value in weights:
            node.attributes[f"constant {value.name}"] = f"{_dtype(value)} {_shape(value)}"
        results = [with_shape(value) for value in source.outputs]
        for value, result in zip(source.outputs, results, strict=True):
            makers[value] = node
            node.attributes[f"output {value.name}"] = f"{_dtype(result)} {_shape(result)}"
        fresh = [value for value in weights if value not in counted]
        counted.update(fresh)
        node.size = sum(map(_bytes, (*fresh, *results)))
        nodes.append(node)
    return nodes


def layer_nodes(network: AnyGraph, report: Mapping[str, Any] | None = None) -> list[Node]:
    """Layers of a quantised graph, or of its segments; those of the host are one node each.

    Args:
        network: Graph or graphs.
        report: Figures of a simulated program; its layers then have begin, end and cycles.
    """
    if not isinstance(network, Partitioned):
        nodes = _layers(network, "", {})
    else:
        made: dict[str, Node] = {}
        nodes = []
        for segment in network.segments:
            if isinstance(segment, HostSegment):
                sources = [made[name] for name in segment.inputs if name in made]
                node = Node(segment.name, "Host", sources, nodes=", ".join(segment.nodes))
                made |= dict.fromkeys(segment.outputs, node)
                nodes.append(node)
            else:
                nodes += _layers(segment.network, f"{segment.name}/", made)
    if report is not None:
        _add_times(nodes, report)
    return nodes


def network_bytes(nodes: list[Node]) -> int:
    """Bytes of all weights and outputs."""
    return sum(node.size for node in nodes)


def _layers(graph: _core.Graph, prefix: str, made: dict[str, Node]) -> list[Node]:
    tensors = graph.tensors
    makers: dict[int, Node] = {}
    nodes = []
    for number in graph.inputs:
        tensor = tensors[number]
        source = [made[tensor.name]] if tensor.name in made else []
        node = Node(prefix + tensor.name, "Placeholder", source, **_grid("output", tensor))
        node.size = _stored_bytes(tensor)
        makers[number] = node
        nodes.append(node)
    counted: set[int] = set()
    for layer in graph.layers:
        node = Node(prefix + layer.name, layer.op, [makers[i] for i in layer.operands if i in makers])
        node.attributes |= {"nodes": ", ".join(layer.nodes), "macs": layer.macs}
        for number in layer.operands:
            if tensors[number].is_constant:
                node.attributes |= _grid(f"constant {tensors[number].name}", tensors[number])
        node.attributes |= _grid("output", tensors[layer.output])
        fresh = {i for i in layer.operands if tensors[i].is_constant} - counted
        counted |= fresh
        node.size = _stored_bytes(tensors[layer.output]) + sum(_stored_bytes(tensors[i]) for i in fresh)
        makers[layer.output] = node
        nodes.append(node)
    for number in graph.outputs:
        made[_source(tensors[number])] = makers[number]
    return nodes


def _add_times(nodes: list[Node], report: Mapping[str, Any]) -> None:
    """Begin, end and cycles of layers; names met in several segments are met in their order."""
    micros = report["time_us"] / report["cycles"] if report["cycles"] else 0.0
    waiting: dict[str, list[Mapping[str, Any]]] = {}
    for layer in reversed(report["layers"]):
        waiting.setdefault(layer["name"], []).append(layer)
    for node in nodes:
        known = next((name for name in (node.name, node.name.partition("/")[2]) if waiting.get(name)), None)
        if known is not None:
            layer = waiting[known].pop()
            node.interval = (layer["start"] * micros, layer["end"] * micros)
            node.attributes["cycles"] = layer["end"] - layer["start"]


def _grid(what: str, tensor: _core.Tensor) -> dict[str, object]:
    found: dict[str, object] = {f"{what}: shape": tensor.shape, f"{what}: dtype": tensor.dtype}
    if tensor.scale is not None:
        scales = tensor.scale
        several = f"{len(scales)} from {min(scales):.6g} to {max(scales):.6g}"
        found[f"{what}: scale"] = several if len(scales) > 1 else f"{scales[0]:.9g}"
        found[f"{what}: zero point"] = tensor.zero_point
    return found


def _source(tensor: _core.Tensor) -> str:
    """The model's tensor this one stands for."""
    source = json.loads(tensor.source_json) if tensor.source_json else None
    return str(source["name"]) if isinstance(source, dict) and "name" in source else tensor.name


def _stored_bytes(tensor: _core.Tensor) -> int:
    return math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize


def _shape(value: ir.Value) -> str:
    return "?" if value.shape is None else str([d if isinstance(d, int) else str(d) for d in value.shape])


def _dtype(value: ir.Value) -> str:
    return "?" if value.dtype is None else value.dtype.name.lower()


def _bytes(value: ir.Value) -> int:
    if value.const_value is not None:
        return value.const_value.nbytes
    shape = shape_of(value)
    if shape is None or value.dtype is None:
        return 0
    return math.ceil(math.prod(shape) * value.dtype.itemsize)
