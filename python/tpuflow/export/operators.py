"""Every operator of the graph in ONNX nodes of integers, as docs/arithmetic.md defines it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.export.tape import Tape

__all__ = ["OPERATORS", "LayerContext"]

MOST = 1 << 62
INT32 = (-(1 << 31), (1 << 31) - 1)


class LayerContext:
    """A layer: its fields, and of every tensor its value's name, or its elements if it is constant.

    Attributes:
        name: The layer's name, for messages.
        op: The operator's fields as in the graph's JSON.
        tape: Where nodes go.
    """

    def __init__(
        self,
        name: str,
        op: Mapping[str, Any],
        tape: Tape,
        tensors: Sequence[Mapping[str, Any]],
        values: Mapping[int, str],
        constant: Callable[[int], NDArray[Any]],
    ) -> None:
        self.name, self.op, self.tape = name, op, tape
        self._tensors, self._values, self._constant = tensors, values, constant

    def value(self, field: str) -> str:
        """The value of the tensor a field names."""
        return self.of(self.op[field])

    def of(self, tensor: int) -> str:
        """The value of a tensor, int64."""
        found = self._values.get(tensor)
        return self.tape.constant(self._constant(tensor).astype(np.int64)) if found is None else found

    def elements(self, tensor: int) -> NDArray[Any]:
        """The elements of a constant."""
        return self._constant(tensor)

    def is_constant(self, field: str) -> bool:
        """Whether a field names a constant."""
        return self.op[field] not in self._values

    def minus_zero_point(self, field: str) -> str:
        """Codes less their zero point."""
        return self.tensor_minus_zero_point(self.op[field])

    def tensor_minus_zero_point(self, tensor: int) -> str:
        """Codes of a tensor less their zero point."""
        return self.tape.add(self.of(tensor), -self.zero_point(tensor))

    def zero_point(self, tensor: int) -> int:
        """Zero point of a tensor, 0 where it has none."""
        quant = self._tensors[tensor].get("quant")
        return 0 if quant is None else int(quant["zero_point"])

    def shape(self, tensor: int) -> list[int]:
        """Its stored shape."""
        return list(self._tensors[tensor]["shape"])

    def bits(self, tensor: int) -> int:
        """Bits of an element."""
        return 8 * int(np.dtype(self._tensors[tensor]["dtype"]).itemsize)

    def finish(self, sums: str, bias: str | None) -> str:
        """Codes of the sums of a linear operator, and its biases."""
        tape, epilogue = self.tape, self.op["epilogue"]
        first = epilogue.get("first_shift")
        if first:
            sums = tape.divide(sums, tape.constant(1 << first))
        if first is not None:
            sums = tape.clamp(sums, *INT32)
        if bias is not None:
            sums = tape.op("Add", sums, bias)
        if first is not None:
            sums = tape.clamp(sums, *INT32)
        codes = tape.requantize(sums, **epilogue["requant"])
        table = epilogue.get("table")
        if table is None:
            return codes
        entries = self.elements(table["entries"])
        return tape.look_up(entries, codes, bits=16, lo=table["lo"], hi=table["hi"])

    def require(self, condition: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Raises `ModelError` where 64 bits do not hold what the layer computes."""
        if not condition:
            raise ModelError(f'layer "{self.name}": {what} needs more than 64 bits, which ONNX does not have')


def _counts(layer: LayerContext, tensor: int, window: Mapping[str, Sequence[int]]) -> list[int]:
    size, pads = layer.shape(tensor)[1:3], window["pads"]
    return [
        (size[i] + pads[i] + pads[i + 2] - (window["kernel"][i] - 1) * window["dilation"][i] - 1)
        // window["stride"][i]
        + 1
        for i in (0, 1)
    ]


def _pad_value(tape: Tape, value: str, pads: Sequence[int], code: int) -> str:
    top, left, bottom, right = pads
    return tape.pad(value, [0, top, left, 0], [0, bottom, right, 0], code)


