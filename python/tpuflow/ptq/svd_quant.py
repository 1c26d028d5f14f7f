"""Ranges of operands by their spectra, and steps of products by random operands of few singular vectors.

    mode 0   a factor of the range, so that the magnitudes of the spectrum change least
    mode 1   first the range of the operand without its weakest singular values, then mode 0
    mode 2   that range alone
    mode 3   a factor of the steps of products, evaluated by random operands of limited bandwidth

Modes, numbers and thresholds follow Compass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_factor", "denoise", "random_operands", "spectral_error"]

Array = NDArray[np.float64]

WEAKEST, STRONGEST = 1e-4, 1.56
"""Bounds of the threshold below which singular values are noise."""


def spectral_error(values: Array, other: Array) -> float:
    """Mean squared difference of the magnitudes of two spectra along the last axis."""
    return float(np.mean((np.abs(np.fft.rfft(values)) - np.abs(np.fft.rfft(other))) ** 2))


def best_factor(error: Callable[[float], float], numbers: Mapping[str, float]) -> float:
    """The factor of least error among `nsteps` from `alpha` to `beta`; 1 where none is better."""
    factors = np.linspace(numbers["alpha"], numbers["beta"], int(numbers["nsteps"]))
    best, least = 1.0, error(1.0)
    for factor in map(float, factors):
        found = error(factor)
        if found < least:
            best, least = factor, found
    return best


def denoise(matrix: Array, share: float) -> Array:
    """A matrix without its weakest singular values.

    Args:
        matrix: `[n, k]`.
        share: Those below this quantile of all are left out, if it lies within `WEAKEST .. STRONGEST`.
    """
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    threshold = float(np.clip(np.quantile(values, share), WEAKEST, STRONGEST))
    return np.asarray((u * np.where(values < threshold, 0.0, values)) @ v)


def random_operands(size: int, count: int, deviation: float, seed: int) -> Array:
    """Normal numbers with the upper half of their spectrum left out, `[count, size]`."""
    values = np.random.default_rng(seed).normal(0, deviation or 1.0, (count, size))
    spectrum = np.fft.rfft(values)
    spectrum[:, max(1, spectrum.shape[1] // 2) :] = 0
    return np.fft.irfft(spectrum, n=size)
