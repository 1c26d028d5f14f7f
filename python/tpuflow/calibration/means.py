"""Means per channel of what linear layers read: what an average error of their weights adds to their sums.

With weights off by `dw`, a layer's sum is off by `dw * mean(x)` on average, which its bias can correct.
The sums of a batch are found with its extrema (see `crates/statistics`). Those of all batches are kept in
twice float64's precision and rounded once, to float32, so neither the order of batches nor the division into
shards shows in a mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpuflow.frontend.values import array_of, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["ChannelSums", "linear_operands"]

Array = NDArray[np.float64]


def linear_operands(graph: ir.Graph) -> dict[str, int]:
    """Name and channel axis of every value a convolution or product reads beside its constant weights."""
    found: dict[str, int] = {}
    for node in graph:
        value = node.inputs[0] if node.inputs else None
        if node.op_type not in {"Conv", "ConvTranspose", "MatMul"} or value is None or not value.name:
            continue
        shape = shape_of(value)
        if array_of(node.inputs[1]) is None or shape is None or len(shape) < 2:
            continue
        found.setdefault(value.name, len(shape) - 1 if node.op_type == "MatMul" else 1)
    return found


@dataclass
class ChannelSums:
    """Sum of the values of every channel.

    Attributes:
        axis: The axis of channels.
        count: Values per channel.
        sums: Leading parts of the sums, one per channel.
        rest: What the leading parts lack.
    """

    axis: int
    count: int = 0
    sums: Array = field(default_factory=lambda: np.zeros(0))
    rest: Array = field(default_factory=lambda: np.zeros(0))

    def add(self, sums: Array, count: int) -> None:
        """Adds the sums of an array's channels, of so many values each."""
        self._add(sums, np.zeros(len(sums)))
        self.count += count

    def merge(self, later: ChannelSums) -> None:
        """Adds what another has seen."""
        if later.count:
            self._add(later.sums, later.rest)
            self.count += later.count

    def means(self) -> tuple[float, ...] | None:
        """One float32 number per channel; None before anything was seen, or where sums leave float32."""
        if not self.count:
            return None
        with np.errstate(over="ignore"):
            found = ((self.sums + self.rest) / self.count).astype(np.float32)
        return tuple(found.tolist()) if np.all(np.isfinite(found)) else None

    def _add(self, high: Array, low: Array) -> None:
        if not self.count:
            self.sums, self.rest = high, low
            return
        # Knuth's sum of two numbers and its exact error; sums that leave float64 have no mean.
        with np.errstate(over="ignore", invalid="ignore"):
            total = self.sums + high
            part = total - self.sums
            error = (self.sums - (total - part)) + (high - part)
            rest = self.rest + low + error
            self.sums = total + rest
            self.rest = rest - (self.sums - total)
