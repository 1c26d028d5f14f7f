"""Statistics of channels, and the noise that roundings of a layer's operand and weights make in sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpuflow.frontend.values import array_of, attributes_of, input_at

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.ptq.channels import Reader

__all__ = ["ColumnStatistics", "Columns", "Extrema", "constant_of", "groups_of"]

Array = NDArray[np.float64]


@dataclass
class ColumnStatistics:
    """Largest magnitude and mean square of the channels of a value, in the shape of its numbers."""

    low: Array
    high: Array
    square: Array


class Extrema:
    """Extrema by channel, over all batches and added up, and sums of mean squares."""

    def __init__(self) -> None:
        self._low: Array | None = None
        self._high = self._low_sum = self._high_sum = self._squares = np.zeros(1)
        self._batches = 0

    def observe(self, low: Array, high: Array, square: Array) -> None:
        """Adds a batch."""
        self._low = low if self._low is None else np.minimum(self._low, low)
        self._high = high if not self._batches else np.maximum(self._high, high)
        self._low_sum, self._high_sum = self._low_sum + low, self._high_sum + high
        self._squares = self._squares + square
        self._batches += 1

    def join(self, later: Extrema) -> Extrema:
        """Those of the batches of both; each has seen some."""
        assert self._low is not None and later._low is not None
        found = Extrema()
        found._low, found._high = np.minimum(self._low, later._low), np.maximum(self._high, later._high)
        found._low_sum, found._high_sum = self._low_sum + later._low_sum, self._high_sum + later._high_sum
        found._squares, found._batches = self._squares + later._squares, self._batches + later._batches
        return found

    def statistics(self, mild: float) -> ColumnStatistics:
        """Reach between that of all batches and their mean: the largest of many is set by one of them.

        Args:
            mild: Weight of the mean.
        """
        assert self._low is not None
        low, high = (
            _between(whole, total / self._batches, mild)
            for whole, total in ((-self._low, -self._low_sum), (self._high, self._high_sum))
        )
        return ColumnStatistics(-low, high, self._squares / self._batches)


def _between(largest: Array, mean: Array, mild: float) -> Array:
    """A weighted geometric mean of what is positive, zero else."""
    return np.asarray(np.maximum(largest, 0.0) ** (1 - mild) * np.maximum(mean, 0.0) ** mild)


class Columns:
    """Weights of a reader by its operand's channels: largest magnitude and sum of squares of their taps."""

    def __init__(self, reader: Reader) -> None:
        node = reader.node
        weights = constant_of(node, 1)
        groups = groups_of(node)
        if node.op_type == "MatMul":
            matrix = np.abs(weights.T)[np.newaxis, :, :, np.newaxis]
        else:
            rows, inner = weights.shape[:2]
            matrix = np.abs(weights).reshape(groups, rows // groups, inner, -1)
        self.groups, self.taps = groups, matrix.shape[-1]
        self.largest = matrix.max(axis=3)  # [groups, rows, channels of a group]
        self.squares = (matrix**2).sum(axis=(1, 3), dtype=np.float64).reshape(-1)  # [channels]
        self.ids = reader.ids
        self.value = node.inputs[0]

    def reach(self) -> Array:
        """Largest weight that reads each channel, `[channels]`."""
        return np.asarray(self.largest.max(axis=1).reshape(-1), np.float64)

    def noise(
        self, statistics: ColumnStatistics, own: Array, factors: Array, levels: tuple[float, float]
    ) -> float:
        """Noise of the sums over their power, from roundings of operand and weights.

        Args:
            statistics: Of the operand.
            own: Factors in the shape of the operand's numbers.
            factors: Of the operand's channels, `[channels]`.
            levels: Steps of the grids of activations, and of one sign of weights.
        """
        power = np.broadcast_to(statistics.square.reshape(-1), self.squares.shape)
        low, high = float((statistics.low / own).min()), float((statistics.high / own).max())
        step = (max(high, 0.0) - min(low, 0.0)) / levels[0]
        signal = float(self.squares @ power)
        operand = float(self.squares @ factors**2) * step**2 / 12
        grouped = factors.reshape(self.groups, 1, -1)
        steps = (self.largest * grouped).max(axis=2) / levels[1]  # [groups, rows]
        spent = (power / factors**2).reshape(self.groups, -1).sum(axis=1) * self.taps
        weights = float((steps**2 / 12).sum(axis=1) @ spent)
        return (operand + weights) / max(signal, 1e-30)


def constant_of(node: ir.Node, place: int) -> NDArray[np.float32]:
    """The constant a node reads at a place."""
    array = array_of(input_at(node, place))
    assert array is not None
    return array


def groups_of(node: ir.Node) -> int:
    """Groups of a convolution."""
    groups = attributes_of(node).get("group", 1)
    assert isinstance(groups, int)
    return groups
