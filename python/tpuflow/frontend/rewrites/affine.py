"""Folds per-channel scales and shifts into the weights and bias of the linear operator next to them.

Batch normalisation is y = s x + t with s = gamma / sqrt(var + eps) and t = beta - s mean. It becomes a Mul
and an Add by per-channel constants; those, like any others, then disappear into a Conv, ConvTranspose or
MatMul whose only user they are. All products are taken in float64 and rounded once. A scale and a shift with
no such operator before them go into the one behind them, if that is their only user:

    Conv(s x; w)       ->  Conv(x; w s)              s along the input channels; zeros of a padding stay zeros
    Conv(x + t; w, b)  ->  Conv(x; w, b + w t)       without padding only: what is padded has no t
    MatMul(s x, w)     ->  MatMul(x, s w)            MatMul(x + t, w)  ->  MatMul(x, w) + t w

What is left then is a depthwise convolution over one pixel: one pass of the pooling unit in place of two of
the elementwise unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpuflow.frontend.values import array_of, attributes_of, input_at, produced_by, shape_of, sole_user

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["FOLDING", "LEFT_OVER", "RULES", "per_channel"]

CONVOLUTIONS = ("Conv", "ConvTranspose")


def batch_normalization(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes batch normalisation with fixed statistics as a Mul and an Add."""
    x = shape_of(node.inputs[0])
    parameters = [array_of(input_at(node, index)) for index in range(1, 5)]
    used = [output for output in node.outputs[1:] if output.uses() or output.is_graph_output()]
    training = node.attributes.get_int("training_mode", 0) or not node.attributes.get_int("spatial", 1)
    if x is None or len(x) < 2 or training or used:
        return None
    gamma, beta, mean, variance = (None if p is None else p.astype(np.float64) for p in parameters)
    if gamma is None or beta is None or mean is None or variance is None:
        return None
    variance = variance + node.attributes.get_float("epsilon", 1e-5)
    if any(p.size != x[1] for p in (gamma, beta, mean, variance)) or variance.min() <= 0:
        return None
    scale = gamma / np.sqrt(variance)
    shift = beta - mean * scale
    broadcast = (-1,) + (1,) * (len(x) - 2)
    scaled = emit(
        "Mul", node.inputs[0], emit.constant(scale.reshape(broadcast), "scale", like=node.inputs[0])
    )
    return emit("Add", scaled, emit.constant(shift.reshape(broadcast), "shift", like=node.inputs[0]))


def per_channel(constant: npt.NDArray[Any], rank: int, axis: int, channels: int) -> np.ndarray | None:
    """The constant as a float64 vector over `channels`, if it varies along that axis only."""
    if constant.ndim > rank or not np.issubdtype(constant.dtype, np.floating):
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(d != 1 for k, d in enumerate(shape) if k != axis) or shape[axis] not in {1, channels}:
        return None
    return np.broadcast_to(constant.astype(np.float64).ravel(), (channels,))


