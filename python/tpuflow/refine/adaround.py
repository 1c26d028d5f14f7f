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

import numpy as np
from numpy.typing import NDArray

from tpuflow.refine.gptq import Rounded, cost, descended, nearest, steps_by_cost

__all__ = ["adaround"]

Array = NDArray[np.float64]

LOW, HIGH = -0.1, 1.1
"""What the sigmoid is stretched to, so that choices reach 0 and 1."""


def adaround(
    weights: Array,
    damped: Array,
    largest: int,
    *,
    iterations: int = 1000,
    rate: float = 0.05,
    reg: float = 0.1,
    beta: tuple[float, float] = (20.0, 2.0),
    warm: float = 0.2,
    sweeps: int = 10,
) -> Rounded:
    """Rounds a matrix of weights.

    Args:
        weights: `[rows, k]`.
        damped: Covariance of what they meet, `[k, k]`, positive definite.
        largest: Codes lie within `-largest .. largest`.
        iterations: Steps of Adam.
        rate: Its learning rate.
        reg: Weight of the part that drives choices apart.
        beta: Its exponent at the start and at the end, a half cosine between them.
        warm: Share of the iterations without that part.
        sweeps: Rounds of coordinate descent on what was learned; 0 for none.
    """
    steps = steps_by_cost(weights, damped, largest)
    plain = nearest(weights, steps, largest)
    scaled = weights / steps[:, np.newaxis]
    below = np.clip(np.floor(scaled), -largest, largest - 1)
    share = np.clip(scaled - below, 0.01, 0.99)
    soft = (share - LOW) / (HIGH - LOW)
    v = np.log(soft / (1 - soft))
    alone = cost(scaled - plain, damped)
    # Learning is a walk anyway: float32 takes half the time. What it ends at is judged in float64.
    unit = (np.maximum(alone, 1e-30)[:, np.newaxis] / weights.shape[1]).astype(np.float32)
    off_grid, covariance = (below - scaled).astype(np.float32), damped.astype(np.float32)
    v = v.astype(np.float32)
    first, second = np.zeros_like(v), np.zeros_like(v)
    begin = int(warm * iterations)
    for at in range(iterations):
        sigmoid = 1 / (1 + np.exp(-v))
        stretched = sigmoid * (HIGH - LOW) + LOW
        choice = np.clip(stretched, 0.0, 1.0)
        gradient = 2 * (off_grid + choice) @ covariance / unit
        if at >= begin:
            done = (at - begin) / max(1, iterations - begin)
            exponent = float(beta[1] + 0.5 * (beta[0] - beta[1]) * (1 + np.cos(np.pi * done)))
            off = 2 * choice - 1
            weight = reg * weights.shape[1]
            gradient -= weight * 2 * exponent * np.sign(off) * np.abs(off) ** (exponent - 1)
        gradient *= (HIGH - LOW) * sigmoid * (1 - sigmoid) * ((stretched > 0) & (stretched < 1))
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient**2 - second)
        now = at + 1
        v -= rate * (first / (1 - 0.9**now)) / (np.sqrt(second / (1 - 0.999**now)) + 1e-12)
    codes = below + (v >= 0)
    behind = cost(scaled - codes, damped) > alone
    codes[behind] = plain[behind]
    return Rounded(descended(weights, damped, codes, steps, largest, sweeps), steps)