def _conv(layer: LayerContext) -> str:
    tape, op = layer.tape, layer.op
    weights = layer.elements(op["weights"]).astype(np.float64) - layer.zero_point(op["weights"])
    # Products of codes and their sums stay far below 2^53, where float64 is exact.
    x = tape.cast(_pad_value(tape, layer.minus_zero_point("input"), op["window"]["pads"], 0), "float64")
    counts, groups = _counts(layer, op["input"], op["window"]), op["groups"]
    batch, filters, width = layer.shape(op["input"])[0], weights.shape[0] // groups, weights.shape[3]
    sums = []
    cells = weights.reshape(groups, filters, -1, width).transpose(2, 0, 3, 1)
    for tap, cell in zip(tape.taps(x, op["window"], counts), cells, strict=True):
        if groups > 1:
            split = tape.reshape(tap, [batch, *counts, groups, 1, width])
            product = tape.op("MatMul", split, tape.constant(np.ascontiguousarray(cell)))
            sums.append(tape.reshape(product, [batch, *counts, groups * filters]))
        else:
            sums.append(tape.op("MatMul", tap, tape.constant(np.ascontiguousarray(cell[0]))))
    return layer.finish(tape.sum(sums, "float64"), layer.value("bias"))


def _mat_mul(layer: LayerContext) -> str:
    tape = layer.tape
    a, b = (tape.cast(layer.minus_zero_point(field), "float64") for field in ("a", "b"))
    sums = tape.cast(tape.op("MatMul", a, b))
    return layer.finish(sums, None if layer.op.get("bias") is None else layer.value("bias"))


def _max_pool(layer: LayerContext) -> str:
    tape, window = layer.tape, layer.op["window"]
    least = -(1 << (layer.bits(layer.op["input"]) - 1))
    taps = tape.taps(
        _pad_value(tape, layer.value("input"), window["pads"], least),
        window,
        _counts(layer, layer.op["input"], window),
    )
    return tape.op("Max", *taps)


def _average_pool(layer: LayerContext) -> str:
    tape, op = layer.tape, layer.op
    window, average, pads = op["window"], op["average"], op["window"]["pads"]
    counts, (height, width) = _counts(layer, op["input"], window), layer.shape(op["input"])[1:3]
    x = layer.minus_zero_point("input")
    if list(window["kernel"]) == [height, width] and counts == [1, 1] and not any(pads):
        total = tape.reduce("ReduceSum", x, [1, 2])
    else:
        total = tape.sum(tape.taps(_pad_value(tape, x, pads, 0), window, counts))
    inside = [(0, height), (0, width)]
    if op["count_include_pad"]:
        inside = [(-pads[i], inside[i][1] + pads[i + 2] - op["beyond"][i]) for i in (0, 1)]
    along = [
        np.array(
            [
                sum(
                    inside[axis][0]
                    <= place * window["stride"][axis] - pads[axis] + cell * window["dilation"][axis]
                    < inside[axis][1]
                    for cell in range(window["kernel"][axis])
                )
                for place in range(counts[axis])
            ]
        )
        for axis in (0, 1)
    ]
    by_area = {d["area"]: (d["multiplier"], d["shift"]) for d in average["divisors"]}
    areas = np.outer(along[0], along[1])
    pairs = np.array([by_area.get(int(area), (0, 0)) for area in areas.ravel()], np.int64)
    multiplier, shift = (pairs[:, part].reshape(1, *counts, 1) for part in (0, 1))
    limits = {name: average[name] for name in ("zero_point", "lo", "hi")}
    return tape.requantize(total, multiplier=multiplier, shift=shift, **limits)


COMPARISONS = {"less": "Less", "less_or_equal": "LessOrEqual", "equal": "Equal", "not_equal": "Equal"}


def _binary(layer: LayerContext) -> str:
    tape, op, kind = layer.tape, layer.op, layer.op["kind"]
    p, q = (
        tape.clamp(tape.multiply(layer.minus_zero_point(field), op[factor]), -(1 << 31), (1 << 31) - 1)
        for field, factor in (("a", "ka"), ("b", "kb"))
    )
    if kind == "div":
        return _divide(layer, p, q)
    if kind in COMPARISONS:
        holds = tape.op(COMPARISONS[kind], p, q)
        value = tape.cast(tape.op("Not", holds) if kind == "not_equal" else holds)
    else:
        value = tape.op(kind.capitalize(), p, q)
    return tape.requantize(value, **op["requant"])


