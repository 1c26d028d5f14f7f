"""Weights rounded so that a layer's sums change least, rather than each weight by itself.

With `C` the covariance of what a row of weights `w` meets, rounded weights `q` cost `(w - q) C (w - q)^T`
(the mean of the error goes into the bias). Columns are rounded one after the other, the most important first,
and what is lost with each is made up for by those still to come (E. Frantar et al., "GPTQ", 2022). Then every
column in turn takes the best code given all others, until none moves or the sweeps are over (cyclic
coordinate descent, as in K. Behdin et al., "QuantEase", 2023), which never makes the cost larger.

The step of a row is chosen among fractions of the one that reaches its largest weight, by the same cost with
plain rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["RoundedWeights", "better", "coordinate_descent", "cost", "gptq", "steps_by_cost"]

Array = NDArray[np.float64]

FRACTIONS = np.linspace(1.0, 0.5, 11)
"""Fractions of the step that reaches the largest weight."""


@dataclass(frozen=True)
class RoundedWeights:
    """Weights on a grid: `codes * steps`.

    Attributes:
        codes: `[rows, k]`, whole numbers.
        steps: `[rows]`, float32 values.
    """

    codes: Array
    steps: Array

    @property
    def values(self) -> Array:
        """The weights, `[rows, k]`."""
        return self.codes * self.steps[:, np.newaxis]


def cost(difference: Array, covariance: Array) -> Array:
    """Mean squared error of each row's sums, `[rows]`."""
    return np.asarray(np.einsum("rk,rk->r", difference @ covariance, difference))


def nearest(weights: Array, steps: Array, largest: int) -> Array:
    """Codes of weights, each rounded by itself; `steps` `[rows]`, codes from `-largest` to `largest`."""
    return np.clip(np.rint(weights / steps[:, np.newaxis]), -largest, largest)


def steps_by_cost(weights: Array, covariance: Array, largest: int) -> Array:
    """The step of every row, `[rows]`: that of least cost among `FRACTIONS` of what reaches all weights."""
    reach = np.abs(weights).max(axis=1)
    whole = np.where(reach > 0, reach, 1.0) / largest
    best, least = whole, np.full(len(weights), np.inf)
    for fraction in FRACTIONS:
        steps = (whole * fraction).astype(np.float32).astype(np.float64)
        found = cost(weights - nearest(weights, steps, largest) * steps[:, np.newaxis], covariance)
        better = found < least
        best, least = np.where(better, steps, best), np.where(better, found, least)
    return best.astype(np.float32).astype(np.float64)


def gptq(
    weights: Array, damped: Array, largest: int, *, block: int = 128, sweeps: int = 10
) -> RoundedWeights:
    """Rounds a matrix of weights.

    Args:
        weights: `[rows, k]`.
        damped: Covariance of what they meet, `[k, k]`, positive definite.
        largest: Codes lie within `-largest .. largest`.
        block: Columns between two updates of all later ones.
        sweeps: Rounds of coordinate descent at most; 0 for none.
    """
    size = weights.shape[1]
    steps = steps_by_cost(weights, damped, largest)
    order = np.argsort(-np.diag(damped), kind="stable")
    inverse = np.linalg.inv(damped[np.ix_(order, order)])
    factor = np.linalg.cholesky((inverse + inverse.T) / 2).T  # upper triangular
    left = weights[:, order].copy()
    codes = np.empty_like(left)
    for start in range(0, size, block):
        end = min(start + block, size)
        errors = np.empty((len(left), end - start))
        for at in range(start, end):
            codes[:, at] = np.clip(np.rint(left[:, at] / steps), -largest, largest)
            errors[:, at - start] = (left[:, at] - codes[:, at] * steps) / factor[at, at]
            left[:, at:end] -= np.outer(errors[:, at - start], factor[at, at:end])
        left[:, end:] -= errors @ factor[start:end, end:]
    found = np.empty_like(codes)
    found[:, order] = codes
    # The better of both starts, row by row: rounding by itself is never far behind.
    plain = nearest(weights, steps, largest)
    behind = cost(weights - found * steps[:, np.newaxis], damped) > cost(
        weights - plain * steps[:, np.newaxis], damped
    )
    found[behind] = plain[behind]
    return RoundedWeights(coordinate_descent(weights, damped, found, steps, largest, sweeps), steps)


def better(
    weights: Array, covariance: Array, first: RoundedWeights, second: RoundedWeights
) -> RoundedWeights:
    """Row by row the one of less cost, the first where both cost the same."""
    costs = [cost(weights - each.values, covariance) for each in (first, second)]
    chosen = costs[1] < costs[0]
    codes = np.where(chosen[:, np.newaxis], second.codes, first.codes)
    return RoundedWeights(codes, np.where(chosen, second.steps, first.steps))


def coordinate_descent(
    weights: Array, covariance: Array, codes: Array, steps: Array, largest: int, sweeps: int
) -> Array:
    """Codes after coordinate descent from `codes`: each in turn the best given the others."""
    codes = codes.copy()
    slope = (weights - codes * steps[:, np.newaxis]) @ covariance
    variance = np.diag(covariance)
    for _ in range(sweeps):
        moved = False
        for at in np.flatnonzero(variance > 0):
            wish = np.clip(np.rint(codes[:, at] + slope[:, at] / (variance[at] * steps)), -largest, largest)
            change = wish - codes[:, at]
            rows = np.flatnonzero(change)
            if len(rows):
                slope[rows] -= np.outer(change[rows] * steps[rows], covariance[at])
                codes[rows, at] = wish[rows]
                moved = True
        if not moved:
            break
    return codes
