"""Operators on codes with scales: written on the numbers they stand for.

    QLinearConv, QLinearMatMul    ->  DequantizeLinear, Conv or MatMul, QuantizeLinear
    ConvInteger, MatMulInteger    ->  DequantizeLinear with scale 1, Conv or MatMul, Cast
    QuantizeLinear, DequantizeLinear with a scale known only at run time  ->  Div, Round, Add, Clip; Sub, Mul

Source: https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import array_of, attributes_of, input_at, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuflow.frontend.rewrite import Emitter, Rules
    from tpuflow.frontend.values import Attribute

__all__ = ["LATE", "RULES"]

FLOAT = int(ir.DataType.FLOAT)
BOUNDS = {
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-32768, 32767),
    ir.DataType.UINT16: (0, 65535),
}


def _single(value: ir.Value | None) -> bool:
    shape = shape_of(value)
    return shape is not None and all(extent == 1 for extent in shape)


def _dequantize(
    codes: ir.Value | None,
    scale: ir.Value | None,
    zero: ir.Value | None,
    axis: int,
    emit: Emitter,
    label: str,
) -> ir.Value | None:
    """The numbers of codes; scale and zero point are single, or one per index of `axis`."""
    shape = shape_of(codes)
    if codes is None or shape is None or (zero is not None and shape_of(zero) is None):
        return None
    attributes: Mapping[str, Attribute] = {"axis": axis % max(len(shape), 1)}
    if scale is None:
        ones = () if zero is None or _single(zero) else shape_of(zero) or ()
        scale = emit.constant(np.ones(ones, np.float32), f"{label}_one")
    if zero is not None and _single(zero):
        zero = emit.reshape(zero, (), f"{label}_zero")
    if _single(scale):
        scale = emit.reshape(scale, (), f"{label}_scale")
    if (zero is not None and len(shape_of(zero) or ()) > 1) or len(shape_of(scale) or ()) > 1:
        return None
    if zero is not None and len(shape_of(zero) or ()) != len(shape_of(scale) or ()):
        return None
    inputs = [codes, scale] if zero is None else [codes, scale, zero]
    return emit("DequantizeLinear", *inputs, attributes=attributes, label=label)


def quantized_convolution(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """QLinearConv."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    bias = input_at(node, 8)
    left, right = _dequantize(x, x_scale, x_zero, 1, emit, "x"), _dequantize(w, w_scale, w_zero, 0, emit, "w")
    if left is None or right is None:
        return None
    inputs = [left, right]
    if bias is not None:
        step = emit("Mul", x_scale, w_scale, label="step")
        numbers = emit("Cast", bias, attributes={"to": FLOAT}, label="bias_codes")
        inputs.append(emit("Mul", numbers, step, label="bias"))
    product = emit("Conv", *inputs, attributes=attributes_of(node))
    return emit("QuantizeLinear", product, y_scale, y_zero, attributes={"axis": 1})


def quantized_product(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """QLinearMatMul."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs[:8]
    left, right = (
        _dequantize(a, a_scale, a_zero, -2, emit, "a"),
        _dequantize(b, b_scale, b_zero, -1, emit, "b"),
    )
    if left is None or right is None:
        return None
    return emit("QuantizeLinear", emit("MatMul", left, right), y_scale, y_zero)


def integer_product(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """MatMulInteger and ConvInteger."""
    convolution = node.op_type == "ConvInteger"
    axes = (1, 0) if convolution else (-2, -1)
    operands = [
        _dequantize(node.inputs[k], None, input_at(node, 2 + k), axes[k], emit, f"operand{k}") for k in (0, 1)
    ]
    if operands[0] is None or operands[1] is None:
        return None
    attributes = attributes_of(node) if convolution else {}
    product = emit("Conv" if convolution else "MatMul", *operands, attributes=attributes)
    return emit("Cast", product, attributes={"to": int(ir.DataType.INT32)})


def _broadcast_parameter(
    value: ir.Value, node: ir.Node, rank: int, emit: Emitter, label: str
) -> ir.Value | None:
    """A scale or zero point of a node as float32 that broadcasts."""
    shape = shape_of(value)
    if shape is None or node.attributes.get_int("block_size", 0) != 0:
        return None
    if value.dtype != ir.DataType.FLOAT:
        value = emit("Cast", value, attributes={"to": FLOAT}, label=label)
    if len(shape) != 1 or rank == 0:
        return value
    axis = node.attributes.get_int("axis", 1) % rank if shape[0] != 1 else 0
    return emit.reshape(value, (*shape, *(1,) * (rank - 1 - axis)), f"{label}_shape")


def quantized_at_run_time(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """QuantizeLinear with a scale or zero point known only at run time."""
    x, scale, zero, kind = node.inputs[0], node.inputs[1], input_at(node, 2), node.outputs[0].dtype
    shape = shape_of(x)
    if scale is None or shape is None or kind is None or kind not in BOUNDS:
        return None
    if array_of(scale) is not None and (zero is None or array_of(zero) is not None):
        return None
    divisor = _broadcast_parameter(scale, node, len(shape), emit, "scale")
    shift = None if zero is None else _broadcast_parameter(zero, node, len(shape), emit, "zero")
    if divisor is None or (zero is not None and shift is None):
        return None
    codes = emit("Round", emit("Div", x, divisor))
    if shift is not None:
        codes = emit("Add", codes, shift)
    limits = [emit.constant(np.float32(limit), "limit") for limit in BOUNDS[kind]]
    return emit("Cast", emit("Clip", codes, *limits), attributes={"to": int(kind)})


def dequantized_at_run_time(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """DequantizeLinear with a scale or zero point known only at run time."""
    x, scale, zero = node.inputs[0], node.inputs[1], input_at(node, 2)
    shape = shape_of(x)
    if x is None or scale is None or shape is None or x.dtype not in {*BOUNDS, ir.DataType.INT32}:
        return None
    if array_of(scale) is not None and (zero is None or array_of(zero) is not None):
        return None
    factor = _broadcast_parameter(scale, node, len(shape), emit, "scale")
    shift = None if zero is None else _broadcast_parameter(zero, node, len(shape), emit, "zero")
    if factor is None or (zero is not None and shift is None):
        return None
    numbers = emit("Cast", x, attributes={"to": FLOAT}, label="codes")
    if shift is not None:
        numbers = emit("Sub", numbers, shift)
    return emit("Mul", numbers, factor)


RULES: Rules = {
    "QLinearConv": [quantized_convolution],
    "QLinearMatMul": [quantized_product],
    "ConvInteger": [integer_product],
    "MatMulInteger": [integer_product],
}

LATE: Rules = {
    "QuantizeLinear": [quantized_at_run_time],
    "DequantizeLinear": [dequantized_at_run_time],
}
"""To be applied once no scale can become constant any more."""
