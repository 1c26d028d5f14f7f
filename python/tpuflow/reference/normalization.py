"""Layer normalisation and reductions (docs/arithmetic.md, sections 10 and 11)."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.reference.rounding import Integers, clamp, exact, requantize, round_divide, round_shift

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def layer_norm(
    x: Integers,
    gamma: Integers,
    beta: Integers,
    norm: Mapping[str, Any],
    *,
    zero_point: int,
    center: bool,
) -> Integers:
    """Normalises over the last axis, then `gamma * t + beta` per channel."""
    normalized = np.empty(x.shape, object)
    for row in np.ndindex(x.shape[:-1]):
        codes = exact(x[row])
        if center:
            mean = round_divide(np.array(256 * sum(codes), object), len(codes))
            deviation = 256 * codes - mean
        else:
            deviation = 256 * (codes - zero_point)
        root, exponent = _reciprocal_square_root(sum(deviation**2) + norm["epsilon"])
        scaled = round_shift(deviation * root * norm["multiplier"], norm["shift"] + exponent)
        normalized[row] = clamp(scaled, -(2**23), 2**23 - 1)
    return requantize(normalized * exact(gamma) + exact(beta), **norm["requant"])


def _reciprocal_square_root(value: int) -> tuple[int, int]:
    """`(g, s)` with `1 / sqrt(value) ~ g * 2^-s`."""
    k = next(k for k in range(-130, 62, 2) if 2**60 <= _scale_by_power(value, k) < 2**62)
    return 2**61 // isqrt(_scale_by_power(value, k)), 61 - k // 2


def _scale_by_power(value: int, k: int) -> int:
    return value << k if k >= 0 else value >> -k


def reduce(
    kind: str, x: Integers, *, axes: Sequence[int], zero_point: int, requant: Mapping[str, Any]
) -> Integers:
    """`sum`, `sum_abs`, `sum_square`, `norm`, `max` or `min` over axes, which the result no longer has."""
    over = tuple(axes)
    if kind in {"max", "min"}:
        return exact(x.max(axis=over) if kind == "max" else x.min(axis=over))
    terms = exact(x) - zero_point
    match kind:
        case "sum":
            value = terms.sum(axis=over)
        case "sum_abs":
            value = abs(terms).sum(axis=over)
        case "sum_square":
            value = (terms**2).sum(axis=over)
        case "norm":
            squares = np.asarray((terms**2).sum(axis=over), object)
            value = np.array([isqrt(2**16 * s) for s in squares.ravel()], object).reshape(squares.shape)
        case _:
            raise ValueError(f"no reduction is called {kind}")
    return requantize(np.asarray(value, object), **requant)


def arg_max(x: Integers, *, largest: bool, select_last: bool) -> Integers:
    """Index of the largest (smallest) code of the last axis; ties go to the first, or the last."""
    codes = x.astype(np.int64) if largest else -x.astype(np.int64)
    if select_last:
        return np.asarray(x.shape[-1] - 1 - codes[..., ::-1].argmax(axis=-1))
    return np.asarray(codes.argmax(axis=-1))
