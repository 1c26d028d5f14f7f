"""Running sums and products, norms of windows and over channels, transforms that are a fixed matrix.

    CumSum              ->  MatMul by a triangle of ones
    CumProd             ->  log2(n) products with itself, shifted by 1, 2, 4, ...
    LpPool              ->  |x|^p, a convolution by ones per channel, the root
    GlobalLpPool        ->  ReduceL1, ReduceL2, or the same with powers
    LRN                 ->  x (bias + alpha mean of x^2 over neighbouring channels)^-beta
    DFT                 ->  MatMul by cosines and sines

Source: https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import array_of, attributes_of, input_at, scalar_of, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules
    from tpuflow.frontend.values import Attribute

__all__ = ["RULES", "along"]

LONGEST = 1 << 13
"""Elements of an axis a fixed matrix may work on."""


def along(x: ir.Value, axis: int, matrix: np.ndarray, emit: Emitter, label: str = "matrix") -> ir.Value:
    """`matrix` [in, out] applied along one axis of `x`."""
    shape = shape_of(x) or ()
    rank = len(shape)
    order = [*(k for k in range(rank) if k != axis), axis]
    turned = order != sorted(order)
    last = emit("Transpose", x, attributes={"perm": order}, label=f"{label}_last") if turned else x
    weights = emit.constant(matrix, label, like=x)
    if rank == 1:
        product = emit("MatMul", emit.reshape(last, (1, *shape), "row"), weights)
        return emit.reshape(product, (matrix.shape[1],), "line")
    product = emit("MatMul", last, weights, label=f"{label}_product")
    back = np.argsort(order).tolist()
    return emit("Transpose", product, attributes={"perm": back}, label=f"{label}_back") if turned else product


def running_sum(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes CumSum along a constant axis as a matrix product."""
    x, shape, axis = node.inputs[0], shape_of(node.inputs[0]), scalar_of(node.inputs[1])
    if x is None or not shape or axis is None or x.dtype is None or not x.dtype.is_floating_point():
        return None
    if not -len(shape) <= axis < len(shape):
        return None
    size = shape[int(axis)]
    if size > LONGEST:
        return None
    exclusive = node.attributes.get_int("exclusive", 0)
    matrix = np.triu(np.ones((size, size)), 1 if exclusive else 0)
    if node.attributes.get_int("reverse", 0):
        matrix = matrix.T
    return along(x, int(axis) % len(shape), matrix, emit, "triangle")