def _scaled_weights(linear: ir.Node, weight: npt.NDArray[Any], scale: np.ndarray) -> np.ndarray:
    """The weights with output channel k multiplied by scale[k]."""
    wide = weight.astype(np.float64)
    if linear.op_type == "Conv":
        wide *= scale.reshape(-1, *(1,) * (wide.ndim - 1))
    elif linear.op_type == "ConvTranspose":  # [in, out / group, kernel...], groups along the first axis
        group = linear.attributes.get_int("group", 1)
        by_group = wide.reshape(group, wide.shape[0] // group, *wide.shape[1:])
        by_group *= scale.reshape(group, 1, wide.shape[1], *(1,) * (wide.ndim - 2))
    else:
        wide *= scale
    return wide.astype(weight.dtype)


def _convolution(node: ir.Node) -> tuple[ir.Node, np.ndarray] | None:
    """The convolution only `node` reads, and the constant of `node` per output channel."""
    linear, constant, y = (
        produced_by(node.inputs[0], *CONVOLUTIONS),
        array_of(node.inputs[1]),
        shape_of(node.inputs[0]),
    )
    if (
        linear is None
        or constant is None
        or y is None
        or node.inputs[0] is None
        or not sole_user(node.inputs[0])
    ):
        return None
    bias = input_at(linear, 2)
    weights, biases = array_of(linear.inputs[1]), array_of(bias)
    if weights is None or (bias is not None and biases is None):
        return None
    group = linear.attributes.get_int("group", 1)
    outputs = weights.shape[0] if linear.op_type == "Conv" else weights.shape[1] * group
    whole = group > 0 and weights.shape[0] % group == 0
    if not whole or outputs != y[1] or (biases is not None and biases.shape != (outputs,)):
        return None  # a mistake in the model, which is told where its nodes are checked
    vector = per_channel(constant, len(y), 1, y[1])
    return None if vector is None else (linear, vector)


def scaled_convolution(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Folds Mul(Conv(x), c) into the weights and bias."""
    found = _convolution(node)
    if found is None:
        return None
    linear, scale = found
    weight, bias = linear.inputs[1], input_at(linear, 2)
    weights, biases = array_of(weight), array_of(bias)
    if weight is None or weights is None:
        return None
    inputs = [linear.inputs[0], emit.folded(weight, _scaled_weights(linear, weights, scale))]
    if bias is not None and biases is not None:
        inputs.append(emit.folded(bias, (biases.astype(np.float64) * scale).astype(biases.dtype)))
    return emit(linear.op_type, *inputs, attributes=attributes_of(linear))


def shifted_convolution(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Folds Add(Conv(x), c) into the bias."""
    found = _convolution(node)
    if found is None:
        return None
    linear, shift = found
    bias = input_at(linear, 2)
    biases = array_of(bias)
    if bias is not None and biases is not None:
        bias = emit.folded(bias, (biases.astype(np.float64) + shift).astype(biases.dtype))
    else:
        bias = emit.constant(shift, "bias", like=linear.inputs[1])
    return emit(linear.op_type, linear.inputs[0], linear.inputs[1], bias, attributes=attributes_of(linear))


def scaled_product(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Folds Mul(MatMul(x, w), c) into w, and Mul(Add(MatMul(x, w), b), c) into w and b."""
    constant, y = array_of(node.inputs[1]), shape_of(node.inputs[0])
    if constant is None or not y or node.inputs[0] is None or not sole_user(node.inputs[0]):
        return None
    add = produced_by(node.inputs[0], "Add")
    bias = None if add is None else input_at(add, 1)
    biases = array_of(bias)
    if add is not None and (biases is None or add.inputs[0] is None or not sole_user(add.inputs[0])):
        return None
    product = produced_by(node.inputs[0] if add is None else add.inputs[0], "MatMul")
    weight = None if product is None else product.inputs[1]
    weights = array_of(weight)
    scale = per_channel(constant, len(y), len(y) - 1, y[-1])
    if product is None or weight is None or weights is None or weights.ndim != 2 or scale is None:
        return None
    scaled = emit("MatMul", product.inputs[0], emit.folded(weight, _scaled_weights(product, weights, scale)))
    if bias is None or biases is None:
        return scaled
    if biases.ndim == 0 or biases.shape[-1] == 1:
        scale = scale if np.ptp(scale) else scale[:1]
    both = (biases.astype(np.float64) * scale).astype(biases.dtype)
    return emit("Add", scaled, emit.folded(bias, both))


def _channel_operand(value: ir.Value | None, operator: str, axis: int) -> tuple[ir.Value, np.ndarray] | None:
    """(x, c) of x * c or x + c by a constant per index of `axis`, which nothing else reads."""
    node, shape = produced_by(value, operator), shape_of(value)
    if node is None or value is None or shape is None or not sole_user(value):
        return None
    x, constant = node.inputs[0], array_of(node.inputs[1])
    if x is None or constant is None or shape_of(x) != shape:
        return None
    vector = per_channel(constant, len(shape), axis % len(shape), shape[axis])
    return None if vector is None else (x, vector)


def _has_padding(node: ir.Node) -> bool:
    automatic = node.attributes.get_string("auto_pad", "NOTSET")
    return automatic not in {"NOTSET", "VALID"} or any(node.attributes.get_ints("pads", []))


def fold_into_convolution(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Folds a Mul or Add in front of a convolution into it."""
    weight, weights, bias = node.inputs[1], array_of(node.inputs[1]), input_at(node, 2)
    biases, group = array_of(bias), node.attributes.get_int("group", 1)
    if weight is None or weights is None or (bias is not None and biases is None):
        return None
    wide = weights.astype(np.float64)
    by_group = wide.reshape(group, wide.shape[0] // group, *wide.shape[1:])
    broadcast = (group, 1, wide.shape[1], *(1,) * (wide.ndim - 2))
    scaled = _channel_operand(node.inputs[0], "Mul", 1)
    if scaled is not None:
        x, scale = scaled
        folded = (by_group * scale.reshape(broadcast)).reshape(wide.shape).astype(weights.dtype)
        rest = [] if bias is None else [bias]
        return emit("Conv", x, emit.folded(weight, folded), *rest, attributes=attributes_of(node))
    shifted = None if _has_padding(node) else _channel_operand(node.inputs[0], "Add", 1)
    if shifted is None:
        return None
    x, shift = shifted
    total = (by_group * shift.reshape(broadcast)).reshape(wide.shape).sum(axis=tuple(range(1, wide.ndim)))
    if bias is not None and biases is not None:
        bias = emit.folded(bias, (biases.astype(np.float64) + total).astype(biases.dtype))
    else:
        bias = emit.constant(total, "bias", like=weight)
    return emit("Conv", x, weight, bias, attributes=attributes_of(node))


def fold_into_product(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Folds a Mul or Add in front of a product with a constant matrix into that."""
    weight, weights = node.inputs[1], array_of(node.inputs[1])
    if weight is None or weights is None or weights.ndim != 2:
        return None
    scaled = _channel_operand(node.inputs[0], "Mul", -1)
    if scaled is not None:
        x, scale = scaled
        folded = (weights.astype(np.float64) * scale[:, None]).astype(weights.dtype)
        return emit("MatMul", x, emit.folded(weight, folded))
    shifted = _channel_operand(node.inputs[0], "Add", -1)
    if shifted is None:
        return None
    x, shift = shifted
    if produced_by(x, "MatMul") is not None:
        return None  # it is the bias of that product already
    product = emit("MatMul", x, weight)
    return emit("Add", product, emit.constant(shift @ weights.astype(np.float64), "bias", like=weight))


def depthwise(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes Add(Mul(x, s), t) by constants per channel of images as a 1x1 depthwise convolution."""
    scaled, shape = node.inputs[0], shape_of(node.inputs[0])
    product = produced_by(scaled, "Mul")
    if product is None or scaled is None or not sole_user(scaled) or shape is None or len(shape) != 4:
        return None
    x, first, second = product.inputs[0], array_of(product.inputs[1]), array_of(node.inputs[1])
    if x is None or shape_of(x) != shape or first is None or second is None or shape[1] < 2:
        return None
    if produced_by(x, *CONVOLUTIONS) is not None and sole_user(x):
        return None  # it will disappear in there
    scale, shift = per_channel(first, 4, 1, shape[1]), per_channel(second, 4, 1, shape[1])
    if scale is None or shift is None or not np.ptp(scale):
        return None
    weight = emit.constant(scale.reshape(-1, 1, 1, 1), "scale", like=product.inputs[1])
    bias = emit.constant(shift, "shift", like=node.inputs[1])
    return emit("Conv", x, weight, bias, attributes={"group": shape[1], "kernel_shape": [1, 1]})


RULES: Rules = {"BatchNormalization": [batch_normalization]}

FOLDING: Rules = {
    "Mul": [scaled_convolution, scaled_product],
    "Add": [shifted_convolution],
    "Conv": [fold_into_convolution],
    "MatMul": [fold_into_product],
}
"""To be applied once decomposed activations are recognised, whose constants this would absorb."""

LEFT_OVER: Rules = {"Add": [depthwise]}
"""To be applied to what folding leaves."""
