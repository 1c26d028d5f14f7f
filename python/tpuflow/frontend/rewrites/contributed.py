"""Operators on codes that onnxruntime writes beside ONNX's own, in the domain `com.microsoft`.

Each becomes the operator on numbers between a dequantisation and a quantisation, which is its definition:

    QLinearAdd(a, sa, za, b, sb, zb, sy, zy)
        ->  QuantizeLinear(Add(DequantizeLinear(a), DequantizeLinear(b)))

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import array_of, attributes_of, input_at, produced_by, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rewrite, Rules

__all__ = ["RULES"]

CONTRIBUTED = "com.microsoft"
MOVING = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice")


def _numbers(
    node: ir.Node, emit: Emitter, places: tuple[int, int, int], label: str, axis: int | None = None
) -> ir.Value:
    """The numbers codes stand for: codes, scale and zero point at these inputs; by `axis` if they differ."""
    operands = [input_at(node, place) for place in places]
    size = 1 if operands[1] is None else int(np.prod(shape_of(operands[1]) or (1,)))
    attributes = {"axis": axis} if axis is not None and size > 1 else {}
    return emit("DequantizeLinear", *operands, attributes=attributes, label=label)


def _quantize_result(node: ir.Node, emit: Emitter, y: ir.Value, scale: int, zero: int) -> ir.Value:
    """The codes of a result, with the scale and zero point at these inputs."""
    return emit("QuantizeLinear", y, input_at(node, scale), input_at(node, zero), label="codes")


def _bias(
    node: ir.Node, emit: Emitter, place: int, scales: tuple[int, int], factor: float = 1.0
) -> ir.Value | None:
    """A bias of 32 bits, whose scale is that of the products it is added to."""
    codes = input_at(node, place)
    x, w = (array_of(input_at(node, each)) for each in scales)
    if codes is None or x is None or w is None:
        return None
    scale = emit.constant((x.reshape(()) * w * np.float32(factor)).astype(np.float32), "bias_scale")
    attributes = {"axis": 0} if w.size > 1 else {}
    return emit("DequantizeLinear", codes, scale, attributes=attributes, label="bias")


def general_product(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """QGemm: `alpha A B + C`; without a scale of the result this is numbers."""
    alpha = node.attributes.get_float("alpha", 1.0)
    bias = _bias(node, emit, 6, (1, 4), alpha)
    if bias is None and input_at(node, 6) is not None:
        return None
    columns = 0 if node.attributes.get_int("transB", 0) else 1
    operands = [_numbers(node, emit, (0, 1, 2), "a"), _numbers(node, emit, (3, 4, 5), "b", columns)]
    operands += [] if bias is None else [bias]
    y = emit("Gemm", *operands, attributes=attributes_of(node), label="numbers")
    return y if input_at(node, 7) is None else _quantize_result(node, emit, y, 7, 8)


def two_operands(operator: str) -> Rewrite:
    """QLinearAdd, QLinearMul."""

    def rewrite(node: ir.Node, emit: Emitter) -> ir.Value | None:
        a, b = _numbers(node, emit, (0, 1, 2), "a"), _numbers(node, emit, (3, 4, 5), "b")
        return _quantize_result(node, emit, emit(operator, a, b, label="numbers"), 6, 7)

    return rewrite


def one_operand(operator: str, *dropped: str) -> Rewrite:
    """Operators of one operand, with the same attributes but those `dropped`."""

    def rewrite(node: ir.Node, emit: Emitter) -> ir.Value | None:
        attributes = attributes_of(node)
        if attributes.pop("channels_last", 0):
            return None
        for name in dropped:
            attributes.pop(name, None)
        x = _numbers(node, emit, (0, 1, 2), "x")
        return _quantize_result(node, emit, emit(operator, x, attributes=attributes, label="numbers"), 3, 4)

    return rewrite


def concatenation(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """QLinearConcat: scale and zero point of the result come first."""
    operands = [
        _numbers(node, emit, (place, place + 1, place + 2), f"x{place // 3}")
        for place in range(2, len(node.inputs), 3)
    ]
    return _quantize_result(
        node, emit, emit("Concat", *operands, attributes=attributes_of(node), label="numbers"), 0, 1
    )


def largest_codes(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """MaxPool of the codes of numbers: those of the largest numbers, since codes are in the same order."""
    value = node.inputs[0]
    while (before := produced_by(value, *MOVING)) is not None:
        value = before.inputs[0]
    source = produced_by(value, "QuantizeLinear")
    if source is None or len(node.outputs) > 1 or node.inputs[0] is None:
        return None
    scale, zero = input_at(source, 1), input_at(source, 2)
    x = emit("DequantizeLinear", node.inputs[0], scale, zero, label="x")
    y = emit("MaxPool", x, attributes=attributes_of(node), label="numbers")
    return emit("QuantizeLinear", y, scale, zero, label="codes")


def _in_domain(rewrites: Mapping[str, Rewrite]) -> Rules:
    return {f"{CONTRIBUTED}.{name}": [rewrite] for name, rewrite in rewrites.items()}


RULES: Rules = {
    "MaxPool": [largest_codes],
    **_in_domain(
        {
            "QGemm": general_product,
            "QLinearAdd": two_operands("Add"),
            "QLinearMul": two_operands("Mul"),
            "QLinearAveragePool": one_operand("AveragePool"),
            "QLinearGlobalAveragePool": one_operand("GlobalAveragePool"),
            "QLinearConcat": concatenation,
            "QLinearLeakyRelu": one_operand("LeakyRelu"),
            "QLinearSigmoid": one_operand("Sigmoid"),
            "QLinearSoftmax": one_operand("Softmax", "opset"),
        }
    ),
}
