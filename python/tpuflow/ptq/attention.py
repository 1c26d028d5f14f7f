"""Factors by channel inside attention, where they cancel in scores and pass through what shares sum up.

    scores = q k^T          q / s, k * s        s[c] = sqrt(reach of q[c] / reach of k[c])
    sums = shares v         v / t               the layer that reads the sums takes them back

So a channel reaches as far in `q` as in `k`, and no channel of either is stored with few codes for the sake
of the other; those of `v` all reach equally far. Where `v` shares a tensor with `q` and `k`, as one
projection makes all three, it is brought to their reach as a whole. Factors are used where the predicted
noise of scores and of the sums of the layers behind falls, with roundings uniform and independent (see
`equalize`). Shares are counted as if they were one each: they sum to one, so noise of `v` is none the larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpuflow.frontend.values import array_of
from tpuflow.ptq.channels import Channels, Product, Reader, at_ids
from tpuflow.ptq.noise import Columns, ColumnStatistics

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["attention_factors"]

Array = NDArray[np.float64]
Ids = NDArray[np.int64]

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that store nothing anew."""

GAIN = 0.98
"""Predicted noise must fall to this share before factors are used."""

STEPS = 16
"""Factors are whole powers of two to one over this."""

SMALLEST = 1e-3
"""Channels that reach less than this share of the largest one count as reaching so far."""

WIDEST = np.log(64)
"""Largest magnitude of a factor's logarithm."""


@dataclass(frozen=True)
class _Operand:
    """One side of a product or layer.

    Attributes:
        statistics: Of its channels.
        ids: Their numbers.
        stored: The value it is a view of.
    """

    statistics: ColumnStatistics
    ids: Ids
    stored: ir.Value


class _Attention:
    """A set of channels that meet in attention, and the noise its roundings make."""

    def __init__(
        self,
        channels: Channels,
        readers: Sequence[Reader],
        products: Sequence[Product],
        statistics: Mapping[str, ColumnStatistics],
        levels: tuple[float, float],
    ) -> None:
        self._ids, self._statistics, self._levels = channels.ids, statistics, levels
        self.columns = [each for each in map(Columns, readers) if _name(each.value) in statistics]
        self.pairs = [
            (self._operand(each.node.inputs[0]), self._operand(each.node.inputs[1])) for each in products
        ]

    def _operand(self, value: ir.Value | None) -> _Operand:
        assert value is not None
        stored = _view_source(value)
        return _Operand(self._statistics[_name(value)], self._ids[value], stored)

    def step(self, value: ir.Value, factors: Array) -> float:
        """Step of a stored value's grid."""
        found, own = self._statistics[_name(value)], at_ids(factors, self._ids[value])
        high, low = float((found.high / own).max()), float((found.low / own).min())
        return (max(high, 0.0) - min(low, 0.0)) / self._levels[0]

    def noise(self, factors: Array) -> float:
        """Noise over power, of all scores and sums."""
        total = 0.0
        for sides in self.pairs:
            powers = [side.statistics.square for side in sides]
            other = [each.swapaxes(-1, -2) for each in powers]
            signal = float(np.sum(np.broadcast_arrays(powers[0] * other[1])[0]))
            for side, across in zip(sides, (sides[1], sides[0]), strict=True):
                scaled = across.statistics.square / at_ids(factors, across.ids) ** 2
                read = float(np.broadcast_to(scaled.swapaxes(-1, -2), side.statistics.square.shape).sum())
                total += self.step(side.stored, factors) ** 2 / 12 * read / max(signal, 1e-30)
        for each in self.columns:
            assert each.value is not None
            found, ids = self._statistics[_name(each.value)], self._ids[each.value]
            own = at_ids(factors, each.ids)
            total += each.noise(found, at_ids(factors, ids), own, self._levels)
            summed = _weighted_operand(_view_source(each.value))
            if summed is not None:
                signal = float(each.squares @ np.broadcast_to(found.square.reshape(-1), each.squares.shape))
                read = float(each.squares @ own**2)
                total += self.step(_view_source(summed), factors) ** 2 / 12 * read / max(signal, 1e-30)
        return total


