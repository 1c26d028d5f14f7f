"""Scales of weights and operands searched in turns (D. Wu et al., "EasyQuant", 2020).

With operands as they are stored, steps of weights are tried within `alpha .. beta` times their own, `ngroups`
groups of rows one after the other; then, with weights as they are stored, ranges of operands. What is made
largest is the cosine between a layer's sums in float and quantised; of several readers of one operand, their
mean. A result that does not raise it is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpuflow.calibration import Range, Ranges
from tpuflow.ptq.operands import Operand, fake_quantize, operand_grid

if TYPE_CHECKING:
    from tpuflow.config import Config
    from tpuflow.ptq.layers import LinearLayer

__all__ = ["WeightSearch", "cosine", "searched_operand", "searched_weights", "with_range", "with_variances"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WeightSearch:
    """Result of the search for a layer's weights.

    Attributes:
        codes: `[groups, rows, k]`.
        steps: `[groups, rows]`.
        before: Cosine with the steps that reach the largest weights.
        after: Cosine now, never lower.
    """

    codes: Array
    steps: Array
    before: float
    after: float


def cosine(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Of two arrays of one shape, in float64; 1 where both are zero."""
    left, right = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    norms = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / norms if norms else float(not left.any() and not right.any())


def _sums(weights: NDArray[np.floating], columns: NDArray[np.floating]) -> NDArray[np.floating]:
    """`[groups, columns, rows]`."""
    return np.asarray(columns @ weights.transpose(0, 2, 1).astype(columns.dtype))


def _single(values: Array) -> Array:
    """The nearest float32 numbers."""
    return values.astype(np.float32).astype(np.float64)


def round_to_codes(weights: Array, steps: Array, largest: int) -> Array:
    """Codes of weights, `[groups, rows, k]`; steps `[groups, rows]`."""
    return np.clip(np.rint(weights / steps[:, :, np.newaxis]), -largest, largest)


def with_variances(
    weights: Array, x: NDArray[np.float32], z: NDArray[np.float32], largest: int
) -> tuple[Array, Array]:
    """Weights on grids that give every row's sums the variance they have in float, and their steps.

    Args:
        weights: `[groups, rows, k]`.
        x: What they meet in float, `[groups, columns, k]`.
        z: The same as it is stored.
        largest: The largest code.
    """
    reach = np.abs(weights).max(axis=2)
    steps = _single(np.where(reach > 0, reach, 1.0) / largest)
    codes = round_to_codes(weights, steps, largest)
    wanted = _sums(weights, x).astype(np.float64).var(axis=1)
    found = _sums(codes * steps[:, :, np.newaxis], z).astype(np.float64).var(axis=1)
    known = (wanted > 0) & (found > 0)
    steps = _single(steps * np.sqrt(np.where(known, wanted, 1.0) / np.where(known, found, 1.0)))
    return codes * steps[:, :, np.newaxis], steps


def searched_weights(
    weights: Array,
    x: NDArray[np.float32],
    z: NDArray[np.float32],
    largest: int,
    numbers: Mapping[str, float],
) -> WeightSearch:
    """Steps of weights, group of rows by group.

    Args:
        weights: `[groups, rows, k]`.
        x: What they meet in float, `[groups, columns, k]`.
        z: The same as it is stored.
        largest: Largest code.
        numbers: Those of the method.
    """
    reach = np.abs(weights).max(axis=2)
    own = _single(np.where(reach > 0, reach, 1.0) / largest)
    expected = _sums(weights, x)
    steps = own.copy()
    rows = weights.shape[1]
    chunks = int(numbers["ngroups"]) or rows
    size = -(-rows // min(chunks, rows))
    before = cosine(expected, _sums(round_to_codes(weights, own, largest) * own[:, :, np.newaxis], z))
    for start in range(0, rows, size):
        part = slice(start, start + size)
        wanted, kept = expected[:, :, part], weights[:, part]
        best = -np.inf
        for factor in (1.0, *np.linspace(numbers["alpha"], numbers["beta"], int(numbers["nsteps"]))):
            tried = _single(own[:, part] * factor)
            made = round_to_codes(kept, tried, largest) * tried[:, :, np.newaxis]
            found = cosine(wanted, _sums(made, z))
            if found > best:
                best, steps[:, part] = found, tried
    codes = round_to_codes(weights, steps, largest)
    after = cosine(expected, _sums(codes * steps[:, :, np.newaxis], z))
    if after <= before:
        return WeightSearch(round_to_codes(weights, own, largest), own, before, before)
    return WeightSearch(codes, steps, before, after)


def searched_operand(
    operand: Operand,
    quantized: Mapping[LinearLayer, Array],
    ranges: Ranges,
    config: Config,
    numbers: Mapping[str, float],
) -> float:
    """The factor of an operand's range, 1 where none is better.

    Args:
        operand: With its readers and what they meet.
        quantized: Weights as they are stored, by layer.
        ranges: Of all values.
        config: How values are stored.
        numbers: Those of the method.
    """
    expected = {layer: _sums(layer.weights, x) for layer, x in operand.layers}
    best, chosen = -np.inf, 1.0
    for factor in (1.0, *np.linspace(numbers["alpha"], numbers["beta"], int(numbers["nsteps"]))):
        grid = operand_grid(operand.name, with_range(ranges, operand.name, float(factor)), config)
        found = [
            cosine(expected[layer], _sums(quantized[layer], fake_quantize(x, grid)))
            for layer, x in operand.layers
        ]
        if np.mean(found) > best:
            best, chosen = float(np.mean(found)), float(factor)
    return chosen


def with_range(ranges: Ranges, name: str, factor: float) -> Ranges:
    """Ranges with one of them widened or narrowed."""
    if factor == 1:
        return ranges
    low = min(low for low, _ in ranges.tensors[name].pairs)
    high = max(high for _, high in ranges.tensors[name].pairs)
    changed = Range(low * factor, high * factor)
    return Ranges({**ranges.tensors, name: changed}, ranges.samples, ranges.strategy, ranges.means)
