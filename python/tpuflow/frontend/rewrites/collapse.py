"""Linear layers merged with what follows them, where the merged layer takes no more products.

    conv2(conv1(x))           ->  conv(x)        one of the two is of 1 x 1, no function stands between
    (x A + a) B + b           ->  x (A B) + (a B + b)
    conv(x) + x               ->  conv(x), with 1 added at the center of the kernel

Nothing here is applied unless it is asked for: in floats it is the same function, in integers another one,
with one rounding less and weights that reach further.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import (
    array_of,
    attributes_of,
    constant_and_other,
    input_at,
    produced_by,
    shape_of,
    sole_user,
    steps_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["LINEAR", "RESIDUAL"]


def _weights(node: ir.Node) -> NDArray[np.float64] | None:
    """Constant weights of a convolution or product in float64; None where they have stated grids."""
    array = array_of(input_at(node, 1))
    if array is None or steps_of(node.inputs[1]) is not None:
        return None
    return np.asarray(array, np.float64)


def _bias(node: ir.Node, rows: int) -> NDArray[np.float64] | None:
    """The bias of a convolution, zeros without one; None where it is not constant."""
    value = input_at(node, 2)
    if value is None:
        return np.zeros(rows)
    array = array_of(value)
    return None if array is None else np.asarray(array, np.float64)


def _numbers(node: ir.Node, name: str, default: list[int]) -> list[int]:
    return list(node.attributes.get_ints(name, default))


def _pads(node: ir.Node, rank: int) -> list[int] | None:
    if node.attributes.get_string("auto_pad", "NOTSET") not in {"NOTSET", "VALID"}:
        return None
    return _numbers(node, "pads", [0] * (2 * rank))


def _is_product(node: ir.Node, kernel: tuple[int, ...]) -> bool:
    """Whether a convolution is a product of channels at every place: 1 x 1, nothing around the image."""
    pads = _pads(node, len(kernel))
    return math.prod(kernel) == 1 and pads is not None and not any(pads)


def convolutions(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Merges a convolution with the one in front of it."""
    x = node.inputs[0]
    first = produced_by(x, "Conv")
    if first is None or x is None or not sole_user(x):
        return None
    a, b = _weights(first), _weights(node)
    if a is None or b is None or any(each.attributes.get_int("group", 1) != 1 for each in (first, node)):
        return None
    inner, outer = _bias(first, len(a)), _bias(node, len(b))
    between, made = shape_of(x), shape_of(node.outputs[0])
    if inner is None or outer is None or between is None or made is None:
        return None
    rank = a.ndim - 2
    if _is_product(node, b.shape[2:]) and _pads(first, rank) is not None:
        kernel = np.tensordot(b.reshape(b.shape[:2]), a, 1)
        attributes = attributes_of(first)
        ours, theirs = (_numbers(each, "strides", [1] * rank) for each in (first, node))
        attributes["strides"] = [s * t for s, t in zip(ours, theirs, strict=True)]
    elif _is_product(first, a.shape[2:]) and _numbers(first, "strides", [1] * rank) == [1] * rank:
        pads = _pads(node, rank)
        if pads is None or (any(pads) and np.any(inner)):
            return None  # around the image there are zeros, not the first bias
        kernel = np.moveaxis(np.tensordot(b, a.reshape(a.shape[:2]), (1, 0)), -1, 1)
        attributes = attributes_of(node)
    else:
        return None
    attributes.pop("kernel_shape", None)
    places, after = math.prod(between[2:]), math.prod(made[2:])
    if after * kernel.size > places * a.size + after * b.size:
        return None
    bias = outer + b.sum(axis=tuple(range(2, b.ndim))) @ inner
    inputs = [first.inputs[0], emit.constant(kernel, "weight", like=node.inputs[1])]
    if np.any(bias):
        inputs.append(emit.constant(bias, "bias", like=node.inputs[1]))
    return emit("Conv", *inputs, attributes=attributes)


def _shifted_product(value: ir.Value | None) -> tuple[ir.Node, NDArray[np.float64]] | None:
    """A product of constant weights that one node reads, with what is added to it before."""
    bias = np.zeros(1)
    if (add := produced_by(value, "Add")) is not None and (pair := constant_and_other(add)) is not None:
        array = array_of(pair[0])
        if value is None or not sole_user(value) or array is None or array.size != array.shape[-1:][0]:
            return None
        bias, value = np.asarray(array, np.float64).ravel(), pair[1]
    product = produced_by(value, "MatMul")
    return None if product is None or value is None or not sole_user(value) else (product, bias)


def products(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Merges a matrix product with the one in front of it."""
    found, b = _shifted_product(node.inputs[0]), _weights(node)
    a = None if found is None else _weights(found[0])
    if found is None or a is None or b is None or a.ndim != 2 or b.ndim != 2:
        return None
    if a.shape[0] * b.shape[1] > a.size + b.size:
        return None
    product, shift = found
    bias = np.broadcast_to(shift, len(b)) @ b
    merged = emit("MatMul", product.inputs[0], emit.constant(a @ b, "weight", like=node.inputs[1]))
    return emit("Add", merged, emit.constant(bias, "bias", like=merged)) if np.any(bias) else merged


def residual(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Adds what a convolution reads within its kernel."""
    for value, other in (node.inputs, node.inputs[::-1]):
        conv = produced_by(value, "Conv")
        if conv is None or value is None or not sole_user(value) or conv.inputs[0] is not other:
            continue
        weights, same = _weights(conv), shape_of(value) == shape_of(other)
        if (
            weights is None
            or not same
            or shape_of(value) is None
            or not _has_centered_kernel(conv, weights.shape)
        ):
            continue
        rows, inner = weights.shape[:2]
        group = rows // conv.attributes.get_int("group", 1)
        middle = tuple(size // 2 for size in weights.shape[2:])
        kernel = weights.copy()
        for row in range(rows):
            kernel[(row, row % group if inner == group else 0, *middle)] += 1
        inputs = [other, emit.constant(kernel, "weight", like=conv.inputs[1]), *conv.inputs[2:]]
        return emit("Conv", *inputs, attributes=attributes_of(conv))
    return None


def _has_centered_kernel(conv: ir.Node, shape: tuple[int, ...]) -> bool:
    """Whether the middle of a kernel lies on the place it computes, and rows are channels of the operand."""
    rank, kernel = len(shape) - 2, shape[2:]
    dilations, pads = _numbers(conv, "dilations", [1] * rank), _pads(conv, rank)
    reach = [d * (k // 2) for d, k in zip(dilations, kernel, strict=True)]
    odd, steps = all(k % 2 for k in kernel), _numbers(conv, "strides", [1] * rank)
    squared = shape[0] == shape[1] * conv.attributes.get_int("group", 1)
    return squared and odd and pads == reach * 2 and steps == [1] * rank


LINEAR: Rules = {"Conv": [convolutions], "MatMul": [products]}
"""Two layers in a row become one."""

RESIDUAL: Rules = {"Add": [residual]}
"""Additions of what a convolution reads become part of it."""
