"""Weights, biases and scales of one layer learned together (I. Hubara et al., "AdaQuant", 2020).

    y = (sw * clip(round(w / sw + v))) (sx * (clip(round(x / sx) + zx) - zx)) + b

`v` shifts weights by fractions of a step, `sw` are steps of rows, `sx` is the operand's step, `b` a bias. All
four follow Adam on the mean squared error against the float layer. Rounding passes gradients straight through
(Y. Bengio et al., 2013), clipping stops them, and steps have those of learned step sizes (S. Esser et al.,
2020): the rounding error inside the grid, its end outside. The best of all epochs is kept, the start among
them, so the loss never rises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tpuflow.lowering.scheme import Quant

__all__ = ["Adam", "LearnedLayer", "adaquant", "stored_operand"]

Array = NDArray[np.float64]


class Adam:
    """Steps of one array of parameters."""

    def __init__(self, rate: float, shape: tuple[int, ...]) -> None:
        self._rate, self._count = rate, 0
        self._first, self._second = np.zeros(shape), np.zeros(shape)

    def step(self, gradient: Array, share: float = 1.0) -> Array:
        """The update of the parameters, at a share of the learning rate."""
        self._count += 1
        self._first += 0.1 * (gradient - self._first)
        self._second += 0.001 * (gradient**2 - self._second)
        first = self._first / (1 - 0.9**self._count)
        second = self._second / (1 - 0.999**self._count)
        return np.asarray(-share * self._rate * first / (np.sqrt(second) + 1e-12))


@dataclass(frozen=True)
class LearnedLayer:
    """A layer after learning.

    Attributes:
        codes: Of weights, `[rows, k]`.
        steps: Of rows, `[rows]`.
        bias: Added to the sums, `[rows]`.
        scale: Factor of the operand's range.
        losses: Mean squared error over that of zero sums, at the start and after every epoch.
    """

    codes: Array
    steps: Array
    bias: Array
    scale: float
    losses: tuple[float, ...]


@dataclass
class _State:
    shifts: Array
    logs: Array
    bias: Array
    scale: Array


@dataclass(frozen=True)
class _Matrix:
    """The constants of learning a matrix.

    Attributes:
        weights: `[rows, k]`.
        steps: Of each row, before any is learned.
        largest: Largest code of weights.
        grid: Of the operand; None leaves it in floats.
        power: Of the sums in float, the mean of their squares.
    """

    weights: Array
    steps: Array
    largest: int
    grid: Quant | None
    power: float

    def codes(self, state: _State) -> tuple[Array, Array]:
        """Codes and the steps of their rows."""
        steps = (self.steps * np.exp(state.logs)).astype(np.float32).astype(np.float64)
        codes = np.rint(self.weights / steps[:, np.newaxis] + state.shifts)
        return np.clip(codes, -self.largest, self.largest), steps

    def loss(self, columns: Array, expected: Array, state: _State) -> float:
        """Squared error of the sums over their power."""
        codes, steps = self.codes(state)
        z = stored_operand(columns, self.grid, float(np.exp(state.scale[0])))[0]
        error = z @ (codes * steps[:, np.newaxis]).T + state.bias - expected
        return float(np.mean(error**2)) / self.power

    def gradients(self, columns: Array, expected: Array, state: _State) -> dict[str, Array]:
        """Derivatives of the loss, straight through roundings."""
        codes, steps = self.codes(state)
        quotient = self.weights / steps[:, np.newaxis] + state.shifts
        inside = np.abs(quotient) <= self.largest + 0.5
        made = codes * steps[:, np.newaxis]
        z, slope = stored_operand(columns, self.grid, float(np.exp(state.scale[0])))
        off = 2 * (z @ made.T + state.bias - expected) / (self.power * expected.size)
        by_weight = off.T @ z
        by_step = np.where(inside, codes - self.weights / steps[:, np.newaxis], codes)
        return {
            "shifts": by_weight * steps[:, np.newaxis] * inside,
            "logs": np.asarray((by_weight * by_step).sum(axis=1) * steps),
            "bias": np.asarray(off.sum(axis=0)),
            "scale": np.array([float(np.sum((off @ made) * slope))]),
        }


def adaquant(
    weights: Array,
    columns: Array,
    largest: int,
    grid: Quant | None,
    numbers: Mapping[str, float],
    seed: int = 0,
) -> LearnedLayer:
    """Learns a matrix.

    Args:
        weights: `[rows, k]`.
        columns: What they meet in float, `[n, k]`.
        largest: Largest code of weights.
        grid: Of the operand; None leaves it in floats.
        numbers: Those of the method; a batch is a share of the columns.
        seed: Of the order of columns.
    """
    generator = np.random.default_rng(seed)
    reach = np.abs(weights).max(axis=1)
    own = np.where(reach > 0, reach, 1.0) / largest
    expected = columns @ weights.T
    matrix = _Matrix(weights, own, largest, grid, max(float(np.mean(expected**2)), 1e-30))
    state = _State(np.zeros_like(weights), np.zeros(len(weights)), np.zeros(len(weights)), np.zeros(1))
    optimizers = {
        "shifts": Adam(numbers["lr_weight"] * largest, weights.shape),
        "logs": Adam(numbers["lr_quant_param_weight"], own.shape),
        "bias": Adam(numbers["lr_bias"] * np.sqrt(matrix.power), own.shape),
        "scale": Adam(numbers["lr_quant_param_activation"] * 0.01, (1,)),
    }

    losses = [matrix.loss(columns, expected, state)]
    best, least = _copy(state), losses[0]
    per_batch = max(1, len(columns) * int(numbers["batch_size"]) // max(1, int(numbers["batches"])))
    epochs = int(numbers["epochs"])
    for epoch in range(epochs):
        share = 0.5 + 0.5 * float(np.cos(np.pi * epoch / epochs))  # rates fall to nothing
        order = generator.permutation(len(columns))
        for start in range(0, len(order), per_batch):
            part = order[start : start + per_batch]
            for name, gradient in matrix.gradients(columns[part], expected[part], state).items():
                setattr(state, name, getattr(state, name) + optimizers[name].step(gradient, share))
        losses.append(matrix.loss(columns, expected, state))
        if losses[-1] < least:
            best, least = _copy(state), losses[-1]
    codes, steps = matrix.codes(best)
    return LearnedLayer(codes, steps, best.bias, float(np.exp(best.scale[0])), tuple(losses))


def _copy(state: _State) -> _State:
    return _State(state.shifts.copy(), state.logs.copy(), state.bias.copy(), state.scale.copy())


def stored_operand(columns: Array, grid: Quant | None, factor: float) -> tuple[Array, Array]:
    """Stored operands, and what they change by with the logarithm of their step."""
    if grid is None:
        return columns, np.zeros_like(columns)
    step = grid.scale * factor
    quotient = columns / step
    whole = np.rint(quotient)
    codes = np.clip(whole, grid.lo - grid.zero_point, grid.hi - grid.zero_point)
    inside = whole == codes
    return codes * step, step * np.where(inside, codes - quotient, codes)