def _divide(layer: LayerContext, p: str, q: str) -> str:
    tape, requant = layer.tape, layer.op["requant"]
    (multiplier,), (shift,) = requant["multiplier"], requant["shift"]
    lo, hi, zero_point = requant["lo"], requant["hi"], requant["zero_point"]
    layer.require((1 << layer.bits(layer.op["b"]) + 1) << max(shift, 0) < MOST, "the quotient")
    zero = tape.constant(0)
    none, negative = tape.op("Equal", q, zero), tape.op("Less", q, zero)
    numerator = tape.multiply(p, multiplier << max(-shift, 0))
    numerator = tape.op("Where", negative, tape.op("Neg", numerator), numerator)
    size = tape.op("Where", none, tape.constant(1), tape.op("Abs", tape.multiply(q, 1 << max(shift, 0))))
    quotient = tape.clamp(tape.add(tape.divide(numerator, size), zero_point), lo, hi)
    below = tape.op(
        "Where", tape.op("Less", p, zero), tape.constant(lo), tape.constant(min(max(zero_point, lo), hi))
    )
    saturated = tape.op("Where", tape.op("Greater", p, zero), tape.constant(hi), below)
    return tape.op("Where", none, saturated, quotient)


def _unary(layer: LayerContext) -> str:
    table = layer.op["function"]
    bits = layer.bits(layer.op["input"])
    entries = layer.elements(table["entries"])
    return layer.tape.look_up(entries, layer.value("input"), bits=bits, lo=table["lo"], hi=table["hi"])


def _p_relu(layer: LayerContext) -> str:
    tape, slopes = layer.tape, layer.op["slopes"]
    value = layer.minus_zero_point("input")
    limits = {
        **slopes["positive"],
        "multiplier": slopes["negative_multiplier"],
        "shift": slopes["negative_shift"],
    }
    below = tape.requantize(value, **limits)
    above = tape.requantize(value, **slopes["positive"])
    return tape.op("Where", tape.op("Less", value, tape.constant(0)), below, above)


