"""Recognises activation functions that an exporter has decomposed into elementary operators.

Most of them are products, and exporters place the brackets and the scalars of a product in every possible
way. So a product is first taken apart: `factors` turns a tree of Mul into one scalar and a list of the other
factors, and each function is then a statement about that list:

    Gelu (erf)    0.5    x, 1 + erf(x / sqrt 2)
    Gelu (tanh)   0.5    x, 1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))
    Silu          1      x, sigmoid(x)
    Mish          1      x, tanh(softplus(x))
    HardSwish     1      x, HardSigmoid(x; 1/6, 1/2)      or   1/6   x, Clip(x + 3; 0, 6)
    HardSigmoid   1/h    Clip(x + b; 0, h)

Scalars are compared to within what exporters round away (1e-4, relative).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.inference import DOMAIN
from tpuflow.frontend.rewrites.arithmetic import clip_bounds
from tpuflow.frontend.values import array_of, input_at, produced_by, scalar_of, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

MOST_FACTORS = 6


@dataclass
class Product:
    """A product: one scalar and the other factors, in order of appearance."""

    scalar: float = 1.0
    others: list[ir.Value] = field(default_factory=list)

    def is_close_to(self, scalar: float, count: int) -> bool:
        """Whether the scalar is this one and there are `count` other factors."""
        return _close(self.scalar, scalar) and len(self.others) == count


def factors(value: ir.Value | None, *, outermost: bool = True) -> Product:
    """Takes the product that makes `value` apart; small whole powers count as repeated factors."""
    product = Product()
    if value is None:
        return product
    number = scalar_of(value)
    if number is not None:
        product.scalar = number
        return product
    node = produced_by(value, "Mul", "Pow")
    exponent = None if node is None or node.op_type == "Mul" else scalar_of(node.inputs[1])
    if node is not None and node.op_type == "Pow" and exponent in {2.0, 3.0} and node.inputs[0] is not None:
        product.others = [node.inputs[0]] * int(exponent)
    elif node is not None and node.op_type == "Mul":
        for operand in node.inputs:
            part = factors(operand, outermost=False)
            product.scalar *= part.scalar
            product.others += part.others
    else:
        product.others = [value]
    if len(product.others) > MOST_FACTORS and not outermost:
        return Product(1.0, [value])
    return product


def _close(a: float | None, b: float) -> bool:
    return a is not None and math.isclose(a, b, rel_tol=1e-4)


def _argument(value: ir.Value | None, *operators: str) -> ir.Value | None:
    """X of op(x)."""
    node = produced_by(value, *operators)
    return None if node is None else node.inputs[0]


def _plus(value: ir.Value | None, number: float) -> ir.Value | None:
    """X of x + number."""
    node = produced_by(value, "Add")
    return node.inputs[0] if node is not None and _close(scalar_of(node.inputs[1]), number) else None


def _partner(product: Product) -> tuple[tuple[ir.Value, ir.Value], tuple[ir.Value, ir.Value]]:
    a, b = product.others
    return (a, b), (b, a)


def product_activation(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises the functions that are a product of x and something of x."""
    product = factors(node.outputs[0])
    if len(product.others) != 2:
        return None
    for x, other in _partner(product):
        if shape_of(x) != shape_of(node.outputs[0]):
            continue
        if _close(product.scalar, 0.5):
            tail = _plus(other, 1.0)
            if _is_erf_argument(_argument(tail, "Erf"), x):
                return emit("Gelu", x)
            if _is_tanh_argument(_argument(tail, "Tanh"), x):
                return emit("Gelu", x, attributes={"approximate": "tanh"})
        if _close(product.scalar, 1.0):
            # ONNX's inference knows no function of ours: a shape that is unknown now would stay so.
            if _argument(other, "Sigmoid") is x and shape_of(x) is not None:
                return emit("Silu", x, domain=DOMAIN)
            if _argument(_argument(other, "Tanh"), "Softplus") is x:
                return emit("Mish", x)
            if _is_hard_sigmoid(other, x):
                return emit("HardSwish", x)
        if _close(product.scalar, 1 / 6) and _is_clipped_sum(other, x):
            return emit("HardSwish", x)
    return None


def _is_erf_argument(value: ir.Value | None, x: ir.Value) -> bool:
    product = factors(value)
    return product.is_close_to(math.sqrt(0.5), 1) and product.others[0] is x


def _is_tanh_argument(value: ir.Value | None, x: ir.Value) -> bool:
    product = factors(value)
    if product.is_close_to(math.sqrt(2 / math.pi), 1):
        total = produced_by(product.others[0], "Add")
        if total is None or x not in total.inputs:
            return False
        cube = factors(total.inputs[1] if total.inputs[0] is x else total.inputs[0])
        return cube.is_close_to(0.044715, 3) and all(factor is x for factor in cube.others)
    if product.is_close_to(math.sqrt(2 / math.pi), 2) and x in product.others:
        other = product.others[1] if product.others[0] is x else product.others[0]
        square = factors(_plus(other, 1.0))
        return square.is_close_to(0.044715, 2) and all(factor is x for factor in square.others)
    return False


