"""What property tests of the arithmetic draw from, and the comparison they all make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from tpuflow import _core, kernels, reference
from tpuflow.kernels import Operand, Tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

LIMITS = {"int8": (-128, 127), "int16": (-32768, 32767)}

dtypes = st.sampled_from(["int8", "int16"])


@st.composite
def codes(
    draw: st.DrawFn, dtype: str, shape: Sequence[int], *, lo: int | None = None, hi: int | None = None
) -> NDArray[Any]:
    """An array of codes; one in four arrays holds only extremes, the others are uniform.

    The elements come from a drawn seed: shrinking single elements of large arrays helps nobody.
    """
    low, high = LIMITS[dtype]
    low, high = low if lo is None else lo, high if hi is None else hi
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.integers(0, 3)) == 0:
        return generator.choice(np.array([low, low + 1, 0, high - 1, high]).clip(low, high), shape).astype(
            dtype
        )
    return generator.integers(low, high, shape, dtype=dtype, endpoint=True)


@st.composite
def operands(draw: st.DrawFn, dtype: str, shape: Sequence[int], *, constant: bool = False) -> Operand:
    """An operand of any codes and any zero point of its type."""
    return Operand(draw(codes(dtype, shape)), draw(zero_points(dtype)), constant)


def zero_points(dtype: str) -> st.SearchStrategy[int]:
    """Zero points of a type, with 0 and the extremes more often than by chance."""
    low, high = LIMITS[dtype]
    return st.one_of(st.just(0), st.sampled_from([low, high]), st.integers(low, high))


@st.composite
def clamps(draw: st.DrawFn, dtype: str) -> tuple[int, int]:
    """A clamp within a type: mostly all of it."""
    low, high = LIMITS[dtype]
    if draw(st.integers(0, 3)):
        return low, high
    lo = draw(st.integers(low, high))
    return lo, draw(st.integers(lo, high))


@st.composite
def requants(draw: st.DrawFn, dtype: str, magnitude: float, channels: int = 1) -> dict[str, Any]:
    """A requantisation that brings values of about `magnitude` to about the type's range; sometimes any."""
    lo, hi = draw(clamps(dtype))
    count = draw(st.sampled_from([1, channels]))
    factor = LIMITS[dtype][1] / max(magnitude, 1.0)
    pairs = []
    for _ in range(count):
        near = reference.approximate(factor * draw(st.floats(0.1, 4)), 15, 47)
        anything = (draw(st.integers(0, 32767)), draw(st.integers(-15, 47)))
        pairs.append(near if near and draw(st.integers(0, 7)) else anything)
    return {
        "multiplier": [m for m, _ in pairs],
        "shift": [n for _, n in pairs],
        "zero_point": draw(zero_points(dtype)),
        "lo": lo,
        "hi": hi,
    }


@st.composite
def tables(draw: st.DrawFn, bits: int, dtype: str) -> tuple[NDArray[np.int32], int, int]:
    """Entries of a random table over codes of `bits` bits, some beyond the output's range, and a clamp."""
    steps = 2 ** draw(st.integers(1, min(bits, 10)))
    lo, hi = draw(clamps(dtype))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([3, 200, 40000, 2**31 - 1]))
    return generator.integers(-spread, spread, steps + 1, dtype=np.int32, endpoint=True), lo, hi


@st.composite
def windows(draw: st.DrawFn, height: int, width: int, *, largest: int = 3) -> dict[str, list[int]]:
    """A window that fits at least once into an image."""
    kernel, stride, dilation, before, after = [], [], [], [], []
    for size in (height, width):
        k = draw(st.integers(1, largest))
        d = draw(st.integers(1, 2))
        extent = (k - 1) * d + 1
        first, second = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        kernel.append(k)
        dilation.append(d)
        stride.append(draw(st.integers(1, 3)))
        before.append(max(first, extent - size - second, 0))
        after.append(second)
    return {"kernel": kernel, "stride": stride, "dilation": dilation, "pads": before + after}


def pooled(shape: Sequence[int], window: Mapping[str, Sequence[int]]) -> list[int]:
    """Shape of what a window makes of `[n,h,w,c]`."""

    def along(axis: int) -> int:
        extent = (window["kernel"][axis] - 1) * window["dilation"][axis] + 1
        padded = shape[axis + 1] + window["pads"][axis] + window["pads"][axis + 2]
        return int((padded - extent) // window["stride"][axis]) + 1

    return [shape[0], along(0), along(1), shape[3]]


def layer_graph(
    op: Mapping[str, Any], *, shape: Sequence[int], dtype: str, zero_point: int = 0
) -> tuple[_core.Graph, dict[str, NDArray[Any]]]:
    """The graph of a layer: `op` names a function of `_core.Op` and its arguments, operands among them."""
    return kernels.layer_graph(
        lambda tensor: operator(op, tensor), shape=shape, dtype=dtype, zero_point=zero_point
    )


def apply(op: Mapping[str, Any], *, shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """What an operator computes, drawn as for `layer_graph`."""
    return kernels.apply(lambda tensor: operator(op, tensor), shape=shape, dtype=dtype)


def operator(op: Mapping[str, Any], tensor: Tensors) -> _core.Op:
    """An operator of what was drawn: operands become tensors wherever they stand."""

    def resolved(value: Any) -> Any:
        match value:
            case Operand():
                return tensor(value)
            case dict():
                return {key: resolved(item) for key, item in value.items()}
            case list() | tuple():
                return [resolved(item) for item in value]
            case _:
                return value

    fields = resolved(dict(op))
    made: _core.Op = getattr(_core.Op, fields.pop("op"))(**fields)
    return made


def agree(op: Mapping[str, Any], *, shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """The kernels and the reference compute the same codes, which are returned."""
    graph, inputs = layer_graph(op, shape=shape, dtype=dtype)
    found = graph.run(inputs)["y"]
    expected = reference.run(graph, inputs)["y"]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)
    return found