def attention_factors(
    channels: Channels,
    numbers: Ids,
    values: Sequence[ir.Value],
    readers: Sequence[Reader],
    products: Sequence[Product],
    statistics: Mapping[str, ColumnStatistics],
    levels: tuple[float, float],
) -> tuple[Array, float] | None:
    """Factors of a set of channels with products, and the predicted gain in dB; None where none is worth it.

    Args:
        channels: Numbers of all channels.
        numbers: Those of the set.
        values: Where they meet, as far as they were statistics.
        readers: Layers that read them.
        products: Products along whose sums they cancel.
        statistics: What was seen of values, by name.
        levels: Steps of the grids of activations, and of one sign of weights.
    """
    if any(_name(side) not in statistics for each in products for side in each.node.inputs):
        return None
    found = _Attention(channels, readers, products, statistics, levels)
    halves, paired = _halves(channels, found.pairs)
    stored = [value for value in values if value is _view_source(value) and not _is_summed_on(value)]
    free = np.setdiff1d(numbers, np.flatnonzero(paired))
    reach = _mean(
        channels.count, [(channels.ids[each], _share(_reach(statistics[_name(each)]))) for each in stored]
    )
    factors = np.ones(channels.count)
    before = found.noise(factors)
    logs = np.zeros(channels.count)
    logs[paired], logs[free] = halves[paired], reach[free]
    logs[free] += _level(channels, stored, statistics, logs, paired)
    steps = np.rint(np.clip(logs[numbers], -WIDEST, WIDEST) / np.log(2) * STEPS)
    factors[numbers] = np.exp2(steps / STEPS)
    after = found.noise(factors)
    return (factors[numbers], float(10 * np.log10(before / after))) if after < GAIN * before else None


def _halves(
    channels: Channels, pairs: Sequence[tuple[_Operand, _Operand]]
) -> tuple[Array, NDArray[np.bool_]]:
    """By number half the logarithm of a channel's reach over its counterpart's, and which have one."""
    entries = []
    paired = np.zeros(channels.count, np.bool_)
    for left, right in pairs:
        own, other = (np.log(_share(_reach(side.statistics))) for side in (left, right))
        top = [np.log(float(_reach(side.statistics).max())) for side in (left, right)]
        half = (own + top[0] - other.swapaxes(-1, -2) - top[1]) / 2
        entries.append((np.broadcast_to(left.ids, half.shape), np.exp(half)))
        paired[np.abs(left.ids)] = True
    paired[0] = False
    return _mean(channels.count, entries), paired


def _level(
    channels: Channels,
    stored: Sequence[ir.Value],
    statistics: Mapping[str, ColumnStatistics],
    logs: Array,
    paired: NDArray[np.bool_],
) -> float:
    """A factor that brings channels without a counterpart to the reach of the others of their value."""
    factors = np.exp(logs)
    for value in stored:
        ids = channels.ids[value]
        reach = np.broadcast_to(_reach(statistics[_name(value)]) / at_ids(factors, ids), ids.shape)
        with_one = paired[np.abs(ids)]
        without = ~with_one & (ids != 0)
        if with_one.any() and without.any() and reach[with_one].max() > 0 and reach[without].max() > 0:
            return float(np.log(reach[without].max() / reach[with_one].max()))
    return 0.0


def _mean(count: int, entries: Sequence[tuple[Ids, Array]]) -> Array:
    """Mean logarithms by number of what is seen by channel; of inverse numbers negative."""
    total, times = np.zeros(count), np.zeros(count)
    for ids, shares in entries:
        logs = np.broadcast_to(np.log(shares), ids.shape) * np.sign(ids)
        np.add.at(total, np.abs(ids).ravel(), logs.ravel())
        np.add.at(times, np.abs(ids).ravel(), 1.0)
    return total / np.maximum(times, 1.0)


def _reach(found: ColumnStatistics) -> Array:
    return np.maximum(-found.low, found.high)


def _share(reach: Array) -> Array:
    return np.asarray(np.maximum(reach / max(float(reach.max()), 1e-30), SMALLEST))


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def _view_source(value: ir.Value) -> ir.Value:
    """The value that a value is a view of."""
    node = value.producer()
    while node is not None and node.op_type in VIEWS and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _weighted_operand(value: ir.Value) -> ir.Value | None:
    """The operand that attention weights sum up: the second one of a product of two computed matrices."""
    node = value.producer()
    if node is None or node.op_type != "MatMul" or array_of(node.inputs[1]) is not None:
        return None
    return node.inputs[1]


def _is_summed_on(value: ir.Value) -> bool:
    """Whether a value only gets a bias: it is not stored by itself."""
    users = [node for node, _ in value.uses()]
    node = value.producer()
    product = node is not None and node.op_type == "MatMul"
    return (
        product
        and len(users) == 1
        and users[0].op_type == "Add"
        and any(array_of(each) is not None for each in users[0].inputs)
    )
