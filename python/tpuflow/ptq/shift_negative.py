"""Small negative parts shifted away: a constant makes a tensor unsigned, its readers' biases take it back.

Smooth functions such as swish fall a little below zero. On a symmetric grid that takes half of all codes for
a small share of the values; with a constant added, the tensor is never negative and spends all codes on what
it holds:

    w f(x) + b   =   w (f(x) + c) + (b - c sum(w)),      c = -min f(x)

Around an image there are zeros, which become `c`, so a convolution's padding is written out. The function and
the constant are one table.

Source: MCT's correction of shifted negatives (H. V. Habi et al., "HPTQ: Hardware-Friendly Post Training
Quantization", 2021).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.calibration import Means, Range
from tpuflow.frontend.values import attributes_of, shape_of, state_shifted
from tpuflow.ptq.layers import LinearLayer, copy_model, linear_layers

if TYPE_CHECKING:
    from tpuflow.calibration import Ranges
    from tpuflow.frontend import FloatModel

__all__ = ["shift_negative"]

FUNCTIONS = frozenset({"Celu", "Elu", "Gelu", "HardSwish", "LeakyRelu", "Mish", "Selu", "Silu"})
"""Functions that fall below zero."""


def shift_negative(model: FloatModel, ranges: Ranges, ratio: float) -> tuple[FloatModel, Ranges, int]:
    """The model with constants added behind functions, its ranges, and how many there are.

    Args:
        model: As it is; it is not changed itself.
        ranges: Of its values.
        ratio: Largest magnitude of a negative part over that of the positive one.
    """
    made = copy_model(model.model)
    hosted = {finding.node for finding in model.findings}
    readers: dict[str, list[LinearLayer]] = {}
    for layer in linear_layers(made.graph):
        if not layer.is_stated and layer.has_bias and layer.name not in hosted:
            readers.setdefault(layer.operand, []).append(layer)
    tensors, means = dict(ranges.tensors), dict(ranges.means)
    count = 0
    for node in list(made.graph):
        value = node.outputs[0]
        name, found = value.name or "", ranges.tensors.get(value.name or "")
        layers = readers.get(name, [])
        if node.op_type not in FUNCTIONS or found is None or value.is_graph_output():
            continue
        ((low, high), *others) = found.pairs
        if others or not 0 < -low <= ratio * high or len(layers) != len(value.uses()):
            continue
        own = _add_constant(made.graph, value, layers, -low)
        tensors |= dict.fromkeys(own, Range(0.0, high - low))
        if name in means:
            moved = Means(means[name].axis, tuple(each - low for each in means[name].values))
            means |= dict.fromkeys(own, moved)
        count += 1
    if not count:
        return model, ranges, 0
    return replace(model, model=made), replace(ranges, tensors=tensors, means=means), count


def _add_constant(graph: ir.Graph, value: ir.Value, layers: list[LinearLayer], constant: float) -> list[str]:
    """Adds a constant to what layers read; the names of the values that hold it."""
    amount = _constant(graph, f"{value.name}/shift", np.array(constant, np.float32))
    add = ir.Node("", "Add", [value, amount], name=f"{value.name}/shifted")
    graph.insert_after(value.producer() or add, add)
    shifted = _describe(add, f"{value.name}/shifted", shape_of(value) or ())
    state_shifted(shifted)
    names = [shifted.name or ""]
    for layer in layers:
        layer.add_to_bias(-constant * layer.weights.sum(axis=2).reshape(-1))
        layer.node.replace_input_with(0, _explicit_padding(graph, shifted, layer.node, amount, names))
    return names


def _explicit_padding(
    graph: ir.Graph, value: ir.Value, node: ir.Node, amount: ir.Value, names: list[str]
) -> ir.Value:
    """The operand of a layer, with the padding of a convolution written out."""
    pads = attributes_of(node).get("pads", [0])
    assert isinstance(pads, list)
    if not any(pads):
        return value
    top, left, bottom, right = (int(size) for size in pads)
    name, shape = f"{node.outputs[0].name}/padded", shape_of(value) or ()
    sizes = _constant(graph, f"{name}/pads", np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))
    pad = ir.Node("", "Pad", [value, sizes, amount], name=name)
    graph.insert_before(node, pad)
    node.attributes["pads"] = ir.AttrInt64s("pads", [0] * 4)
    names.append(name)
    return _describe(pad, name, (*shape[:2], shape[2] + top + bottom, shape[3] + left + right))


def _describe(node: ir.Node, name: str, shape: tuple[int, ...]) -> ir.Value:
    value = node.outputs[0]
    value.name, value.shape, value.type = name, ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)
    return value


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype)
    )
    graph.initializers[name] = value
    return value
