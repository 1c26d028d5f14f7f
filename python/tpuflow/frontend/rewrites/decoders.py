"""Operators of decoders that onnxruntime writes beside ONNX's own, in the domain `com.microsoft`.

    MatMulNBits(x, codes, scales, zeros)          ->  x @ (s (q - z))'
    GatherBlockQuantized(codes, i, scales, zeros) ->  Gather(s (q - z), i)
    SimplifiedLayerNormalization                  ->  RMSNormalization
    Skip(Simplified)LayerNormalization(x, skip)   ->  normalisation of x + skip [+ bias]
    RotaryEmbedding                               ->  x cos + (x turned by a quarter) sin
    GroupQueryAttention                           ->  [norms, rotary,] Concat, MatMul, [Add,] Softmax, MatMul

Numbers that stand for codes remember their steps, so that whoever quantises them finds the codes again.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.frontend.inference import DOMAIN
from tpuflow.frontend.values import array_of, input_at, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES", "group_query_attention", "rotate", "unpack_bits"]

Array = npt.NDArray[Any]
CONTRIBUTED = "com.microsoft"
LOWEST = -1e9
"""Addend of the scores of keys that a query must not see."""


def unpack_bits(data: Array, bits: int, count: int) -> Array:
    """Codes of a width that divides 8, the first in the low bits, `count` along the last axis."""
    bytes_ = data.view(np.uint8) if data.dtype in (np.uint8, np.int8) else data.astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (bytes_[..., np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)[..., :count].astype(np.int32)


def _zero_points(zeros: Array | None, bits: int, rows: int, blocks: int) -> Array | None:
    """Zero points `[rows, blocks]`: packed as codes are, or numbers as scales are; None if malformed."""
    if zeros is None:
        return np.full((rows, blocks), 1 << (bits - 1))
    if zeros.dtype != np.uint8:
        return zeros.reshape(rows, blocks) if zeros.size == rows * blocks else None
    width = math.ceil(blocks * bits / 8)
    return unpack_bits(zeros.reshape(rows, width), bits, blocks) if zeros.size == rows * width else None


def product_of_codes(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """MatMulNBits: a product with weights in codes, with scales by block along the sum."""
    k, n = node.attributes.get_int("K", 0), node.attributes.get_int("N", 0)
    bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 0)
    x, data, scales = node.inputs[0], array_of(node.inputs[1]), array_of(node.inputs[2])
    stated = [array_of(input_at(node, place)) for place in (3, 4)]
    constant = all(array is not None or input_at(node, 3 + at) is None for at, array in enumerate(stated))
    if x is None or data is None or scales is None or not constant or bits not in {2, 4, 8} or block < 1:
        return None
    if node.attributes.get_int("weight_prepacked", 0) != 0:
        return None  # codes in the order of some device
    blocks = math.ceil(k / block)
    codes = unpack_bits(data.reshape(n, -1), bits, blocks * block)
    zeros = _zero_points(stated[0], bits, n, blocks)
    if zeros is None or scales.size != n * blocks or codes.shape[1] < k:
        return None
    group = np.arange(k) // block if stated[1] is None or not stated[1].size else stated[1].astype(np.int64)
    steps = scales.reshape(n, blocks).astype(np.float32)[:, group]
    numbers = (codes[:, :k] - zeros.astype(np.float32)[:, group]) * steps
    weights = emit.constant(numbers.T.astype(np.float32), "weights", steps=np.ascontiguousarray(steps.T))
    bias = input_at(node, 5)
    y = emit("MatMul", x, weights, label="product")
    return y if bias is None else emit("Add", y, bias, label="biased")


def rows_of_codes(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """GatherBlockQuantized: rows of a table in codes, with scales by block along one axis."""
    data, scales = array_of(node.inputs[0]), array_of(node.inputs[2])
    zeros, block = array_of(input_at(node, 3)), node.attributes.get_int("block_size", 128)
    if data is None or scales is None or node.inputs[1] is None:
        return None
    if zeros is None and input_at(node, 3) is not None:
        return None
    bits, packed = node.attributes.get_int("bits", 4), data.dtype == np.uint8
    last = data.ndim - 1
    axis = node.attributes.get_int("quantize_axis", 1) % data.ndim
    if packed and bits < 8:
        if axis != last:
            return None
        data = unpack_bits(data, bits, data.shape[-1] * 8 // bits)
        if zeros is not None:
            zeros = unpack_bits(zeros, bits, scales.shape[-1])
    codes = data.astype(np.int32)
    middle = (1 << (bits - 1)) if packed and zeros is None else 0
    spread = [
        np.repeat(each.astype(np.float32), block, axis).take(range(codes.shape[axis]), axis)
        for each in (scales, np.zeros(scales.shape) + middle if zeros is None else zeros)
    ]
    if any(each.shape != codes.shape for each in spread):
        return None
    numbers = (codes.astype(np.float32) - spread[1]) * spread[0]
    table = emit.constant(numbers, "table", steps=spread[0])
    return emit(
        "Gather", table, node.inputs[1], attributes={"axis": node.attributes.get_int("gather_axis", 0)}
    )


def root_mean_square(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """SimplifiedLayerNormalization, another name of RMSNormalization."""
    if len(node.outputs) > 1:
        return None
    attributes = {
        "axis": node.attributes.get_int("axis", -1),
        "epsilon": node.attributes.get_float("epsilon", 1e-5),
    }
    return emit("RMSNormalization", node.inputs[0], node.inputs[1], attributes=attributes)


def skip_normalization(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    """Skip(Simplified)LayerNormalization; the last of its outputs is the sum it normalises."""
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:3]):
        return None
    simple = node.op_type == "SkipSimplifiedLayerNormalization"
    total = emit("Add", node.inputs[0], node.inputs[1], label="sum")
    bias = input_at(node, 3 if simple else 4)
    if bias is not None:
        total = emit("Add", total, bias, label="biased")
    attributes: dict[str, int | float] = {"axis": -1, "epsilon": node.attributes.get_float("epsilon", 1e-5)}
    if simple:
        y = emit("RMSNormalization", total, node.inputs[2], attributes=attributes, label="normalised")
    else:
        operands = [total, node.inputs[2], input_at(node, 3)]
        y = emit("LayerNormalization", *operands, attributes=attributes, label="normalised")
    return [y, total, total, total][: len(node.outputs)]


def rotate(
    x: ir.Value,
    tables: tuple[Array, Array],
    places: ir.Value,
    emit: Emitter,
    *,
    interleaved: bool,
    label: str,
) -> ir.Value:
    """Turns `x` [batch, sequence, heads, features] by the angles of its places.

    Args:
        x: What is turned.
        tables: Cosines and sines, `[positions, half of the features that are turned]`.
        places: Positions `[batch, sequence]`.
        emit: Makes the nodes.
        interleaved: Neighbours are pairs; otherwise the halves are.
        label: For the names.
    """
    b, s, heads, width = shape_of(x) or ()
    half = tables[0].shape[1]
    turned = 2 * half
    cosines, sines = tables
    pairs_of = [(cosines, cosines), (-sines, sines)]  # of an element and its partner, by the place in a pair
    wide = [
        np.stack(pair, axis=2).reshape(-1, turned) if interleaved else np.concatenate(pair, axis=1)
        for pair in pairs_of
    ]
    factors = [
        emit.reshape(
            emit(
                "Gather",
                emit.constant(table.astype(np.float32), f"{label}_{name}"),
                places,
                attributes={"axis": 0},
            ),
            (b, s, 1, turned),
            f"{label}_{name}",
        )
        for name, table in zip(("cosines", "sines"), wide, strict=True)
    ]
    kept = None
    if turned < width:
        x, kept = emit.slice(x, 3, range(turned), "part"), emit.slice(x, 3, range(turned, width), "part")
    pairs = emit.reshape(x, (b, s, heads, half, 2), f"{label}_pairs") if interleaved else x
    axis, middle, end = (4, 1, 2) if interleaved else (3, half, turned)
    first, second = (emit.slice(pairs, axis, each, "part") for each in (range(middle), range(middle, end)))
    quarter = emit("Concat", second, first, attributes={"axis": axis}, label=f"{label}_partners")
    if interleaved:
        quarter = emit.reshape(quarter, (b, s, heads, turned), f"{label}_quarter_shape")
    y = emit("Add", emit("Mul", x, factors[0]), emit("Mul", quarter, factors[1]), label=f"{label}_rotated")
    return y if kept is None else emit("Concat", y, kept, attributes={"axis": 3}, label=f"{label}_whole")


def _caches(node: ir.Node, places: tuple[int, int]) -> tuple[Array, Array] | None:
    cosines, sines = (array_of(input_at(node, place)) for place in places)
    return None if cosines is None or sines is None else (cosines, sines)


def rotary(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """RotaryEmbedding of onnxruntime: [batch, sequence, features] or [batch, heads, sequence, features]."""
    x, places, tables = node.inputs[0], node.inputs[1], _caches(node, (2, 3))
    shape, at = shape_of(x), shape_of(places)
    turned = node.attributes.get_int("rotary_embedding_dim", 0)
    if x is None or places is None or tables is None or not shape or at is None:
        return None
    if (
        node.attributes.get_float("scale", 1.0) != 1.0
        or node.attributes.get_int("is_packed_batching", 0) != 0
    ):
        return None
    heads_first = len(shape) == 4
    sequence = shape[2] if heads_first else shape[1]
    if math.prod(at) != shape[0] * sequence:
        offset = array_of(places)  # one position: that of the first
        if offset is None or offset.size != 1:
            return None
        line = int(offset.item()) + np.arange(sequence)
        places = emit.constant(np.tile(line, (shape[0], 1)).astype(np.int64), "places")
    elif len(at) == 1:
        places = emit.reshape(places, (shape[0], sequence), "places")
    heads = shape[1] if heads_first else node.attributes.get_int("num_heads", 0)
    heads = heads or shape[2] // (2 * tables[0].shape[1])
    if turned and tables[0].shape[1] * 2 != turned:
        return None
    spread = (
        emit("Transpose", x, attributes={"perm": [0, 2, 1, 3]})
        if heads_first
        else emit.reshape(x, (shape[0], sequence, heads, shape[2] // heads), "heads")
    )
    interleaved = bool(node.attributes.get_int("interleaved", 0))
    y = rotate(spread, tables, places, emit, interleaved=interleaved, label="x")
    if heads_first:
        return emit("Transpose", y, attributes={"perm": [0, 2, 1, 3]}, label="back")
    return emit.reshape(y, shape, "back")


def _split_heads(node: ir.Node, heads: int, shared: int, emit: Emitter) -> list[ir.Value] | None:
    """Query, key and value, apart, as [batch, sequence, heads, features]."""
    query, key, value = (input_at(node, place) for place in range(3))
    shape = shape_of(query)
    if query is None or shape is None or len(shape) != 3:
        return None
    b, s, features = shape
    if key is None or value is None:
        width = features // (heads + 2 * shared)
        ends = np.cumsum([0, heads * width, shared * width, shared * width]).tolist()
        parts = [emit.slice(query, 2, range(first, last), "part") for first, last in pairwise(ends)]
    else:
        width, parts = features // heads, [query, key, value]
    return [
        emit.reshape(part, (b, s, count, width), f"{name}_heads")
        for name, part, count in zip(("query", "key", "value"), parts, (heads, shared, shared), strict=True)
    ]


def group_query_attention(node: ir.Node, emit: Emitter) -> Sequence[ir.Value] | None:
    """GroupQueryAttention whose lengths are constant: all of the past is there, no more and no less."""
    heads, shared = node.attributes.get_int("num_heads", 0), node.attributes.get_int("kv_num_heads", 0)
    lengths, past = array_of(input_at(node, 5)), input_at(node, 3)
    if lengths is None or not heads or not shared or len(set(lengths.ravel().tolist())) != 1:
        return None
    if not _has_known_options(node):
        return None
    if past is not None and shape_of(past) is None:
        return None
    before = (shape_of(past) or (0, 0, 0))[2]
    shape = shape_of(node.inputs[0])
    if not shape or int(lengths.ravel()[0]) + 1 != before + shape[1]:
        return None
    parts = _split_heads(node, heads, shared, emit)
    if parts is None:
        return None
    batch, sequence, _, width = shape_of(parts[0]) or ()
    for at, place in ((0, 14), (1, 15)):
        if (weight := input_at(node, place)) is not None:
            epsilon = node.attributes.get_float("qk_norm_epsilon", 1e-6)
            attributes = {"axis": -1, "epsilon": epsilon}
            label = f"normal{at}"
            parts[at] = emit(
                "RMSNormalization", parts[at], weight, attributes=attributes, label=label, domain=DOMAIN
            )
    if node.attributes.get_int("do_rotary", 0):
        tables, places = _caches(node, (7, 8)), input_at(node, 9)
        if tables is None:
            return None
        if places is None:
            line = np.tile(np.arange(before, before + sequence), (batch, 1))
            places = emit.constant(line.astype(np.int64), "places")
        interleaved = bool(node.attributes.get_int("rotary_interleaved", 0))
        for at, name in enumerate(("query", "key")):
            parts[at] = rotate(parts[at], tables, places, emit, interleaved=interleaved, label=name)
    query, key, value = (
        emit("Transpose", part, attributes={"perm": [0, 2, 1, 3]}, label=f"{name}_first")
        for name, part in zip(("query", "key", "value"), parts, strict=True)
    )
    if before:
        key = emit("Concat", past, key, attributes={"axis": 2}, label="keys")
        value = emit("Concat", input_at(node, 4), value, attributes={"axis": 2}, label="values")
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(width)
    rows, total = heads // shared * sequence, before + sequence
    grouped = emit.reshape(query, (batch, shared, rows, width), "grouped")
    turned = emit("Transpose", key, attributes={"perm": [0, 1, 3, 2]}, label="columns")
    scores = emit.reshape(
        emit("MatMul", grouped, turned, label="scores"), (batch, heads, sequence, total), "by_head"
    )
    scores = emit("Mul", scores, emit.constant(np.float32(scale), "scale"), label="scaled")
    shares = _shares(node, _mask_scores(node, scores, before, emit), emit)
    mixed = emit(
        "MatMul", emit.reshape(shares, (batch, shared, rows, total), "shares_grouped"), value, label="mixed"
    )
    apart = emit.reshape(mixed, (batch, heads, sequence, width), "mixed_by_head")
    back = emit("Transpose", apart, attributes={"perm": [0, 2, 1, 3]}, label="back")
    return [emit.reshape(back, (batch, sequence, heads * width), "joined"), key, value][: len(node.outputs)]


def _has_known_options(node: ir.Node) -> bool:
    """Whether attention is causal, of caches that hold numbers of the whole sequence."""
    stated = node.attributes
    plain = all(stated.get_string(name, "NONE") == "NONE" for name in ("k_quant_type", "v_quant_type"))
    widths = ("kv_cache_bit_width", "sliding_window_cache", "qk_output")
    plain = plain and stated.get_int("causal", 1) == 1 and not any(stated.get_int(name, 0) for name in widths)
    norms = [input_at(node, place) is None for place in (14, 15)]
    return plain and norms[0] == norms[1] and input_at(node, 12) is None and input_at(node, 13) is None


def _shares(node: ir.Node, scores: ir.Value, emit: Emitter) -> ir.Value:
    """Softmax over the keys, and over a score of no key where there is one for each head (or 0 for all)."""
    batch, heads, sequence, total = shape_of(scores) or ()
    sinks = input_at(node, 11)
    if sinks is None and node.attributes.get_int("smooth_softmax", -1) <= 0:
        return emit("Softmax", scores, attributes={"axis": -1}, label="shares")
    if sinks is None:
        sinks = emit.constant(np.zeros(heads), "sinks", like=scores)
    column = emit.reshape(sinks, (1, heads, 1, 1), "by_head")
    column = emit("Expand", column, emit.integers([batch, heads, sequence, 1], "sink_shape"), label="sink")
    joined = emit("Concat", scores, column, attributes={"axis": 3}, label="with_sinks")
    shares = emit("Softmax", joined, attributes={"axis": -1}, label="all_shares")
    return emit.slice(shares, 3, range(total), "shares")


def _mask_scores(node: ir.Node, scores: ir.Value, before: int, emit: Emitter) -> ir.Value:
    """Scores behind the cap, the mask of later keys and of those outside the window, and the bias."""
    cap, window = node.attributes.get_float("softcap", 0.0), node.attributes.get_int("local_window_size", -1)
    if cap:
        scaled = emit("Mul", scores, emit.constant(np.float32(1 / cap), "uncap"), label="uncapped")
        scores = emit("Mul", emit("Tanh", scaled), emit.constant(np.float32(cap), "cap"), label="capped")
    bias = input_at(node, 10)
    if bias is not None:
        scores = emit("Add", scores, bias, label="with_bias")
    *_, sequence, total = shape_of(scores) or ()
    last = before + np.arange(sequence)[:, np.newaxis]
    keys = np.arange(total)[np.newaxis]
    hidden = keys > last
    if window > 0:
        hidden |= keys <= last - window
    if not hidden.any():
        return scores
    mask = emit.constant(np.where(hidden, np.float32(LOWEST), np.float32(0))[np.newaxis, np.newaxis], "mask")
    return emit("Add", scores, mask, label="masked")


RULES: Rules = {
    "SimplifiedLayerNormalization": [root_mean_square],
    f"{CONTRIBUTED}.SkipSimplifiedLayerNormalization": [skip_normalization],
    f"{CONTRIBUTED}.SkipLayerNormalization": [skip_normalization],
    f"{CONTRIBUTED}.MatMulNBits": [product_of_codes],
    f"{CONTRIBUTED}.GatherBlockQuantized": [rows_of_codes],
    f"{CONTRIBUTED}.RotaryEmbedding": [rotary],
    f"{CONTRIBUTED}.GroupQueryAttention": [group_query_attention],
}
