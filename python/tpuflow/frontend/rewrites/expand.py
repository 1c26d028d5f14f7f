"""Operators written as simpler ones, where this is asked for.

    a slice of the columns of x W + b          ->  x W' + b', the columns' own layer
    x ^ n, n whole                             ->  products, by repeated squaring
    bilinear resizing by a whole factor        ->  borders repeated once, a transposed convolution per channel

Each is the same function in floats. In integers the first gives every part a scale of its own, the second
needs no table, the third runs on the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import (
    array_of,
    constant_and_other,
    input_at,
    integers_of,
    produced_by,
    scalar_of,
    shape_of,
    sliced,
    sole_user,
    steps_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["POWERS", "PROJECTIONS", "RESIZING"]

HIGHEST = 16
"""Exponents up to which powers become products."""


def _columns(node: ir.Node) -> slice | None:
    """The columns a Slice keeps of the last axis alone, one by one."""
    found = sliced(node)
    if found is None or not found[2] or found[2].step != 1:
        return None
    x, axis, kept = found
    return slice(kept.start, kept.stop) if axis == len(shape_of(x) or ()) - 1 else None


def projection(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Gives a slice of a product's columns a product of its own, where all that reads it are such slices."""
    value, kept = node.inputs[0], _columns(node)
    if value is None or kept is None or value.is_graph_output():
        return None
    if any(use.node.op_type != "Slice" or _columns(use.node) is None for use in value.uses()):
        return None
    bias = None
    if (add := produced_by(value, "Add")) is not None and (pair := constant_and_other(add)) is not None:
        bias, value = array_of(pair[0]), pair[1]
        if bias is None or not sole_user(value) or bias.shape[-1:] != (shape_of(value) or (0,))[-1:]:
            return None
    product = produced_by(value, "MatMul")
    weights = None if product is None else array_of(product.inputs[1])
    if product is None or weights is None or weights.ndim != 2:
        return None
    steps = steps_of(product.inputs[1])
    own = emit.constant(weights[:, kept], "weight", steps=None if steps is None else steps[:, kept])
    part = emit("MatMul", product.inputs[0], own)
    return part if bias is None else emit("Add", part, emit.constant(bias[..., kept], "bias", like=part))


def power(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes a whole power as products."""
    x, exponent = node.inputs[0], scalar_of(node.inputs[1])
    if x is None or exponent is None or exponent != int(exponent) or not 2 <= exponent <= HIGHEST:
        return None
    result, square, left = None, x, int(exponent)
    while left:
        if left % 2:
            result = square if result is None else emit("Mul", result, square)
        left //= 2
        square = emit("Mul", square, square, label="square") if left else square
    return result


def resizing(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes bilinear resizing by whole factors as a transposed convolution of every channel."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if x is None or shape is None or y is None or len(shape) != 4 or shape[:2] != y[:2]:
        return None
    if node.attributes.get_string("mode", "nearest") != "linear" or integers_of(input_at(node, 3)) is None:
        return None
    if node.attributes.get_string("coordinate_transformation_mode", "half_pixel") != "half_pixel":
        return None
    factors = [new // old for new, old in zip(y[2:], shape[2:], strict=True)]
    if any(new != old * f for new, old, f in zip(y[2:], shape[2:], factors, strict=True)):
        return None
    for axis in (2, 3):  # around the image its border goes on, which a transposed convolution does not know
        size = shape[axis]
        first = emit.slice(x, axis, range(1), f"before{axis}")
        last = emit.slice(x, axis, range(size - 1, size), f"behind{axis}")
        x = emit("Concat", first, x, last, attributes={"axis": axis}, label=f"border{axis}")
    tents = [_tent(factor) for factor in factors]
    kernel = np.broadcast_to(np.multiply.outer(*tents), (shape[1], 1, len(tents[0]), len(tents[1])))
    pads = [(len(tent) + factor) // 2 for tent, factor in zip(tents, factors, strict=True)]
    return emit(
        "ConvTranspose",
        x,
        emit.constant(kernel, "kernel", like=x),
        attributes={"group": shape[1], "strides": factors, "pads": pads * 2},
    )


def _tent(factor: int) -> np.ndarray:
    """How much of an element its neighbours at so many times the resolution hold."""
    size = 2 * factor - factor % 2
    return np.asarray(1 - np.abs(np.arange(size) - (size - 1) / 2) / factor)


PROJECTIONS: Rules = {"Slice": [projection]}
"""Parts of one product become products."""

POWERS: Rules = {"Pow": [power]}
"""Whole powers become products."""

RESIZING: Rules = {"Resize": [resizing]}
"""Bilinear resizing becomes a transposed convolution."""
