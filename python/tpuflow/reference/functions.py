"""Functions of one variable in float64 from IEEE operations alone (docs/arithmetic.md, section 16).

Every line is one operation on float64 arrays, so NumPy on any processor gives the same bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Array = npt.NDArray[np.float64]

LOG2_HIGH, LOG2_LOW = 6.931471803691238e-1, 1.9082149292705877e-10
HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
LOG2_E, TWO_OVER_PI, TWO_OVER_ROOT_PI = 1.4426950408889634, 0.6366197723675814, 1.1283791670955126
SINE_LIMIT = 2.0**32
ERF_TERMS = 120


def maximum(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The larger; NaN if either is, -0 below +0."""
    zero = np.where(np.signbit(a) & np.signbit(b), -0.0, 0.0)
    value = np.where((a == 0) & (b == 0), zero, np.where(a > b, a, b))
    return np.asarray(np.where(np.isnan(a) | np.isnan(b), np.nan, value), np.result_type(a, b))


def minimum(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The smaller; NaN if either is, -0 below +0."""
    return -maximum(-a, -b)


def _horner(x: Array, coefficients: Iterable[float]) -> Array:
    """The highest coefficient first."""
    first, *rest = coefficients
    total = np.full_like(x, first)
    for coefficient in rest:
        total = total * x + coefficient
    return total


def _power(x: Array) -> tuple[Array, Array]:
    """`2^n` and `e^r - 1` for `x = n log 2 + r`."""
    x = np.where(x > 709.0, 709.0, x)
    x = np.where(x < -708.0, -708.0, x)
    n = np.rint(x * LOG2_E)
    r = (x - n * LOG2_HIGH) - n * LOG2_LOW
    series = _horner(r, [1.0 / math.factorial(i) for i in range(13, 1, -1)])
    return np.ldexp(1.0, np.nan_to_num(n).astype(np.int32)), series * r * r + r


def exp(x: Array) -> Array:
    """`e^x`; at most `e^709`, at least `e^-708`."""
    scale, rest = _power(x)
    return (rest + 1.0) * scale


def exp_m1(x: Array) -> Array:
    """`e^x - 1`."""
    scale, rest = _power(x)
    return rest * scale + (scale - 1.0)


def log(x: Array) -> Array:
    """Natural logarithm."""
    fraction, exponent = np.frexp(x)
    m, e = fraction * 2.0, exponent.astype(np.float64) - 1.0
    above = m > math.sqrt(2.0)
    m, e = np.where(above, m * 0.5, m), np.where(above, e + 1.0, e)
    s = (m - 1.0) / ((m - 1.0) + 2.0)
    z = s * s
    series = _horner(z, [1.0 / odd for odd in range(21, 1, -2)])
    value = e * LOG2_HIGH + (e * LOG2_LOW + ((s + s) + (s + s) * z * series))
    value = np.where(x == 0.0, -np.inf, np.where(x < 0.0, np.nan, value))
    return np.where(x < np.inf, value, x)


def log_1p(x: Array) -> Array:
    """`log(1 + x)`."""
    u = x + 1.0
    value = np.where(u == 1.0, x, log(u) * (x / (u - 1.0)))
    return np.where(x < np.inf, value, x)


def _quarter(x: Array) -> tuple[Array, Array, Array]:
    """Sine and cosine of `r`, and `n modulo 4`, for `x = n pi/2 + r`."""
    x = np.where(np.abs(x) < SINE_LIMIT, x, np.nan)
    n = np.rint(x * TWO_OVER_PI)
    r = ((x - n * HALF_PI[0]) - n * HALF_PI[1]) - n * HALF_PI[2]
    z = r * r
    sine = _horner(z, [(-1.0) ** (i // 2) / math.factorial(i) for i in range(17, 1, -2)])
    cosine = _horner(z, [(-1.0) ** (i // 2) / math.factorial(i) for i in range(18, 0, -2)])
    return r * z * sine + r, z * cosine + 1.0, np.mod(n, 4.0)


def sin(x: Array) -> Array:
    """Sine."""
    sine, cosine, n = _quarter(x)
    value = np.where(n % 2.0 == 1.0, cosine, sine)
    return np.where(n >= 2.0, -value, value)


def cos(x: Array) -> Array:
    """Cosine."""
    sine, cosine, n = _quarter(x)
    value = np.where(n % 2.0 == 1.0, sine, cosine)
    return np.where((n == 1.0) | (n == 2.0), -value, value)


def atan(x: Array) -> Array:
    """Arc tangent."""
    a = np.abs(x)
    above = a > 1.0
    a = np.where(above, 1.0 / a, a)
    half = a / (1.0 + np.sqrt(1.0 + a * a))
    t = half / (1.0 + np.sqrt(1.0 + half * half))
    z = t * t
    series = _horner(z, [(-1.0) ** (odd // 2) / odd for odd in range(25, 1, -2)])
    value = 4.0 * (t * z * series + t)
    return np.copysign(np.where(above, math.pi / 2 - value, value), x)


def erf(x: Array) -> Array:
    """Error function."""
    a = np.abs(x)
    a = np.where(a > 6.0, 6.0, a)
    twice = 2.0 * (a * a)
    total = np.ones_like(x)
    for n in range(ERF_TERMS, 0, -1):
        total = total * (twice * (1.0 / (2 * n + 1))) + 1.0
    value = TWO_OVER_ROOT_PI * a * exp(-(a * a)) * total
    return np.copysign(np.where((value > 1.0) | (a >= 6.0), 1.0, value), x)


def _choose(condition: Array, a: Array, b: Array) -> Array:
    return np.where(np.isnan(condition), np.nan, np.where(condition < 0.0, a, b))


PRIMITIVES: Mapping[str, Callable[..., Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "exp": exp,
    "expm1": exp_m1,
    "log": log,
    "log1p": log_1p,
    "sin": sin,
    "cos": cos,
    "atan": atan,
    "erf": erf,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": maximum,
    "min": minimum,
    "choose": _choose,
}


def evaluate(function: Sequence[Mapping[str, Any]], x: Array) -> Array:
    """A function of the graph at `x`: value 0 is `x`, each step makes the next, the last is the result."""
    values = [x]
    with np.errstate(all="ignore"):
        for step in function:
            ((name, operands),) = step.items()
            if name == "constant":
                values.append(np.full_like(x, float(operands)))
                continue
            chosen = operands if isinstance(operands, list) else [operands]
            values.append(PRIMITIVES[name](*(values[i] for i in chosen)))
    return values[-1]
