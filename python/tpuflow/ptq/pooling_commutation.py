"""Averages moved behind the last layers that read them: the mean of sums instead of sums of means.

A mean over places is stored in 8 bits, and its rounding goes through the last layer into every output. The
layer may as well come first and its sums be averaged, which is the same number: no rounding stands between
what is averaged and the output, for sums that are averaged and returned have 16 bits.

    x [1, 64, 8, 8] -> mean [1, 64] -> product [1, 10]
    x [1, 64, 8, 8] -> convolution of 1 x 1 [1, 10, 8, 8] -> mean [1, 10]

It takes the layer's multiplications once for every place, which is little for a last layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import array_of, attributes_of, input_at, integers_of, shape_of
from tpuflow.ptq.bias_correction import last_layers
from tpuflow.ptq.layers import LinearLayer, copy_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tpuflow.config import LayerConfig
    from tpuflow.frontend import FloatModel

__all__ = ["commute_pooling"]

VIEWS = frozenset({"Flatten", "Reshape", "Squeeze"})
"""Operators that may stand between a pool and a product."""


@dataclass(frozen=True)
class _PooledLayer:
    """A last layer behind an average.

    Attributes:
        layer: The layer.
        mean: The node that averages.
        bias: The node that adds the bias of a product, if it has one.
        views: What stands between the two.
    """

    layer: LinearLayer
    mean: ir.Node
    bias: ir.Node | None
    views: tuple[ir.Node, ...]

    @property
    def names(self) -> set[str]:
        """Everything that goes, moves or holds something else afterwards."""
        nodes = [self.mean, *self.views, self.layer.node, *([] if self.bias is None else [self.bias])]
        return {
            name
            for node in nodes
            for name in (node.name, *(value.name for value in node.outputs))
            if name is not None
        }


def commute_pooling(model: FloatModel, settings: Sequence[LayerConfig] = ()) -> FloatModel | None:
    """The model with averages behind its last layers; None where no last layer reads one.

    Args:
        model: As it is; it is not changed itself.
        settings: Entries by name: what they are for stays where it is.
    """
    made = copy_model(model.model)
    hosted = {finding.node for finding in model.findings}
    found = [
        entry
        for layer in last_layers(made.graph)
        if not layer.is_stated and (entry := _pooled_layer(layer)) is not None
        if hosted.isdisjoint({layer.name, entry.mean.name or ""})
        and not any(each.fits(name) for each in settings for name in entry.names)
    ]
    for entry in found:
        _move_layer(made.graph, entry)
    return replace(model, model=made) if found else None


def _pooled_layer(layer: LinearLayer) -> _PooledLayer | None:
    value = layer.node.inputs[0]
    assert value is not None
    node = value.producer()
    views: list[ir.Node] = []
    while node is not None and node.op_type in VIEWS and _alone(value):
        views.append(node)
        value = node.inputs[0]
        assert value is not None
        node = value.producer()
    if node is None or not _alone(value) or len(node.outputs) != 1:
        return None
    operand, made = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    read, out = shape_of(layer.node.inputs[0]), shape_of(layer.node.outputs[0])
    if operand is None or made is None or read is None or out is None:
        return None
    bias = None
    if layer.summed != layer.node.outputs[0].name:
        bias = next(iter(layer.node.outputs[0].uses())).node
        if shape_of(bias.outputs[0]) != out:
            return None
    if node.op_type == "ReduceMean":
        axes = integers_of(input_at(node, 1)) or []
        channels = value is layer.node.inputs[0] and len(operand) - 1 not in {a % len(operand) for a in axes}
        fits = layer.node.op_type == "MatMul" and bool(axes) and channels
    elif layer.node.op_type == "MatMul":
        fits = _whole(node, operand, made) and read == made[:2]
    else:
        fits = _whole(node, operand, made) and read == made and out[2:] == (1, 1) and _is_product(layer)
    return _PooledLayer(layer, node, bias, tuple(views)) if fits else None


def _is_product(layer: LinearLayer) -> bool:
    """Whether a convolution is a product of channels: 1 x 1, one group, nothing around the image."""
    array, pads = array_of(layer.node.inputs[1]), attributes_of(layer.node).get("pads", [0])
    assert array is not None
    assert isinstance(pads, (list, tuple))
    return array.shape[2:] == (1, 1) and layer.groups == 1 and not any(pads)


def _whole(node: ir.Node, operand: tuple[int, ...], made: tuple[int, ...]) -> bool:
    """Whether a pool averages all of an image and nothing beside it."""
    if node.op_type == "GlobalAveragePool":
        return len(operand) == 4
    attributes = attributes_of(node)
    kernel = attributes.get("kernel_shape", [])
    pads = attributes.get("pads", [0])
    assert isinstance(kernel, (list, tuple))
    assert isinstance(pads, (list, tuple))
    same = tuple(kernel) == operand[2:] and made[2:] == (1, 1)
    return node.op_type == "AveragePool" and len(operand) == 4 and same and not any(pads)


def _alone(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _move_layer(graph: ir.Graph, entry: _PooledLayer) -> None:
    """Puts a layer and its bias in front of the average."""
    layer, mean = entry.layer, entry.mean
    source, old = mean.inputs[0], (entry.bias or layer.node).outputs[0]
    assert source is not None
    assert source.shape is not None
    name, shape = old.name or "", shape_of(source) or ()
    weights, bias = array_of(layer.node.inputs[1]), _bias(entry)
    assert weights is not None
    if mean.op_type == "ReduceMean":
        first = _node("MatMul", [source, layer.node.inputs[1]], layer, (*shape[:-1], weights.shape[1]))
        nodes = [first]
        if bias is not None:
            assert entry.bias is not None
            value = _constant(graph, f"{name}/bias", bias)
            nodes.append(ir.Node("", "Add", [first.outputs[0], value], name=entry.bias.name))
            _describe(nodes[-1].outputs[0], f"{name}/of_places", shape_of(first.outputs[0]) or ())
        nodes.append(
            ir.Node(
                "",
                "ReduceMean",
                [nodes[-1].outputs[0], mean.inputs[1]],
                list(mean.attributes.values()),
                name=mean.name,
            )
        )
    else:
        kernel = weights.T[:, :, np.newaxis, np.newaxis] if layer.node.op_type == "MatMul" else weights
        inputs = [source, _constant(graph, f"{name}/kernel", kernel)]
        if bias is not None:
            inputs.append(_constant(graph, f"{name}/bias", bias))
        first = _node("Conv", inputs, layer, (shape[0], len(kernel), *shape[2:]))
        axes = _constant(graph, f"{name}/places", np.array([2, 3], np.int64))
        keeps = ir.AttrInt64("keepdims", int(len(shape_of(old) or ()) == 4))
        nodes = [first, ir.Node("", "ReduceMean", [first.outputs[0], axes], [keeps], name=mean.name)]
    last = nodes[-1].outputs[0]
    last.shape, last.type = old.shape, old.type
    graph.insert_after(entry.bias or layer.node, nodes)
    old.replace_all_uses_with(last, replace_graph_outputs=True)
    _remove(graph, old)
    last.name = name


def _node(
    operator: str, inputs: Sequence[ir.Value | None], layer: LinearLayer, shape: tuple[int, ...]
) -> ir.Node:
    node = ir.Node("", operator, inputs, name=layer.node.name)
    _describe(node.outputs[0], f"{layer.node.outputs[0].name}/of_place", shape)
    return node


def _describe(value: ir.Value, name: str, shape: tuple[int, ...]) -> None:
    value.name, value.shape, value.type = name, ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)


def _bias(entry: _PooledLayer) -> NDArray[np.float32] | None:
    node = entry.bias or entry.layer.node
    if entry.bias is not None:
        found = next(array for value in node.inputs if (array := array_of(value)) is not None)
        rows = entry.layer.weights.shape[1]
        return np.ascontiguousarray(np.broadcast_to(found.ravel(), rows), np.float32)
    return array_of(input_at(node, 2)) if node.op_type == "Conv" else None


def _constant(graph: ir.Graph, name: str, array: NDArray[np.generic]) -> ir.Value:
    tensor = ir.tensor(np.ascontiguousarray(array), name=name)
    value = ir.Value(
        name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype)
    )
    graph.initializers[name] = value
    return value


def _remove(graph: ir.Graph, value: ir.Value) -> None:
    """Takes out what nothing reads any more, from a value backwards."""
    node = value.producer()
    if node is None or any(each.uses() or each.is_graph_output() for each in node.outputs):
        return
    operands = [each for each in node.inputs if each is not None]
    graph.remove(node, safe=True)
    for each in operands:
        if each.is_initializer() and not each.uses() and each.name is not None:
            graph.initializers.pop(each.name, None)
        else:
            _remove(graph, each)
