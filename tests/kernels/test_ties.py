"""Ties and limits: results at k + 1/2 and the codes beside them, every shift, both ends of every number.

`test_isa.py` runs this file under every instruction set that the processor offers. A sum `a` with multiplier
`M = 2^t m` (m odd) and shift `N` is a tie if `a m = 2^(N-t-1)` modulo `2^(N-t)`. Operators with a bias reach
any sum, so they are given one for every shift; others are given `N - t` of a few bits, of which every few
sums are a tie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kernels.strategies import LIMITS, agree, codes, dtypes, operands, pooled, windows, zero_points
from tpuflow import kernels, reference
from tpuflow.kernels import Operand

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A failure has a hundred numbers, each of which matters: making them smaller takes minutes and tells nothing.
FEW = settings(max_examples=20, phases=[Phase.explicit, Phase.generate])
MOST = 2**15 - 1
"""The largest multiplier."""

multipliers = st.one_of(st.sampled_from([1, 2, 3, 2**14, MOST - 1, MOST]), st.integers(1, MOST))


def tie(multiplier: int, shift: int, near: int, limit: int) -> int:
    """A sum of at most `limit` either way that is a tie, close to `near`; `near` itself if there is none."""
    zeros = (multiplier & -multiplier).bit_length() - 1
    bits = shift - zeros
    if bits < 1:
        return near
    period, odd = 2**bits, multiplier >> zeros
    residue = (period // 2 * pow(odd, -1, period)) % period
    found = near - (near - residue) % period
    inside = [each for each in (found, found + period) if abs(each) <= limit]
    return inside[0] if inside else near


def is_tie(value: int, multiplier: int, shift: int) -> bool:
    return shift > 0 and (value * multiplier) % 2**shift == 2 ** (shift - 1)


@st.composite
def coarse(draw: st.DrawFn, dtype: str, channels: int = 1) -> dict[str, Any]:
    """A requantisation by a whole number over 1 to 64: every few sums are a tie, whatever the shift."""
    pairs = []
    for _ in range(draw(st.sampled_from([1, channels]))):
        zeros, bits = draw(st.integers(0, 14)), draw(st.integers(1, 6))
        odd = draw(st.sampled_from([1, 1, 1, 3, (2 ** (15 - zeros) - 1) | 1]))
        pairs.append((min(odd << zeros, MOST), zeros + bits))
    lo, hi = LIMITS[dtype]
    return {
        "multiplier": [m for m, _ in pairs],
        "shift": [n for _, n in pairs],
        "zero_point": draw(zero_points(dtype)),
        "lo": lo,
        "hi": hi,
    }


@pytest.mark.parametrize("shift", range(1, 48))
@given(multiplier=multipliers, near=st.integers(-(2**47), 2**47), data=st.data())
@FEW
@pytest.mark.feature("NUM-04")
def test_requantization_at_ties_of_every_shift(
    shift: int, multiplier: int, near: int, data: st.DataObject
) -> None:
    limit = 2**47 - 1
    span = data.draw(st.sampled_from([2**47, (LIMITS["int16"][1] << shift) // multiplier]))
    middle = tie(multiplier, shift, int(near % (2 * span + 1)) - span, limit)
    zeros = (multiplier & -multiplier).bit_length() - 1
    assert is_tie(middle, multiplier, shift) or shift <= zeros or abs(middle) > limit - 2**shift
    values = [middle - 1, middle, middle + 1, -middle, limit, -limit]
    values = [min(max(value, -limit), limit) for value in values]
    fields: dict[str, Any] = {
        "multiplier": [multiplier],
        "shift": [shift],
        "zero_point": data.draw(st.sampled_from([0, 1, -32768, 32767])),
        "lo": -32768,
        "hi": 32767,
    }
    found = kernels.requantize(np.array(values, np.int64), **fields)
    assert found.tolist() == reference.requantize(np.array(values), **fields).tolist()


def biased(
    data: st.DataObject, sums: NDArray[np.int64], terms: int, types: set[str]
) -> tuple[Operand, dict[str, Any], int]:
    """A bias and a requantisation that make the sum of every channel a tie, and for how many there is one.

    With the largest products there may be of so many terms no sum passes its 32 bits, or 48.
    """
    wide = "int16" in types
    limit = (2**47 if wide else 2**31) - 1 - 2 * terms * (2**31 if wide else 2**15)
    bias, pairs, ties = [], [], 0
    for channel, first in enumerate(sums.tolist()):
        multiplier, shift = data.draw(multipliers), 1 + channel % 47
        reach = min((LIMITS["int8"][1] << shift) // multiplier, limit)
        near = data.draw(st.sampled_from([0, reach, -reach, limit, -limit, reach // 2]))
        bias.append(max(min(tie(multiplier, shift, near, limit) - first, limit), -limit))
        pairs.append((multiplier, shift))
        ties += is_tie(first + bias[-1], multiplier, shift)
    dtype = np.int64 if wide else np.int32
    requant = {
        "multiplier": [m for m, _ in pairs],
        "shift": [n for _, n in pairs],
        "zero_point": data.draw(st.sampled_from([0, -1, 127, -128])),
        "lo": -128,
        "hi": 127,
    }
    return Operand(np.array(bias, dtype), constant=True), requant, ties


@given(st.data(), dtypes, dtypes, st.sampled_from([1, 3, 16, 33, 64, 65]))
@FEW
@pytest.mark.feature("NUM-04")
def test_products_at_ties_of_every_shift(data: st.DataObject, a_type: str, b_type: str, k: int) -> None:
    """The last term of every row adds -1, 0 or 1, so that rows lie at a tie and on both sides of it."""
    row, b = data.draw(codes(a_type, [1, k])), data.draw(codes(b_type, [k, 47]))
    a = np.repeat(row, 5, axis=0)
    a[:, -1], b[-1] = [0, 1, -1, LIMITS[a_type][1], LIMITS[a_type][0]], 1
    sums = a[0].astype(np.int64) @ b.astype(np.int64)
    bias, requant, ties = biased(data, sums, k, {a_type, b_type})
    assert ties >= 10
    op = {
        "op": "mat_mul", "a": Operand(a), "b": Operand(b, constant=data.draw(st.booleans())), "bias": bias,
        "epilogue": {"requant": requant},
    }  # fmt: skip
    agree(op, shape=[5, 47], dtype=data.draw(dtypes))


@pytest.mark.parametrize("groups", ["dense", "depthwise"])
@given(data=st.data(), x_type=dtypes, w_type=dtypes, kernel=st.sampled_from([1, 2, 3, 5]))
@FEW
@pytest.mark.feature("NUM-04")
def test_convolutions_at_ties_of_every_shift(
    groups: str, data: st.DataObject, x_type: str, w_type: str, kernel: int
) -> None:
    channels = 47
    width = channels if groups == "depthwise" else data.draw(st.sampled_from([1, 4, 17]))
    size = kernel + 2
    x = data.draw(codes(x_type, [1, size, size, width]))
    depth = 1 if groups == "depthwise" else width
    w = data.draw(codes(w_type, [channels, kernel, kernel, depth]))
    patch = x[0, :kernel, :kernel].astype(np.int64)
    weights = w.astype(np.int64)
    if groups == "depthwise":
        sums = np.einsum("hwc,chw->c", patch, weights[..., 0])
    else:
        sums = np.einsum("hwc,ohwc->o", patch, weights)
    bias, requant, ties = biased(data, sums, kernel * kernel * depth, {x_type, w_type})
    assert ties >= 10
    window = {"kernel": [kernel] * 2, "stride": [1, 1], "dilation": [1, 1], "pads": [0] * 4}
    op = {
        "op": "conv", "input": Operand(x), "weights": Operand(w, constant=True), "bias": bias,
        "window": window, "groups": width if groups == "depthwise" else 1, "epilogue": {"requant": requant},
    }  # fmt: skip
    agree(op, shape=[1, 3, 3, channels], dtype=data.draw(dtypes))


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "max", "min", "less", "equal"])
@given(data=st.data(), a_type=dtypes, b_type=dtypes, y_type=dtypes, length=st.sampled_from([1, 31, 64, 100]))
@FEW
def test_binary_operators(
    kind: str, data: st.DataObject, a_type: str, b_type: str, y_type: str, length: int
) -> None:
    ends = st.just(1) if kind in {"mul", "div"} else st.sampled_from([0, 1, 2, MOST - 1, MOST])
    op = {
        "op": "binary", "kind": kind, "ka": data.draw(ends), "kb": data.draw(ends),
        "a": data.draw(operands(a_type, [3, length])), "b": data.draw(operands(b_type, [3, length])),
        "requant": data.draw(coarse(y_type)),
    }  # fmt: skip
    agree(op, shape=[3, length], dtype=y_type)


@given(st.data(), dtypes, dtypes, st.sampled_from([1, 17, 64]))
@FEW
def test_elementwise_operators(data: st.DataObject, x_type: str, y_type: str, length: int) -> None:
    x, requant = data.draw(operands(x_type, [5, length])), data.draw(coarse(y_type))
    agree({"op": "rescale", "input": x, "requant": requant}, shape=[5, length], dtype=y_type)
    count = data.draw(st.sampled_from([1, length]))
    slope = st.tuples(st.sampled_from([-MOST, -1, 0, 1, 2**14, MOST]), st.integers(1, 20))
    slopes = [data.draw(slope) for _ in range(count)]
    negative = {"negative_multiplier": [m for m, _ in slopes], "negative_shift": [n for _, n in slopes]}
    p_relu = {"op": "p_relu", "input": x, "slopes": {"positive": data.draw(coarse(y_type)), **negative}}
    agree(p_relu, shape=[5, length], dtype=y_type)
    concat = {"op": "concat", "inputs": [x, x], "axis": 1, "requants": [requant, requant]}
    agree(concat, shape=[5, 2 * length], dtype=y_type)


@given(st.data(), dtypes, dtypes)
@FEW
def test_tables_at_ties(data: st.DataObject, x_type: str, y_type: str) -> None:
    """Entries are odd multiples of powers of two, and the largest there are."""
    steps = 2 ** data.draw(st.integers(1, 8))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    unit = 2 ** data.draw(st.integers(0, 9))
    entries = (2 * generator.integers(-200, 200, steps + 1) + 1) * unit
    entries[:: max(steps // 4, 1)] = generator.choice(
        [-(2**31), 2**31 - 1, 0], len(entries[:: max(steps // 4, 1)])
    )
    lo, hi = LIMITS[y_type]
    table = {"entries": Operand(entries.astype(np.int32), constant=True), "lo": lo, "hi": hi}
    x = Operand(np.arange(*LIMITS[x_type], 1 if x_type == "int8" else 61).astype(x_type))
    agree({"op": "unary", "input": x, "function": table}, shape=[len(x.codes)], dtype=y_type)


@given(st.data(), dtypes, dtypes, st.booleans())
@FEW
def test_pools(data: st.DataObject, x_type: str, y_type: str, padded: bool) -> None:  # noqa: FBT001
    shape = [1, 6, 5, data.draw(st.sampled_from([1, 16, 33]))]
    x, window = data.draw(operands(x_type, shape)), data.draw(windows(6, 5))
    agree({"op": "max_pool", "input": x, "window": window}, shape=pooled(shape, window), dtype=x_type)
    shift = data.draw(st.integers(1, 20))
    ends = st.sampled_from([1, 2**14, MOST, 2 ** min(shift - 1, 14)])
    divisors = [{"area": area, "multiplier": data.draw(ends), "shift": shift} for area in range(1, 10)]
    lo, hi = LIMITS[y_type]
    average = {"divisors": divisors, "zero_point": data.draw(zero_points(y_type)), "lo": lo, "hi": hi}
    op = {
        "op": "average_pool", "input": x, "window": window, "count_include_pad": padded, "beyond": [0, 0],
        "average": average,
    }  # fmt: skip
    agree(op, shape=pooled(shape, window), dtype=y_type)


@pytest.mark.parametrize("kind", ["sum", "sum_abs", "sum_square", "norm", "max", "min"])
@given(data=st.data(), x_type=dtypes, y_type=dtypes, axes=st.sampled_from([[0], [1], [0, 1], [2]]))
@FEW
def test_reductions(kind: str, data: st.DataObject, x_type: str, y_type: str, axes: list[int]) -> None:
    shape = [2, 3, data.draw(st.sampled_from([1, 16, 33]))]
    y_type = x_type if kind in {"max", "min"} else y_type
    op = {
        "op": "reduce", "input": data.draw(operands(x_type, shape)), "kind": kind, "axes": axes,
        "requant": data.draw(coarse(y_type)),
    }  # fmt: skip
    agree(op, shape=[n for axis, n in enumerate(shape) if axis not in axes], dtype=y_type)


@given(st.data(), dtypes)
@FEW
def test_resizing(data: st.DataObject, dtype: str) -> None:
    def taps(extent: int) -> st.SearchStrategy[list[dict[str, float]]]:
        index = st.integers(0, extent - 1)
        weight = st.sampled_from([0, 1, 512, 1024, 1024, 2047, 2048]).map(lambda w: w / 2048)
        tap = st.fixed_dictionaries({"first": index, "second": index, "weight": weight})
        return st.lists(tap, min_size=1, max_size=5)

    x = data.draw(operands(dtype, [1, 4, 3, data.draw(st.sampled_from([1, 17, 64]))]))
    rows, columns = data.draw(taps(4)), data.draw(taps(3))
    op = {"op": "resize_linear", "input": x, "rows": rows, "columns": columns}
    agree(op, shape=[1, len(rows), len(columns), x.codes.shape[3]], dtype=dtype)


@given(st.data(), dtypes, dtypes, st.sampled_from([2, 4, 8, 32, 64]))
@FEW
def test_softmax_of_equal_elements(data: st.DataObject, x_type: str, y_type: str, n: int) -> None:
    """A power of two of equal elements: the share of each is a whole number over that power."""
    x = np.repeat(data.draw(codes(x_type, [6, 1])), n, axis=1)
    x[3:] = data.draw(codes(x_type, [3, n]))
    lo, hi = LIMITS[y_type]
    exponentials = {
        "coefficient": data.draw(st.sampled_from([1, 2**32, 2**33])),
        "multiplier": data.draw(st.sampled_from([1, 3, 255, 2**14, MOST])),
        "shift": data.draw(st.integers(-4, 6)),
        "zero_point": data.draw(zero_points(y_type)),
        "lo": lo,
        "hi": hi,
    }
    agree({"op": "softmax", "input": Operand(x), "exponentials": exponentials}, shape=[6, n], dtype=y_type)


@given(st.data(), dtypes, dtypes, st.sampled_from([1, 2, 16, 33]), st.booleans())
@FEW
def test_normalization(data: st.DataObject, x_type: str, y_type: str, n: int, center: bool) -> None:  # noqa: FBT001
    ends = [-(2**45), -1, 0, 1, 2**45]
    op = {
        "op": "layer_norm",
        "input": data.draw(operands(x_type, [5, n])),
        "gamma": Operand(data.draw(codes("int16", [n], lo=-3, hi=3)), constant=True),
        "beta": Operand(
            np.array([data.draw(st.sampled_from(ends)) for _ in range(n)], np.int64), constant=True
        ),
        "center": center,
        "norm": {
            "epsilon": data.draw(st.sampled_from([1, 2**16, 2**40])),
            "multiplier": data.draw(st.sampled_from([1, 2**14, MOST])),
            "shift": data.draw(st.integers(-8, 30)),
            "requant": data.draw(coarse(y_type, n)),
        },
    }
    agree(op, shape=[5, n], dtype=y_type)


@given(st.data(), dtypes)
@FEW
def test_movements_of_extremes(data: st.DataObject, dtype: str) -> None:
    x = Operand(data.draw(codes(dtype, [2, 3, 17])))
    indices = [2, 0, 1, 1]
    agree({"op": "gather", "input": x, "axis": 1, "indices": indices}, shape=[2, 4, 17], dtype=dtype)
    for mode in ("reflect", "edge", {"constant": LIMITS[dtype][0]}):
        pad = {"op": "pad", "input": x, "before": [0, 1, 1], "after": [1, 0, 2], "mode": mode}
        agree(pad, shape=[3, 4, 20], dtype=dtype)
    condition = Operand(data.draw(codes("int8", [2, 3, 17], lo=-1, hi=1)))
    agree({"op": "select", "condition": condition, "a": x, "b": x}, shape=[2, 3, 17], dtype=dtype)
    largest = {"op": "arg_max", "input": x, "largest": True, "select_last": data.draw(st.booleans())}
    agree(largest, shape=[2, 3], dtype="int32")
