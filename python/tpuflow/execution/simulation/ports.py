"""Inputs and outputs of programs and graphs: the model's arrays to stored codes and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["ProgramPort"]

Array = NDArray[Any]

FLOATS = frozenset(np.dtype(kind) for kind in (np.float16, ml_dtypes.bfloat16, np.float32))
"""Types whose elements are the model's numbers themselves."""

BLOCK = 1 << 18
"""Elements that are converted at a time."""


@dataclass(frozen=True)
class ProgramPort:
    """An input or output of a program, as the model calls it.

    Attributes:
        name: Name in the model.
        shape: Shape in the model, with its batch axis if it has one.
        dtype: Element type in the model.
        stored: Shape of the stored tensor, channels last.
        code: Element type of the stored tensor.
        scale: One number or one per channel; empty for indices and floats, which are stored as they are.
        zero_point: Code of real zero.
        permutation: Axis order of the model's tensor in the stored one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: tuple[int, ...]
    code: np.dtype[Any]
    scale: tuple[float, ...]
    zero_point: int
    permutation: tuple[int, ...]

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> ProgramPort:
        """The port a program's metadata describes."""
        stored = tuple(content["shape"])
        quant = content["quant"] or {"scale": [], "zero_point": 0}
        source = content["source"] or {
            "name": content["name"],
            "shape": stored,
            "permutation": range(len(stored)),
            "dtype": "float32" if quant["scale"] else content["dtype"],
        }
        return cls(
            source["name"],
            tuple(source["shape"]),
            np.dtype(source["dtype"]),
            stored,
            np.dtype(content["dtype"]),
            tuple(quant["scale"]),
            quant["zero_point"],
            tuple(source["permutation"]),
        )

    @property
    def own_codes(self) -> int | None:
        """Offset from the model's integers to stored codes, where they are codes themselves; else None."""
        if not self.scale or not np.issubdtype(self.dtype, np.integer):
            return None
        return int(np.iinfo(self.code).min) - int(np.iinfo(self.dtype).min)

    @property
    def finite(self) -> bool:
        """Whether it takes finite numbers alone, as codes do; floats are stored as they are."""
        return self.code not in FLOATS

    def encode(self, array: Array) -> Array:
        """Stored elements of an array in the model's shape; codes and floats of the model stay themselves.

        Raises:
            SampleError: An index does not fit the stored type, or the array has another shape, as may what
                the host computes of a model that contradicts itself.
        """
        if array.ndim != len(self.permutation) or array.size != math.prod(self.stored):
            raise SampleError(
                f'"{self.name}" has the shape {list(array.shape)}, the program takes {list(self.shape)}'
            )
        stored = self._codes_of(array.transpose(self.permutation).reshape(self.stored))
        return stored.reshape(self.stored)  # which contiguous arrays of no axes are not

    def _codes_of(self, ordered: Array) -> Array:
        """The same of an array in the order it is stored, contiguous."""
        if self.code in FLOATS:
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(ordered.astype(np.float32).astype(self.code))
        limits = np.iinfo(self.code)
        if not self.scale:
            if ordered.size and (ordered.min() < limits.min or ordered.max() > limits.max):
                raise SampleError(f'input "{self.name}": indices beyond {limits.min} to {limits.max}')
            return np.ascontiguousarray(ordered, self.code)
        if self.own_codes is not None:
            return np.ascontiguousarray(ordered.astype(np.int64) + self.own_codes, self.code)
        codes = np.empty(ordered.shape, self.code)
        for rows, own in self._row_blocks(ordered, codes):
            real = rows.astype(np.float64)
            scaled = np.where(np.isnan(real), 0.0, real) / np.asarray(self.scale, np.float32)
            own[...] = np.clip(np.rint(scaled) + self.zero_point, limits.min, limits.max)
        return codes

    def decode(self, codes: Array) -> Array:
        """The model's array of stored codes: `scale * (code - zero_point)`, or its own integers."""
        values: Array = codes
        if self.own_codes is not None:
            values = codes.astype(np.int64) - self.own_codes
        elif self.scale:
            values = self._real_numbers(codes)
        ordered = values.reshape([self.shape[axis] for axis in self.permutation])
        own = ordered.transpose(np.argsort(self.permutation))
        return np.ascontiguousarray(own, self.dtype).reshape(self.shape)

    def _real_numbers(self, codes: Array) -> Array:
        """`scale * (code - zero_point)`, in the model's type."""
        values = np.empty(codes.shape, self.dtype)
        for rows, own in self._row_blocks(codes, values):
            own[...] = (rows.astype(np.float64) - self.zero_point) * np.asarray(self.scale, np.float32)
        return values

    def _row_blocks(self, source: Array, target: Array) -> Iterator[tuple[Array, Array]]:
        """Views of two arrays of one shape, some rows of channels at a time."""
        channels = source.shape[-1] if source.ndim else 1
        rows, own = (each.reshape(-1, channels) for each in (source, target))
        step = max(1, BLOCK // max(1, channels))
        for at in range(0, len(rows), step):
            yield rows[at : at + step], own[at : at + step]

    def random_codes(self, generator: np.random.Generator) -> Array:
        """Codes drawn evenly from the stored type, floats from -1 to 1; indices are 0, as every table has."""
        if self.code in FLOATS:
            return generator.uniform(-1.0, 1.0, self.stored).astype(np.float32).astype(self.code)
        if not self.scale:
            return np.zeros(self.stored, self.code)
        limits = np.iinfo(self.code)
        return generator.integers(limits.min, limits.max, self.stored, self.code, endpoint=True)
