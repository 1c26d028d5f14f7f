"""One form for matrix products: MatMul of operands with at least two axes, the bias a separate Add."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import array_of, input_at, shape_of, steps_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]


def gemm(node: ir.Node, emit: Emitter) -> ir.Value:
    """Writes alpha A' B' + beta C as a MatMul and, where there is a C, an Add."""
    alpha, beta = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    a, b, c = node.inputs[0], node.inputs[1], input_at(node, 2)
    if node.attributes.get_int("transA", 0):
        a = emit("Transpose", a, attributes={"perm": [1, 0]}, label="a")
    weight = array_of(b)
    turned = bool(node.attributes.get_int("transB", 0))
    if b is not None and weight is not None and (turned or alpha != 1.0):
        scaled = weight if alpha == 1.0 else (weight.astype(np.float64) * alpha).astype(weight.dtype)
        steps = steps_of(b) if alpha == 1.0 else None
        b = emit.folded(b, scaled.T if turned else scaled, steps.T if steps is not None and turned else steps)
        alpha = 1.0
    elif turned:
        b = emit("Transpose", b, attributes={"perm": [1, 0]}, label="b")
    product = emit("MatMul", a, b)
    if alpha != 1.0:
        product = emit("Mul", product, emit.constant(alpha, "alpha", like=product), label="scaled")
    bias = array_of(c)
    if c is None or beta == 0.0 or (bias is not None and not np.any(bias)):
        return product
    if beta != 1.0 and bias is not None:
        c = emit.folded(c, (bias.astype(np.float64) * beta).astype(bias.dtype))
    elif beta != 1.0:
        c = emit("Mul", c, emit.constant(beta, "beta", like=c), label="bias")
    return emit("Add", product, c)


def two_axes(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Gives a one-dimensional operand of MatMul its second axis."""
    a, b, y = node.inputs[0], node.inputs[1], shape_of(node.outputs[0])
    left, right = shape_of(a), shape_of(b)
    if a is None or b is None or left is None or right is None or y is None:
        return None
    if len(left) > 1 and len(right) > 1:
        return None
    if len(left) == 1:
        a = emit.reshape(a, (1, *left), "row")
    if len(right) == 1:
        b = emit.reshape(b, (*right, 1), "column")
    return emit.reshape(emit("MatMul", a, b), y)


RULES: Rules = {"Gemm": [gemm], "MatMul": [two_axes]}
