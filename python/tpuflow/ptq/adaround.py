"""Weights rounded up or down as learned, by gradients (M. Nagel et al., "Up or down?", 2020).

Every weight is `step * (floor(w / step) + h(v))` with a soft choice

    h(v) = clamp(1.2 sigmoid(v) - 0.1, 0, 1)

that starts at the weight itself. What is minimised is the mean squared error of the sums, a quadratic form
of the weights' errors, plus `reg * sum(1 - |2h - 1|^beta)`, which drives choices to 0 or 1 as `beta` falls;
that part is left out at first. Errors are measured in those of plain rounding, so that `reg` means the same
for every layer. A row whose choices end up worse than plain rounding keeps that; the descent of `gptq` then
reaches codes further away, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpuflow.ptq.gptq import RoundedWeights, coordinate_descent, cost, nearest, steps_by_cost

__all__ = ["Learning", "adaround"]

Array = NDArray[np.float64]

LOW, HIGH = -0.1, 1.1
"""Range the sigmoid is stretched to, so that choices reach 0 and 1."""


@dataclass(frozen=True)
class Learning:
    """How choices are learned.

    Attributes:
        iterations: Steps of Adam.
        rate: Its learning rate.
        reg: Weight of the part that drives choices apart.
        beta: Its exponent at the start and at the end, a half cosine between them.
        warm: Share of the iterations without that part.
        sweeps: Rounds of coordinate descent on what was learned; 0 for none.
    """

    iterations: int = 300
    rate: float = 0.1
    reg: float = 0.1
    beta: tuple[float, float] = (20.0, 2.0)
    warm: float = 0.2
    sweeps: int = 10

    def exponent(self, at: int) -> float:
        """Of the part that drives choices apart, at a step."""
        begin, (first, last) = self.begin, self.beta
        done = (at - begin) / max(1, self.iterations - begin)
        return float(last + 0.5 * (first - last) * (1 + np.cos(np.pi * done)))

    @property
    def begin(self) -> int:
        """The first step with that part."""
        return int(self.warm * self.iterations)


def adaround(weights: Array, damped: Array, largest: int, learning: Learning | None = None) -> RoundedWeights:
    """Rounds a matrix of weights.

    Args:
        weights: `[rows, k]`.
        damped: Covariance of what they meet, `[k, k]`, positive definite.
        largest: Codes lie within `-largest .. largest`.
        learning: How choices are learned.
    """
    learning = learning or Learning()
    steps = steps_by_cost(weights, damped, largest)
    plain = nearest(weights, steps, largest)
    scaled = weights / steps[:, np.newaxis]
    below = np.clip(np.floor(scaled), -largest, largest - 1)
    share = np.clip(scaled - below, 0.01, 0.99)
    soft = (share - LOW) / (HIGH - LOW)
    v = np.log(soft / (1 - soft))
    alone = cost(scaled - plain, damped)
    # Learning is a walk anyway: float32 takes half the time. What it ends at is evaluated in float64.
    unit = (np.maximum(alone, 1e-30)[:, np.newaxis] / weights.shape[1]).astype(np.float32)
    choices = _Rounding((below - scaled).astype(np.float32), v.astype(np.float32), 2 / unit, learning.rate)
    covariance = damped.astype(np.float32)
    for at in range(learning.iterations):
        weight = 0.0 if at < learning.begin else learning.reg * weights.shape[1]
        choices.step(covariance, learning.exponent(at), weight)
    v = choices.v
    codes = below + (v >= 0)
    behind = cost(scaled - codes, damped) > alone
    codes[behind] = plain[behind]
    return RoundedWeights(coordinate_descent(weights, damped, codes, steps, largest, learning.sweeps), steps)


CHUNK = 1 << 15
"""Elements worked on at a time: what is known of them stays in the processor's cache."""


class _Rounding:
    """Choices under way, all of one shape `[rows, k]`, by Adam.

    Every operation writes over an array that is there, part by part: arrays made anew at every step would
    cost more than what is computed in them.

    Args:
        off_grid: What is missing to the weights from below, in steps.
        v: Where choices start.
        unit: What the gradient of a row's error is multiplied by, `[rows, 1]`.
        rate: The learning rate.
    """

    def __init__(
        self, off_grid: NDArray[np.float32], v: NDArray[np.float32], unit: NDArray[np.float32], rate: float
    ) -> None:
        self.v = np.ascontiguousarray(v)
        self._off_grid, self._unit, self._rate = np.ascontiguousarray(off_grid), unit, rate
        self._first, self._second = np.zeros_like(v), np.zeros_like(v)
        self._choice, self._slope, self._error, self._gradient = (np.empty_like(v) for _ in range(4))
        self._steps = 0
        rows = max(1, CHUNK // max(1, v.shape[1]))
        self._parts = [slice(at, at + rows) for at in range(0, len(v), rows)]
        shape = (min(rows, len(v)), v.shape[1])
        self._spare, self._inside = np.empty(shape, np.float32), np.empty(shape, np.bool_)

    def step(self, covariance: NDArray[np.float32], exponent: float, weight: float) -> None:
        """One step: errors by their covariance, and `weight` times what drives choices apart."""
        self._steps += 1
        for part in self._parts:
            self._choose(part)
        np.matmul(self._error, covariance, out=self._gradient)
        for part in self._parts:
            self._move(part, exponent, weight)

    def _choose(self, part: slice) -> None:
        """Choices, the errors they mean, and the slopes of choices over `v`."""
        choice, slope = self._choice[part], self._slope[part]
        spare, inside = self._spare[: len(choice)], self._inside[: len(choice)]
        np.negative(self.v[part], out=slope)
        np.exp(slope, out=slope)
        slope += 1
        np.reciprocal(slope, out=slope)  # the sigmoid
        np.multiply(slope, HIGH - LOW, out=spare)
        spare += LOW
        np.clip(spare, 0.0, 1.0, out=choice)
        np.equal(choice, spare, out=inside)
        np.multiply(slope, slope, out=spare)
        slope -= spare
        slope *= inside
        np.add(self._off_grid[part], choice, out=self._error[part])

    def _move(self, part: slice, exponent: float, weight: float) -> None:
        """A step of Adam."""
        gradient, choice = self._gradient[part], self._choice[part]
        first, second, spare = self._first[part], self._second[part], self._spare[: len(choice)]
        gradient *= self._unit[part]
        if weight:
            choice *= 2
            choice -= 1
            np.abs(choice, out=spare)
            np.power(spare, exponent - 1, out=spare)
            np.copysign(spare, choice, out=spare)
            spare *= 2 * weight * exponent
            gradient -= spare
        gradient *= self._slope[part]
        gradient *= HIGH - LOW
        np.subtract(gradient, first, out=spare)
        spare *= 0.1
        first += spare
        np.multiply(gradient, gradient, out=gradient)
        gradient -= second
        gradient *= 0.001
        second += gradient
        np.multiply(second, 1 / (1 - 0.999**self._steps), out=gradient)
        np.sqrt(gradient, out=gradient)
        gradient += 1e-12
        np.divide(first, gradient, out=gradient)
        gradient *= self._rate / (1 - 0.9**self._steps)
        self.v[part] -= gradient