def _is_hard_sigmoid(value: ir.Value, x: ir.Value) -> bool:
    node = produced_by(value, "HardSigmoid")
    return (
        node is not None
        and node.inputs[0] is x
        and _close(node.attributes.get_float("alpha", 0.2), 1 / 6)
        and _close(node.attributes.get_float("beta", 0.5), 0.5)
    )


def _is_clipped_sum(value: ir.Value, x: ir.Value) -> bool:
    node = produced_by(value, "Clip")
    return node is not None and clip_bounds(node) == (0.0, 6.0) and _plus(node.inputs[0], 3.0) is x


def scaled_clip(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises Clip(x + b; 0, h) / h as HardSigmoid."""
    scale, clip = scalar_of(node.inputs[1]), produced_by(node.inputs[0], "Clip")
    bounds = None if clip is None else clip_bounds(clip)
    if (
        scale is None
        or clip is None
        or bounds is None
        or bounds[0] != 0.0
        or not _close(scale * bounds[1], 1.0)
    ):
        return None
    shifted = produced_by(clip.inputs[0], "Add")
    shift = None if shifted is None else scalar_of(shifted.inputs[1])
    if shifted is None or shift is None:
        return None
    return emit("HardSigmoid", shifted.inputs[0], attributes={"alpha": scale, "beta": shift * scale})


def clipped_line(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises Clip(a x + b; 0, 1) as HardSigmoid."""
    shifted = produced_by(node.inputs[0], "Add")
    scaled = None if shifted is None else produced_by(shifted.inputs[0], "Mul")
    if shifted is None or scaled is None or clip_bounds(node) != (0.0, 1.0):
        return None
    alpha, beta = scalar_of(scaled.inputs[1]), scalar_of(shifted.inputs[1])
    if alpha is None or beta is None or alpha <= 0:
        return None
    return emit("HardSigmoid", scaled.inputs[0], attributes={"alpha": alpha, "beta": beta})


def softplus(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises log(exp(x) + 1)."""
    x = _argument(_plus(node.inputs[0], 1.0), "Exp")
    return None if x is None else emit("Softplus", x)


def sigmoid(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises 1 / (1 + exp(-x))."""
    denominator = node.inputs[0] if node.op_type == "Reciprocal" else node.inputs[1]
    if node.op_type == "Div" and not _close(scalar_of(node.inputs[0]), 1.0):
        return None
    exponent = _argument(_plus(denominator, 1.0), "Exp")
    x = _argument(exponent, "Neg")
    if x is None:
        product = factors(exponent)
        x = product.others[0] if product.is_close_to(-1.0, 1) else None
    return emit("Sigmoid", x) if x is not None and shape_of(x) == shape_of(node.outputs[0]) else None


def leaky_relu(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises max(x, a x) with 0 < a < 1."""
    a, b = node.inputs[0], input_at(node, 1)
    for x, other in ((a, b), (b, a)):
        scaled = produced_by(other, "Mul")
        slope = None if scaled is None or scaled.inputs[0] is not x else scalar_of(scaled.inputs[1])
        if x is not None and slope is not None and 0 < slope < 1 and shape_of(x) == shape_of(node.outputs[0]):
            return emit("LeakyRelu", x, attributes={"alpha": slope})
    return None


def leaky_from_prelu(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """PRelu with one slope for all is LeakyRelu; slopes that are all equal are one slope."""
    slope = input_at(node, 1)
    array = None if slope is None or slope.const_value is None else slope.const_value.numpy()
    if array is None or array.size == 0 or not np.all(array == array.flat[0]):
        return None
    return emit("LeakyRelu", node.inputs[0], attributes={"alpha": float(array.flat[0])})


def decompose_prelu(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes a PRelu whose slopes differ along several axes with products.

    max(x, a x)  where no a is above 1        min(x, a x)  where none is below
    x + (a - 1) min(x, 0)  otherwise
    """
    x, slope = node.inputs[0], array_of(input_at(node, 1))
    if x is None or slope is None or sum(extent > 1 for extent in slope.shape) < 2:
        return None
    if np.all(slope <= 1) or np.all(slope >= 1):
        scaled = emit("Mul", x, node.inputs[1])
        return emit("Max" if np.all(slope <= 1) else "Min", x, scaled)
    negative = emit("Clip", x, None, emit.constant(0.0, "zero", like=x))
    less = emit.constant(slope.astype(np.float64) - 1.0, "slope_less_one", like=x)
    return emit("Add", x, emit("Mul", negative, less))


def swish(node: ir.Node, emit: Emitter) -> ir.Value:
    """Writes x sigmoid(a x) as a product, which is Silu where a is 1."""
    x, alpha = node.inputs[0], node.attributes.get_float("alpha", 1.0)
    scaled = x if alpha == 1.0 else emit("Mul", x, emit.constant(alpha, "alpha", like=x), label="scaled")
    return emit("Mul", x, emit("Sigmoid", scaled))


RULES: Rules = {
    "Swish": [swish],
    "Mul": [product_activation, scaled_clip],
    "Clip": [clipped_line],
    "Log": [softplus],
    "Div": [sigmoid],
    "Reciprocal": [sigmoid],
    "Max": [leaky_relu],
    "PRelu": [leaky_from_prelu, decompose_prelu],
}
