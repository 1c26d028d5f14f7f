"""Functions of two tensors (docs/arithmetic.md, section 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.reference.rounding import Integers, clamp, exact, requantize, round_divide

if TYPE_CHECKING:
    from collections.abc import Mapping


def binary(
    kind: str,
    a: Integers,
    b: Integers,
    *,
    zero_points: tuple[int, int],
    multipliers: tuple[int, int],
    requant: Mapping[str, Any],
) -> Integers:
    """`add`, `sub`, `mul`, `div`, `max`, `min` or a comparison with NumPy broadcasting, as codes."""
    p = clamp((exact(a) - zero_points[0]) * multipliers[0], -(2**31), 2**31 - 1)
    q = clamp((exact(b) - zero_points[1]) * multipliers[1], -(2**31), 2**31 - 1)
    match kind:
        case "add":
            value = p + q
        case "sub":
            value = p - q
        case "mul":
            value = p * q
        case "max":
            value = np.maximum(p, q)
        case "min":
            value = np.minimum(p, q)
        case "less":
            value = np.where(p < q, 1, 0)
        case "less_or_equal":
            value = np.where(p <= q, 1, 0)
        case "equal":
            value = np.where(p == q, 1, 0)
        case "not_equal":
            value = np.where(p != q, 1, 0)
        case "div":
            return _divide(p, q, requant)
        case _:
            raise ValueError(f"no binary operator is called {kind}")
    return requantize(value, **requant)


def _divide(p: Integers, q: Integers, requant: Mapping[str, Any]) -> Integers:
    multiplier, shift = requant["multiplier"][0], requant["shift"][0]
    lo, hi, zero_point = requant["lo"], requant["hi"], requant["zero_point"]
    p, q = np.broadcast_arrays(p, q)
    numerator = p * multiplier * 2 ** max(-shift, 0)
    denominator = q * 2 ** max(shift, 0)
    negative = denominator < 0
    numerator = np.where(negative, -numerator, numerator)
    quotient = round_divide(numerator, np.where(denominator == 0, 1, abs(denominator)))
    # Without a divisor the sign of the dividend decides, and 0/0 is real zero.
    saturated = np.where(p > 0, hi, np.where(p < 0, lo, clamp(np.asarray(zero_point), lo, hi)))
    return np.where(q == 0, saturated, clamp(quotient + zero_point, lo, hi))


def select(condition: Integers, a: Integers, b: Integers) -> Integers:
    """`a` where the condition is not 0, else `b`."""
    return np.where(condition != 0, a, b)
