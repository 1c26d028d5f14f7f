"""Normalisation over axes: all kinds of it written with LayerNormalization and RMSNormalization.

    LayerNormalization(x, ones) * scale + bias      ->  LayerNormalization(x, scale, bias)
    RMSNormalization                                ->  our function of the same name over the last axes, Mul
    InstanceNormalization, GroupNormalization       ->  Reshape, LayerNormalization, Reshape, Mul, Add
    MeanVarianceNormalization over axes without the first  ->  LayerNormalization
    LayerNormalization over several axes            ->  Reshape, LayerNormalization, Reshape
    LpNormalization                                 ->  x / ReduceL1(x) or x / ReduceL2(x)
    exp(x - max(x)) / sum(exp(x - max(x)))          ->  Softmax(x)

Axes that are not the last ones are brought there and back by transposes. RMSNormalization is a function of
our domain, since the opset normalised models are written in does not have it yet.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.inference import DOMAIN
from tpuflow.frontend.values import (
    array_of,
    attributes_of,
    axes_of,
    input_at,
    integers_of,
    maker_of,
    produced_by,
    shape_of,
    sole_user,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["ONE_AXIS", "RULES", "normalized"]


KINDS = {("", "LayerNormalization"), (DOMAIN, "RMSNormalization")}


def normalized(
    x: ir.Value, axes: Sequence[int], epsilon: float, emit: Emitter, *, center: bool = True
) -> ir.Value | None:
    """X divided by its root mean square over `axes`, from which with `center` the mean is taken first."""
    shape = shape_of(x)
    if shape is None or x.dtype is None:
        return None
    rank, axes = len(shape), axes_of(axes, len(shape))
    rest = [axis for axis in range(rank) if axis not in axes]
    perm = [*rest, *axes]
    moved = perm != list(range(rank))
    if moved:
        x = emit("Transpose", x, attributes={"perm": perm}, label="last")
    ones = emit.constant(np.ones([shape[axis] for axis in axes]), "ones", like=x)
    attributes = {"axis": len(rest), "epsilon": epsilon}
    if center:
        y = emit("LayerNormalization", x, ones, attributes=attributes)
    else:
        y = emit("RMSNormalization", x, ones, attributes=attributes, domain=DOMAIN)
    return emit("Transpose", y, attributes={"perm": np.argsort(perm).tolist()}) if moved else y


def softmax(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises e / sum(e) over one axis, for e = exp(x) or e = exp(x - max(x))."""
    exponent, total = produced_by(node.inputs[0], "Exp"), produced_by(node.inputs[1], "ReduceSum")
    axes = None if total is None else integers_of(input_at(total, 1))
    if exponent is None or total is None or axes is None or len(axes) != 1 or axes[0] < 0:
        return None
    if total.inputs[0] is not node.inputs[0] or not total.attributes.get_int("keepdims", 1):
        return None
    x = exponent.inputs[0]
    shifted = produced_by(x, "Sub")
    peak = None if shifted is None else produced_by(shifted.inputs[1], "ReduceMax")
    # Softmax does not change with a shift that is the same all along the axis.
    if (
        shifted is not None
        and peak is not None
        and peak.inputs[0] is shifted.inputs[0]
        and integers_of(input_at(peak, 1)) == axes
        and peak.attributes.get_int("keepdims", 1) != 0
    ):
        x = shifted.inputs[0]
    return emit("Softmax", x, attributes={"axis": axes[0]})


