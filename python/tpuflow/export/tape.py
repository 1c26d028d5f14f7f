"""ONNX nodes written one after another, and the exact integer arithmetic of docs/arithmetic.md made of them.

All values are int64 unless a name says otherwise; shapes are static. Quotients are rounded half to even by
`Mod`, whose remainder is never negative for positive divisors, so nothing passes through a float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["OPSET", "Tape"]

OPSET = 18
POWERS = np.array([1 << n for n in range(63)], np.int64)
"""2^0 to 2^62."""


class Tape:
    """Nodes and constants of a graph in the making. Methods take and return names of values."""

    def __init__(self, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[bytes, onnx.TensorProto] = {}
        self.prefix = prefix
        self._constant = f"{prefix}/constant" if prefix else "constant"

    def op(self, kind: str, *inputs: str, count: int = 1, **attributes: Any) -> str:
        """The first output of a new node."""
        name = f"{self.prefix}/{kind}.{len(self.nodes)}"
        outputs = [name] if count == 1 else [f"{name}.{number}" for number in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name, **attributes))
        return outputs[0]

    def name(self, value: str, name: str) -> None:
        """Gives a value a name of its own."""
        self.nodes.append(helper.make_node("Identity", [value], [name], f"{name}/output"))

    def constant(self, array: NDArray[Any] | Sequence[int] | int) -> str:
        """A constant, int64 unless it is an array of another type; equal ones are kept once."""
        array = array if isinstance(array, np.ndarray) else np.array(array, np.int64)
        key = repr((array.dtype.str, array.shape)).encode() + array.tobytes()
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(array, f"{self._constant}.{len(self.constants)}")
        return self.constants[key].name

    def add(self, a: str, b: str | int) -> str:
        """`a + b`."""
        return a if isinstance(b, int) and b == 0 else self.op("Add", a, self._value(b))

    def multiply(self, a: str, b: str | int) -> str:
        """`a * b`."""
        return a if isinstance(b, int) and b == 1 else self.op("Mul", a, self._value(b))

    def clamp(self, value: str, lo: int, hi: int) -> str:
        """`min(max(value, lo), hi)`."""
        return self.op("Clip", value, self.constant(lo), self.constant(hi))

    def cast(self, value: str, dtype: str = "int64") -> str:
        """The same numbers of another type."""
        return self.op(
            "Cast", value, to=getattr(TensorProto, {"float64": "DOUBLE"}.get(dtype, dtype.upper()))
        )

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """The same elements in another shape."""
        return self.op("Reshape", value, self.constant(shape))

    def pad(
        self, value: str, before: Sequence[int], after: Sequence[int], code: int = 0, mode: str = "constant"
    ) -> str:
        """More cells around: `code`, or made of their neighbours."""
        if not any(before) and not any(after):
            return value
        pads = self.constant([*before, *after])
        return self.op("Pad", value, pads, self.constant(code), mode=mode)

    def sum(self, values: Sequence[str], dtype: str = "int64") -> str:
        """The sum of several values of one type."""
        total = values[0]
        for value in values[1:]:
            total = self.op("Add", total, value)
        return total if dtype == "int64" else self.cast(total)

    def reduce(self, kind: str, value: str, axes: Sequence[int]) -> str:
        """`ReduceSum`, `ReduceMax` or `ReduceMin` over axes, which stay with size one."""
        return self.op(kind, value, self.constant(axes), keepdims=1)

    def taps(self, value: str, window: Mapping[str, Sequence[int]], counts: Sequence[int]) -> list[str]:
        """For every cell of a window over a padded `[n,h,w,c]`: what lies under it, `[n,*counts,c]`."""
        found = []
        for i in range(window["kernel"][0]):
            for j in range(window["kernel"][1]):
                first = [i * window["dilation"][0], j * window["dilation"][1]]
                last = [f + (c - 1) * s + 1 for f, c, s in zip(first, counts, window["stride"], strict=True)]
                places = [self.constant(x) for x in (first, last, [1, 2], list(window["stride"]))]
                found.append(self.op("Slice", value, *places))
        return found

    def divide(self, p: str, q: str) -> str:
        """`RNE(p / q)` for positive `q`."""
        rest = self.op("Mod", p, q)
        quotient = self.op("Div", self.op("Sub", p, rest), q)
        twice = self.multiply(rest, 2)
        odd = self.op("Equal", self.op("Mod", quotient, self.constant(2)), self.constant(1))
        tie = self.op("And", self.op("Equal", twice, q), odd)
        up = self.op("Or", self.op("Greater", twice, q), tie)
        return self.op("Add", quotient, self.cast(up))

    def requantize(
        self, value: str, *, multiplier: Any, shift: Any, zero_point: int, lo: int, hi: int
    ) -> str:
        """`clamp(RNE(value * M * 2^-N) + Z)`; M and N are broadcast against the value."""
        m, n = np.broadcast_arrays(np.asarray(multiplier, np.int64), np.asarray(shift, np.int64))
        if (n < 0).any():
            # Where the shift is to the left, what is beyond 32 bits will be clamped anyway.
            bound = np.where(n < 0, 1 << 31, POWERS[62])
            value = self.op("Min", self.op("Max", value, self.constant(-bound)), self.constant(bound))
        value = self.op("Mul", value, self.constant(m << np.maximum(-n, 0)))
        if (n > 0).any():
            value = self.divide(value, self.constant(POWERS[np.maximum(n, 0)]))
        return self.clamp(self.add(value, zero_point), lo, hi)

    def power(self, exponent: str) -> str:
        """2 to the power of `0 .. 62`."""
        return self.op("Gather", self.constant(POWERS), exponent)

    def root(self, value: str) -> str:
        """`floor(sqrt(value))` for `0 <= value < 2^62`: that of float64, which may be one off, put right."""
        near = self.cast(self.op("Floor", self.op("Sqrt", self.cast(value, "float64"))))
        over = self.op("Greater", self.op("Mul", near, near), value)
        near = self.op("Sub", near, self.cast(over))
        above = self.add(near, 1)
        under = self.op("LessOrEqual", self.op("Mul", above, above), value)
        return self.op("Add", near, self.cast(under))

    def look_up(self, entries: NDArray[Any], codes: str, *, bits: int, lo: int, hi: int) -> str:
        """A table's value at codes of `bits` bits, interpolated between its `2^k + 1` entries."""
        entries = entries.astype(np.int64).ravel()
        if len(entries) % 2 == 0:
            return self.clamp(self._by_segment(entries, codes), lo, hi)
        step = 1 << (bits - (len(entries) - 1).bit_length() + 1)
        position = self.add(codes, 1 << (bits - 1))
        index = self.op("Div", position, self.constant(step))
        first = self.op("Gather", self.constant(entries), index)
        if step > 1:
            fraction = self.op("Mod", position, self.constant(step))
            second = self.op("Gather", self.constant(entries), self.add(index, 1))
            rise = self.op("Mul", self.op("Sub", second, first), fraction)
            first = self.op("Add", first, self.divide(rise, self.constant(step)))
        return self.clamp(first, lo, hi)

    def _by_segment(self, table: NDArray[Any], codes: str) -> str:
        """A table's value where its steps differ by segment (docs/arithmetic.md, section 5)."""
        segments, fraction_bits = 1 << int(table[0] & 0xFF), int(table[0] >> 8)
        multiplier, offset = (int(table[i] & 0xFFFFFFFF) + (int(table[i + 1]) << 32) for i in (1, 3))
        sizes, extent = 1 << table[5 : 5 + segments], self.constant((1 << 24) // segments)
        counts = (1 << 24) // segments // sizes
        starts = np.cumsum(counts) - counts

        phase = self.op("Mod", self.add(self.multiply(codes, multiplier), offset), self.constant(1 << 40))
        position = self.op("Div", phase, self.constant(1 << 16))
        segment, rest = self.op("Div", position, extent), self.op("Mod", position, extent)
        size = self.op("Gather", self.constant(sizes), segment)
        start = self.op("Gather", self.constant(starts), segment)
        index = self.op("Add", start, self.op("Div", rest, size))
        entries = table[5 + segments :][: int(counts.sum()) + 1]
        first = self.op("Gather", self.constant(entries), index)
        second = self.op("Gather", self.constant(entries), self.add(index, 1))
        rise = self.op("Mul", self.op("Sub", second, first), self.op("Mod", rest, size))
        value = self.op("Add", first, self.divide(rise, size))
        return value if fraction_bits == 0 else self.divide(value, self.constant(1 << fraction_bits))

    def _value(self, value: str | int) -> str:
        return self.constant(value) if isinstance(value, int) else value
