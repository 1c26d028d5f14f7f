"""Mixtures of experts as onnxruntime writes them, in the domain `com.microsoft`.

    MoE(x, logits, W1, b1, W2, b2 [, W3, b3])  ->  shares, i = the largest k of softmax(logits)
                                                   h = f(x W1[i]' + b1[i]) [* (x W3[i]' + b3[i])]
                                                   y = sum over k of shares * (h W2[i]' + b2[i])
    QMoE                                       ->  the same of weights in codes

f is Relu, Gelu, Silu or nothing, or SwiGLU of the rows of W1 in pairs or halves:
`min(g, limit) sigmoid(alpha min(g, limit)) (clip(u, limit) + beta)`.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpuflow.frontend.rewrites.choices import largest_elements
from tpuflow.frontend.rewrites.decoders import unpack_bits
from tpuflow.frontend.values import array_of, input_at, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

Array = npt.NDArray[Any]
CONTRIBUTED = "com.microsoft"
FUSED, HALVES = 1, 2
"""Rows of W1 for g and u one by one, and one behind the other."""


class _Layer:
    """One of up to three layers of all experts.

    Attributes:
        weights: `[experts, outputs, inputs]`.
        steps: Of codes, in the same shape; None of numbers.
        bias: `[experts, outputs]`, or None.
    """

    def __init__(self, weights: Array, steps: Array | None, bias: Array | None) -> None:
        self.weights, self.steps, self.bias = weights, steps, bias

    def rows(self, kept: slice) -> _Layer:
        """Some of its outputs."""
        return _Layer(
            self.weights[:, kept],
            None if self.steps is None else self.steps[:, kept],
            None if self.bias is None else self.bias[:, kept],
        )

    def apply(self, x: ir.Value, index: ir.Value, emit: Emitter, label: str) -> ir.Value:
        """`[rows, 1, inputs]` through the experts `index`, `[rows]`: `[rows, 1, outputs]`."""
        turned = np.ascontiguousarray(self.weights.swapaxes(1, 2), np.float32)
        steps = None if self.steps is None else np.ascontiguousarray(self.steps.swapaxes(1, 2))
        table = emit.constant(turned, f"{label}_weights", steps=steps)
        picked = emit("Gather", table, index, attributes={"axis": 0}, label=f"{label}_picked")
        y = emit("MatMul", x, picked, label=f"{label}_product")
        if self.bias is None:
            return y
        biases = emit.constant(self.bias.astype(np.float32), f"{label}_biases")
        added = emit("Gather", biases, index, attributes={"axis": 0}, label=f"{label}_bias")
        rows, _, outputs = shape_of(y) or ()
        return emit(
            "Add", y, emit.reshape(added, (rows, 1, outputs), f"{label}_bias_row"), label=f"{label}_biased"
        )


def _layer(node: ir.Node, places: tuple[int, int], experts: int) -> _Layer | None:
    """A layer in numbers: weights and bias at these inputs."""
    weights, bias = (array_of(input_at(node, place)) for place in places)
    if weights is None or weights.ndim != 3 or len(weights) != experts:
        return None
    known = bias is not None or input_at(node, places[1]) is None
    return _Layer(weights, None, bias) if known and _fits(bias, weights) else None


def _fits(bias: Array | None, weights: Array) -> bool:
    return bias is None or bias.shape == weights.shape[:2]


def _layer_of_codes(
    node: ir.Node, number: int, places: tuple[int, int, int, int], experts: int
) -> _Layer | None:
    """A layer in codes: weights, scales, bias and zero points at these inputs."""
    codes, scales, bias, zeros = (array_of(input_at(node, place)) for place in places)
    bits = node.attributes.get_int("expert_weight_bits", 4)
    bits = node.attributes.get_int(f"fc{number}_expert_weight_bits", bits)
    if codes is None or scales is None or codes.ndim != 3 or len(codes) != experts or bits not in {2, 4, 8}:
        return None
    if any(
        array is None and input_at(node, at) is not None
        for array, at in ((bias, places[2]), (zeros, places[3]))
    ):
        return None
    _, outputs, width = codes.shape
    inputs = width * 8 // bits
    blocks = scales.shape[2] if scales.ndim == 3 else 1
    size = node.attributes.get_int("block_size", 0) or -(-inputs // blocks)
    if scales.shape[:2] != (experts, outputs) or blocks != -(-inputs // size):
        return None
    group = np.arange(inputs) // size
    steps = scales.reshape(experts, outputs, blocks).astype(np.float32)[:, :, group]
    zero: Array = np.full((1, 1, 1), 1 << (bits - 1), np.int32)
    if zeros is not None:
        # By block they are packed along the blocks of a row, else along the rows.
        *outer, packed = scales.shape
        if zeros.size != math.prod(outer) * -(-packed * bits // 8):
            return None
        by_block = unpack_bits(zeros.reshape(*outer, -1), bits, packed)
        zero = by_block.reshape(experts, outputs, blocks)[:, :, group]
    numbers = (unpack_bits(codes, bits, inputs) - zero).astype(np.float32) * steps
    return _Layer(numbers, steps, bias) if _fits(bias, numbers) else None


def _swiglu(node: ir.Node, gate: ir.Value, up: ir.Value, emit: Emitter) -> ir.Value:
    """SwiGLU with its bounds, as far as they are finite."""
    alpha, beta = (
        node.attributes.get_float("activation_alpha", 1.0),
        node.attributes.get_float("activation_beta", 0.0),
    )
    limit = node.attributes.get_float("swiglu_limit", math.inf)
    if math.isfinite(limit):
        low, high = (
            emit.constant(np.float32(bound), label) for bound, label in ((-limit, "low"), (limit, "high"))
        )
        gate = emit("Clip", gate, None, high, label="gate_bounded")
        up = emit("Clip", up, low, high, label="up_bounded")
    scaled = (
        gate
        if alpha == 1
        else emit("Mul", gate, emit.constant(np.float32(alpha), "alpha"), label="gate_scaled")
    )
    gate = emit("Mul", gate, emit("Sigmoid", scaled, label="gate_sigmoid"), label="gate_silu")
    up = up if beta == 0 else emit("Add", up, emit.constant(np.float32(beta), "beta"), label="up_shifted")
    return emit("Mul", gate, up, label="gated")


def _activated(kind: str, x: ir.Value, emit: Emitter) -> ir.Value | None:
    """A function of each number by itself; None of an unknown name."""
    if kind == "silu":
        return emit("Mul", x, emit("Sigmoid", x, label="sigmoid"), label="silu")
    if kind == "gelu":
        return emit("Gelu", x, attributes={"approximate": "none"}, label="gelu")
    return x if kind == "identity" else emit("Relu", x, label="relu") if kind == "relu" else None


def _has_known_options(node: ir.Node) -> bool:
    """Whether shares follow from the logits alone, and codes are integers in plain order."""
    stated = node.attributes
    plain = not stated.get_int("use_sparse_mixer", 0) and stated.get_string("quant_type", "int") == "int"
    further = any(input_at(node, place) is not None for place in range(14, len(node.inputs)))
    return plain and not further and stated.get_int("weights_prepacked", -1) < 1


def mixture(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """MoE and QMoE without a second set of shares, of constant weights."""
    x, logits = node.inputs[0], input_at(node, 1)
    whole, routes = shape_of(x), shape_of(logits)
    if x is None or logits is None or not whole or routes is None or len(routes) != 2:
        return None
    tokens, width = math.prod(whole[:-1]), whole[-1]
    experts, count = routes[1], node.attributes.get_int("k", 1)
    if routes[0] != tokens or not 0 < count <= experts or not _has_known_options(node):
        return None
    if node.op_type == "QMoE":
        found = [
            _layer_of_codes(node, number, places, experts)
            for number, places in enumerate(((2, 3, 4, 11), (5, 6, 7, 12), (8, 9, 10, 13)), start=1)
        ]
        third = 8
    else:
        found = [_layer(node, places, experts) for places in ((2, 3), (4, 5), (6, 7))]
        third = 6
    first, second, other = found
    if first is None or second is None or (other is None and input_at(node, third) is not None):
        return None
    chosen = largest_elements(logits, count, emit)
    if chosen is None or first.weights.shape[2] != width or second.weights.shape[1] != width:
        return None
    shares = _shares(node, logits, chosen, emit)
    index = emit.reshape(chosen[1], (tokens * count,), "experts")
    repeated = emit.reshape(x, (tokens, 1, width), "tokens")
    if count > 1:
        repeated = emit(
            "Expand", repeated, emit.integers([tokens, count, width], "by_expert"), label="repeated"
        )
    rows = emit.reshape(repeated, (tokens * count, 1, width), "rows")
    hidden = _hidden(node, first, other, rows, index, emit)
    inner = shape_of(hidden)
    if hidden is None or inner is None or inner[-1] != second.weights.shape[2]:
        return None
    made = second.apply(hidden, index, emit, "second")
    made = emit.reshape(made, (tokens, count, width), "by_token")
    weighed = emit("Mul", made, emit.reshape(shares, (tokens, count, 1), "weights"), label="weighed")
    summed = emit(
        "ReduceSum", weighed, emit.integers([1], "axes"), attributes={"keepdims": 0}, label="summed"
    )
    return emit.reshape(summed, whole, "mixed")


def _shares(
    node: ir.Node, logits: ir.Value, chosen: tuple[ir.Value, ir.Value, ir.Value], emit: Emitter
) -> ir.Value:
    """The shares of the chosen, `[tokens, k]`: of the softmax over all, or so that they add up to 1."""
    if node.op_type == "QMoE" or node.attributes.get_int("normalize_routing_weights", 0) == 1:
        return emit("Softmax", chosen[0], attributes={"axis": -1}, label="shares")
    tokens, experts = shape_of(logits) or ()
    every = emit("Softmax", logits, attributes={"axis": -1}, label="all_shares")
    row = emit.reshape(every, (tokens, 1, experts), "share_row")
    kept = emit(
        "Where", chosen[2], row, emit.constant(np.zeros((), np.float32), "no_share"), label="share_kept"
    )
    return emit(
        "ReduceSum", kept, emit.integers([2], "share_axis"), attributes={"keepdims": 0}, label="shares"
    )


def _hidden(
    node: ir.Node, first: _Layer, other: _Layer | None, rows: ir.Value, index: ir.Value, emit: Emitter
) -> ir.Value | None:
    """What the second layer reads, `[rows, 1, inner]`."""
    kind, fusion = (
        node.attributes.get_string("activation_type", "relu"),
        node.attributes.get_int("swiglu_fusion", 0),
    )
    if kind == "swiglu" and fusion in {FUSED, HALVES}:
        outputs = first.weights.shape[1]
        if outputs % 2 or other is not None:
            return None
        half = outputs // 2
        parts = (
            (slice(0, None, 2), slice(1, None, 2)) if fusion == FUSED else (slice(0, half), slice(half, None))
        )
        gate, up = (
            first.rows(part).apply(rows, index, emit, name)
            for part, name in zip(parts, ("gate", "up"), strict=True)
        )
        return _swiglu(node, gate, up, emit)
    hidden = first.apply(rows, index, emit, "first")
    if kind == "swiglu":
        return None if other is None else _swiglu(node, hidden, other.apply(rows, index, emit, "third"), emit)
    hidden_or_none = _activated(kind, hidden, emit)
    if hidden_or_none is None or other is None:
        return hidden_or_none
    return emit("Mul", hidden_or_none, other.apply(rows, index, emit, "third"), label="gated")


RULES: Rules = {f"{CONTRIBUTED}.MoE": [mixture], f"{CONTRIBUTED}.QMoE": [mixture]}