def layer_scale(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Takes a Mul or Add of a constant behind a normalisation into its scale or bias."""
    layer, constant = maker_of(node.inputs[0]), array_of(node.inputs[1])
    if layer is None or (layer.domain, layer.op_type) not in KINDS:
        return None
    if node.op_type == "Add" and layer.op_type == "RMSNormalization":
        return None
    if constant is None or node.inputs[0] is None or not sole_user(node.inputs[0]):
        return None
    scale, bias = array_of(input_at(layer, 1)), array_of(input_at(layer, 2))
    shape = shape_of(layer.inputs[0])
    unused = all(not output.uses() for output in layer.outputs[1:])
    if (
        scale is None
        or shape is None
        or not unused
        or (node.op_type == "Mul" and input_at(layer, 2) is not None)
    ):
        return None
    inner = shape[layer.attributes.get_int("axis", -1) % len(shape) :]
    surplus = constant.ndim - len(inner)
    if surplus > 0:
        if any(d != 1 for d in constant.shape[:surplus]):
            return None
        constant = constant.reshape(constant.shape[surplus:])
    if np.broadcast_shapes(constant.shape, inner) != inner or (
        bias is None and input_at(layer, 2) is not None
    ):
        return None
    attributes = attributes_of(layer)
    wide = np.broadcast_to(constant.astype(np.float64), inner)
    if node.op_type == "Mul":
        factor = emit.constant(wide * np.broadcast_to(scale, inner), "scale", like=layer.inputs[1])
        return emit(layer.op_type, layer.inputs[0], factor, attributes=attributes, domain=layer.domain)
    shift = emit.constant(wide if bias is None else wide + bias, "bias", like=layer.inputs[1])
    return emit("LayerNormalization", layer.inputs[0], layer.inputs[1], shift, attributes=attributes)


def counted_axis(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Counts the axis from the front, and drops a bias of zeros."""
    shape = shape_of(node.inputs[0])
    outputs = [output for output in node.outputs[1:] if output.uses() or output.is_graph_output()]
    if shape is None or outputs or shape_of(node.outputs[0]) is None:
        return None
    axis, bias = node.attributes.get_int("axis", -1), array_of(input_at(node, 2))
    zero = bias is not None and not np.any(bias)
    if axis >= 0 and not zero and len(node.outputs) == 1 and "axis" in node.attributes:
        return None
    attributes = {"axis": axis % len(shape), "epsilon": node.attributes.get_float("epsilon", 1e-5)}
    return emit(node.op_type, *node.inputs[: 2 if zero else 3], attributes=attributes)


def one_axis(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Flattens the axes a normalisation runs over, with its scale and bias."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    axis = node.attributes.get_int("axis", -1)
    if x is None or shape is None or len(node.outputs) > 1 or axis % len(shape) == len(shape) - 1:
        return None
    inner = shape[axis:]
    constants: list[ir.Value] = []
    for value, label in zip(node.inputs[1:], ("scale", "bias"), strict=False):
        array = array_of(value)
        if value is None or array is None or np.broadcast_shapes(array.shape, inner) != inner:
            return None
        constants.append(emit.constant(np.broadcast_to(array, inner).ravel(), label))
    rows = emit.reshape(x, (*shape[:axis], math.prod(inner)), "rows")
    attributes = attributes_of(node) | {"axis": len(shape) - len(inner)}
    normal = emit(node.op_type, rows, *constants, attributes=attributes, domain=node.domain)
    return emit.reshape(normal, shape, "shape")


def grouped_normalization(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes instance and group normalisation as LayerNormalization of one row per group."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    scale, bias = array_of(input_at(node, 1)), array_of(input_at(node, 2))
    if x is None or shape is None or len(shape) < 3 or scale is None or bias is None:
        return None
    if scale.size != shape[1] or bias.size != shape[1]:
        return None
    groups = node.attributes.get_int("num_groups", 1) if node.op_type == "GroupNormalization" else shape[1]
    rows = emit.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups), "rows")
    normal = normalized(rows, [2], node.attributes.get_float("epsilon", 1e-5), emit)
    if normal is None:
        return None
    y = emit.reshape(normal, shape, "channels")
    broadcast = (-1,) + (1,) * (len(shape) - 2)
    scaled = emit("Mul", y, emit.constant(scale.reshape(broadcast), "scale"))
    return emit("Add", scaled, emit.constant(bias.reshape(broadcast), "bias"))


def root_mean_square(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes ONNX's RMSNormalization with our function, its scale a Mul."""
    x, shape, scale = node.inputs[0], shape_of(node.inputs[0]), input_at(node, 1)
    if node.domain == DOMAIN or x is None or shape is None or x.dtype is None:
        return None
    axis, epsilon = node.attributes.get_int("axis", -1), node.attributes.get_float("epsilon", 1e-5)
    normal = normalized(x, range(axis % len(shape), len(shape)), epsilon, emit, center=False)
    return normal if normal is None or scale is None else emit("Mul", normal, scale, label="scaled")


def mean_variance(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes MeanVarianceNormalization as LayerNormalization."""
    x = node.inputs[0]
    return None if x is None else normalized(x, node.attributes.get_ints("axes", [0, 2, 3]), 1e-9, emit)


def unit_length(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes LpNormalization as a division by the norm."""
    shape = shape_of(node.inputs[0])
    if shape is None:
        return None
    axis, order = node.attributes.get_int("axis", -1) % len(shape), node.attributes.get_int("p", 2)
    norm = emit(f"ReduceL{order}", node.inputs[0], emit.integers([axis], "axes"), attributes={"keepdims": 1})
    # What is 0 all along the axis stays 0.
    least = emit.constant(np.finfo(np.float32).tiny, "least", like=norm)
    return emit("Div", node.inputs[0], emit("Clip", norm, least))


RULES: Rules = {
    "Div": [softmax],
    "Mul": [layer_scale],
    "Add": [layer_scale],
    "LayerNormalization": [counted_axis],
    "InstanceNormalization": [grouped_normalization],
    "GroupNormalization": [grouped_normalization],
    "RMSNormalization": [root_mean_square],
    "MeanVarianceNormalization": [mean_variance],
    "LpNormalization": [unit_length],
}

ONE_AXIS: Rules = {"LayerNormalization": [one_axis], "RMSNormalization": [one_axis]}
"""To be applied once scales and shifts behind a normalisation are found, which the reshape would hide."""