@cache
def _power_table() -> NDArray[np.int64]:
    """`RNE(2^(30 - i/256))` for i = 0..256: half of `2^(31 - i/256)`, by eight square roots."""
    found = []
    for i in range(257):
        root = 1 << (256 * 31 - i)
        for _ in range(8):
            root = isqrt(root)
        found.append((root + 1) // 2)
    return np.array(found, np.int64)


def _softmax(layer: LayerContext) -> str:
    tape, fields = layer.tape, layer.op["exponentials"]
    source = layer.op["input"]
    bits, count = layer.bits(source), layer.shape(source)[-1]
    multiplier, shift, coefficient = fields["multiplier"], fields["shift"], fields["coefficient"]
    layer.require(coefficient << bits < MOST, "an exponent")
    layer.require(multiplier << 30 + max(-shift, 0) < MOST, "an exponential")
    layer.require(count << 31 + max(shift, 0) < MOST, "the sum of exponentials")
    x = layer.value("input")
    taken = None
    if layer.op.get("mask") is not None:
        mask = tape.op("Expand", layer.value("mask"), tape.constant(layer.shape(source)))
        taken = tape.op("Not", tape.op("Equal", mask, tape.constant(0)))
    known = x if taken is None else tape.op("Where", taken, x, tape.constant(-(1 << bits)))
    distance = tape.op("Sub", tape.reduce("ReduceMax", known, [-1]), x)
    u = tape.multiply(tape.op("Max", distance, tape.constant(0)), coefficient)

    def part(places: int, size: int) -> str:
        return tape.op("Mod", tape.op("Div", u, tape.constant(1 << places)), tape.constant(size))

    table, i = tape.constant(_power_table()), part(24, 256)
    first, second = tape.op("Gather", table, i), tape.op("Gather", table, tape.add(i, 1))
    rise = tape.op("Mul", tape.op("Sub", second, first), part(16, 256))
    near = tape.op("Add", first, tape.divide(rise, tape.constant(256)))
    halvings = tape.op("Min", tape.op("Div", u, tape.constant(1 << 32)), tape.constant(40))
    exponential = tape.divide(near, tape.power(halvings))
    if taken is not None:
        exponential = tape.op("Where", taken, exponential, tape.constant(0))
    total = tape.op("Max", tape.reduce("ReduceSum", exponential, [-1]), tape.constant(1))
    quotient = tape.divide(
        tape.multiply(exponential, multiplier << max(-shift, 0)), tape.multiply(total, 1 << max(shift, 0))
    )
    return tape.clamp(tape.add(quotient, fields["zero_point"]), fields["lo"], fields["hi"])


def _layer_norm(layer: LayerContext) -> str:
    tape, norm = layer.tape, layer.op["norm"]
    source = layer.op["input"]
    count = layer.shape(source)[-1]
    layer.require(norm["epsilon"] + (count << 2 * layer.bits(source) + 16) < MOST, "the sum of squares")
    layer.require(-8 <= norm["shift"] <= 16, "the shift of what is normalised")
    if layer.op["center"]:
        x = tape.multiply(layer.value("input"), 256)
        mean = tape.divide(tape.reduce("ReduceSum", x, [-1]), tape.constant(count))
        deviation = tape.op("Sub", x, mean)
    else:
        deviation = tape.multiply(layer.minus_zero_point("input"), 256)
    variance = tape.add(tape.reduce("ReduceSum", tape.op("Mul", deviation, deviation), [-1]), norm["epsilon"])
    # The power of four that brings the variance between 2^60 and 2^62, by how many powers are not above it.
    reached = tape.op("GreaterOrEqual", variance, tape.constant([4**j for j in range(31)]))
    fours = tape.reduce("ReduceSum", tape.cast(reached), [-1])
    half = tape.op("Sub", tape.constant(31), fours)
    scaled = tape.op("Mul", variance, tape.power(tape.multiply(half, 2)))
    root = tape.op("Div", tape.constant(1 << 61), tape.root(scaled))
    # The product with the root has up to 70 bits: all but its last 16, with a bit for whether these are zero,
    # are rounded as the whole would be.
    factor = tape.multiply(deviation, norm["multiplier"])
    low = tape.op("Mul", factor, tape.op("Mod", root, tape.constant(1 << 16)))
    rest = tape.op("Mod", low, tape.constant(1 << 16))
    high = tape.op(
        "Add",
        tape.op("Mul", factor, tape.op("Div", root, tape.constant(1 << 16))),
        tape.op("Div", tape.op("Sub", low, rest), tape.constant(1 << 16)),
    )
    sticky = tape.cast(tape.op("Greater", rest, tape.constant(0)))
    places = tape.op("Sub", tape.constant(norm["shift"] + 61 - 15), half)
    quotient = tape.divide(tape.op("Add", tape.multiply(high, 2), sticky), tape.power(places))
    normalized = tape.clamp(quotient, -(1 << 23), (1 << 23) - 1)
    scaled = tape.op("Add", tape.op("Mul", normalized, layer.value("gamma")), layer.value("beta"))
    return tape.requantize(scaled, **norm["requant"])


def _reduce(layer: LayerContext) -> str:
    tape, kind, axes = layer.tape, layer.op["kind"], layer.op["axes"]
    if kind in {"max", "min"}:
        return tape.reduce(f"Reduce{kind.capitalize()}", layer.value("input"), axes)
    terms = layer.minus_zero_point("input")
    if kind == "sum_abs":
        terms = tape.op("Abs", terms)
    elif kind in {"sum_square", "norm"}:
        terms = tape.op("Mul", terms, terms)
    total = tape.reduce("ReduceSum", terms, axes)
    if kind == "norm":
        source = layer.op["input"]
        count = int(np.prod([layer.shape(source)[axis] for axis in axes]))
        layer.require(count << 2 * layer.bits(source) + 18 < MOST, "the sum of squares")
        total = tape.root(tape.multiply(total, 1 << 16))
    return tape.requantize(total, **layer.op["requant"])


def _arg_max(layer: LayerContext) -> str:
    tape, op = layer.tape, layer.op
    kind = "ArgMax" if op["largest"] else "ArgMin"
    last = int(op["select_last"])
    return tape.op(kind, tape.cast(layer.value("input"), "int32"), axis=-1, select_last_index=last)


def _concat(layer: LayerContext) -> str:
    parts = []
    for tensor, requant in zip(layer.op["inputs"], layer.op["requants"], strict=True):
        value = layer.of(tensor)
        parts.append(
            value
            if requant is None
            else layer.tape.requantize(layer.tensor_minus_zero_point(tensor), **requant)
        )
    return layer.tape.op("Concat", *parts, axis=layer.op["axis"])


def _pad(layer: LayerContext) -> str:
    mode = layer.op["mode"]
    code, way = (0, mode) if isinstance(mode, str) else (mode["constant"], "constant")
    return layer.tape.pad(layer.value("input"), layer.op["before"], layer.op["after"], code, way)


def _rearrange(layer: LayerContext) -> str:
    tape, op = layer.tape, layer.op
    position = np.full((), op["offset"], np.int64)
    for extent, stride in zip(op["dims"], op["strides"], strict=True):
        position = position[..., None] + np.arange(extent) * stride
    flat = tape.reshape(layer.value("input"), [-1])
    size = int(np.prod(layer.shape(op["input"])))
    if np.array_equal(position.ravel(), np.arange(size)):
        return flat
    return tape.op("Gather", flat, tape.constant(position.ravel()))


def _gather(layer: LayerContext) -> str:
    op = layer.op
    return layer.tape.op("Gather", layer.value("input"), layer.tape.constant(op["indices"]), axis=op["axis"])


def _embedding(layer: LayerContext) -> str:
    entry = layer.op.get("entry", "row")
    if entry == "row":
        return layer.tape.op("Gather", layer.value("table"), layer.value("indices"))
    table = layer.elements(layer.op["table"])
    table = table.T if entry == "column" else table.reshape(-1, entry["rows"] * table.shape[1])
    rows = layer.tape.constant(np.ascontiguousarray(table, np.int64))
    return layer.tape.op("Gather", rows, layer.value("indices"))


def _resize_linear(layer: LayerContext) -> str:
    tape = layer.tape
    x, rank = layer.value("input"), 4
    for axis, taps in ((1, layer.op["rows"]), (2, layer.op["columns"])):
        weight = np.array([int(2048 * tap["weight"]) for tap in taps], np.int64)
        weight = weight.reshape([-1] + [1] * (rank - 1 - axis))
        first, second = (
            tape.op("Gather", x, tape.constant([tap[end] for tap in taps]), axis=axis)
            for end in ("first", "second")
        )
        first = tape.op("Mul", first, tape.constant(2048 - weight))
        x = tape.op("Add", first, tape.op("Mul", second, tape.constant(weight)))
    return tape.divide(x, tape.constant(1 << 22))


def _insert_zeros(layer: LayerContext) -> str:
    tape, (rows, columns) = layer.tape, layer.op["stride"]
    n, h, w, c = layer.shape(layer.op["input"])
    x = tape.reshape(layer.value("input"), [n, h, 1, w, 1, c])
    x = tape.pad(x, [0] * 6, [0, 0, rows - 1, 0, columns - 1, 0], layer.zero_point(layer.op["input"]))
    x = tape.reshape(x, [n, h * rows, w * columns, c])
    ends = [(h - 1) * rows + 1, (w - 1) * columns + 1]
    return tape.op("Slice", x, *(tape.constant(values) for values in ([0, 0], ends, [1, 2])))


def _select(layer: LayerContext) -> str:
    tape = layer.tape
    zero = tape.op("Equal", layer.value("condition"), tape.constant(0))
    return tape.op("Where", zero, layer.value("b"), layer.value("a"))


OPERATORS: dict[str, Callable[[LayerContext], str]] = {
    "conv": _conv,
    "mat_mul": _mat_mul,
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "binary": _binary,
    "unary": _unary,
    "rescale": lambda layer: layer.tape.requantize(layer.minus_zero_point("input"), **layer.op["requant"]),
    "p_relu": _p_relu,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "reduce": _reduce,
    "arg_max": _arg_max,
    "concat": _concat,
    "pad": _pad,
    "rearrange": _rearrange,
    "gather": _gather,
    "embedding": _embedding,
    "resize_linear": _resize_linear,
    "insert_zeros": _insert_zeros,
    "select": _select,
}
"""How each operator of integers is written."""