def running_product(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes CumProd as products of shifted copies."""
    x, shape, axis = node.inputs[0], shape_of(node.inputs[0]), scalar_of(node.inputs[1])
    if x is None or not shape or axis is None or x.dtype is None or not x.dtype.is_floating_point():
        return None
    if not -len(shape) <= axis < len(shape):
        return None
    place, size = int(axis) % len(shape), shape[int(axis)]
    backwards = bool(node.attributes.get_int("reverse", 0))
    if node.attributes.get_int("exclusive", 0):
        x = _shift(x, place, size, 1, backwards=backwards, emit=emit)
    step = 1
    while step < size:
        x = emit("Mul", x, _shift(x, place, size, step, backwards=backwards, emit=emit))
        step *= 2
    return x


def _shift(x: ir.Value, axis: int, size: int, step: int, *, backwards: bool, emit: Emitter) -> ir.Value:
    """`x` moved by `step` along an axis, ones moving in."""
    kept = emit.slice(x, axis, range(step, size) if backwards else range(size - step))
    shape = list(shape_of(x) or ())
    shape[axis] = step
    ones = emit.constant(np.ones(shape), "ones", like=x)
    return emit("Concat", *((kept, ones) if backwards else (ones, kept)), attributes={"axis": axis})


def _power(x: ir.Value | None, exponent: float, emit: Emitter, label: str) -> ir.Value:
    return emit("Pow", x, emit.constant(np.array(exponent), f"{label}_exponent", like=x), label=label)


def norm_pool(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes LpPool as a convolution by ones between powers."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if x is None or shape is None or y is None:
        return None
    p, rank = node.attributes.get_int("p", 2), len(shape) - 2
    kernel = list(node.attributes.get_ints("kernel_shape", []))
    strides = list(node.attributes.get_ints("strides", []) or [1] * rank)
    dilations = list(node.attributes.get_ints("dilations", []) or [1] * rank)
    attributes = {
        name: value
        for name, value in attributes_of(node).items()
        if name in {"kernel_shape", "strides", "dilations", "pads", "auto_pad"}
    }
    if node.attributes.get_int("ceil_mode", 0):
        pads = list(node.attributes.get_ints("pads", []) or [0] * (2 * rank))
        for k in range(rank):
            extent = (kernel[k] - 1) * dilations[k] + 1
            reach = (y[2 + k] - 1) * strides[k] + extent
            pads[rank + k] += max(0, reach - shape[2 + k] - pads[k] - pads[rank + k])
        attributes["pads"] = pads
    powers = (
        emit("Abs", x)
        if p == 1
        else emit("Mul", x, x)
        if p == 2
        else _power(emit("Abs", x), p, emit, "power")
    )
    ones = emit.constant(np.ones((shape[1], 1, *kernel)), "ones", like=x)
    total = emit("Conv", powers, ones, attributes=attributes | {"group": shape[1]})
    if p == 1:
        return total
    return emit("Sqrt", total) if p == 2 else _power(total, 1.0 / p, emit, "root")


def global_norm(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes GlobalLpPool as a reduction over the spatial axes."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    if x is None or shape is None:
        return None
    p, axes = node.attributes.get_int("p", 2), list(range(2, len(shape)))
    if p in {1, 2}:
        return emit(f"ReduceL{p}", x, emit.integers(axes, "axes"), attributes={"keepdims": 1})
    powers = _power(emit("Abs", x), p, emit, "power")
    total = emit("ReduceSum", powers, emit.integers(axes, "axes"), attributes={"keepdims": 1})
    return _power(total, 1.0 / p, emit, "root")


def local_response(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes LRN with an average pool along the channels."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    if x is None or shape is None or len(shape) < 2:
        return None
    size = node.attributes.get_int("size", 1)
    alpha, beta = node.attributes.get_float("alpha", 1e-4), node.attributes.get_float("beta", 0.75)
    bias = node.attributes.get_float("bias", 1.0)
    squares = emit.reshape(emit("Mul", x, x), (shape[0], 1, shape[1], math.prod(shape[2:])), "squares")
    below = (size - 1) // 2
    window: dict[str, Attribute] = {
        "kernel_shape": [size, 1],
        "pads": [below, 0, size - 1 - below, 0],
        "count_include_pad": 1,
    }
    means = emit.reshape(emit("AveragePool", squares, attributes=window), shape, "means")
    scaled = emit("Mul", means, emit.constant(np.array(alpha), "alpha", like=x), label="scaled")
    shifted = emit("Add", scaled, emit.constant(np.array(bias), "bias", like=x))
    return emit("Mul", x, _power(shifted, -beta, emit, "damping"))


def fourier(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes DFT of a constant length as matrix products; the last axis holds real and imaginary parts."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    axis_input = input_at(node, 2)
    given = node.attributes.get_int("axis", 1 if "axis" in node.attributes or axis_input is None else -2)
    if axis_input is not None:
        found = scalar_of(axis_input)
        if found is None:
            return None
        given = int(found)
    elif "axis" not in node.attributes and (node.version is None or node.version >= 20):
        given = -2
    if x is None or shape is None or y is None or array_of(x) is not None:
        return None
    axis, inverse = given % len(shape), node.attributes.get_int("inverse", 0)
    onesided = node.attributes.get_int("onesided", 0)
    stated = input_at(node, 1)
    length = float(shape[axis]) if stated is None else scalar_of(stated)
    if length is None or length > LONGEST or (inverse and onesided):
        return None
    count = int(length)
    bins = y[axis]
    turns = np.outer(np.arange(shape[axis])[:count], np.arange(bins)) % count
    angle = 2 * math.pi * turns / count * (1 if inverse else -1)
    rows = np.zeros((shape[axis], bins, 2))
    factor = 1.0 / count if inverse else 1.0
    rows[:count, :, 0], rows[:count, :, 1] = np.cos(angle) * factor, np.sin(angle) * factor
    if shape[-1] == 1:
        matrix = rows[:, np.newaxis]
    else:  # (a + ib)(c + is) = (ac - bs) + i(as + bc)
        matrix = np.stack([rows, np.stack([-rows[..., 1], rows[..., 0]], -1)], 1)
    # [.., n, rest, parts] -> [.., rest, n parts] @ [n parts, bins 2]
    rank = len(shape)
    rest = [k for k in range(rank - 1) if k != axis]
    last = emit("Transpose", x, attributes={"perm": [*rest, axis, rank - 1]}, label="last")
    lines = emit.reshape(last, (math.prod(shape[k] for k in rest), shape[axis] * shape[-1]), "lines")
    weights = emit.constant(matrix.reshape(shape[axis] * shape[-1], bins * 2), "rotations", like=x)
    product = emit("MatMul", lines, weights)
    placed = emit.reshape(product, (*(shape[k] for k in rest), bins, 2), "bins")
    back = np.argsort([*rest, axis]).tolist()
    return emit("Transpose", placed, attributes={"perm": [*back, rank - 1]})


RULES: Rules = {
    "CumSum": [running_sum],
    "CumProd": [running_product],
    "LpPool": [norm_pool],
    "GlobalLpPool": [global_norm],
    "LRN": [local_response],
    "DFT": [fourier],
}
