"""Functions of one variable, in float64, by ONNX operator: what tables are sampled from.

Each entry takes the node and returns a function of an array. Outside a function's domain the nearest limit
is taken (`sqrt` of a negative number is 0, `log` of one is -inf), since the codes of a quantised operand
may reach a little beyond the values that occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tpuflow.lowering.nodes import attribute, constant

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["FUNCTIONS", "PERIODS", "Function", "gate"]

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

NEAR = 2.0**-20
"""So near to a half or a whole number, relatively, is what a step rounded to float32 makes of one."""

_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    # Both branches keep the exponent negative, so that nothing overflows.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _hard_sigmoid(node: ir.Node) -> Function:
    alpha, beta = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    return lambda x: np.clip(alpha * x + beta, 0.0, 1.0)


def _elu(node: ir.Node) -> Function:
    alpha = attribute(node, "alpha", 1.0)
    return lambda x: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _selu(node: ir.Node) -> Function:
    alpha = attribute(node, "alpha", 1.67326319217681884765625)
    gamma = attribute(node, "gamma", 1.05070102214813232421875)
    return lambda x: gamma * np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _celu(node: ir.Node) -> Function:
    alpha = attribute(node, "alpha", 1.0)
    return lambda x: np.maximum(x, 0.0) + np.minimum(0.0, alpha * np.expm1(np.minimum(x, 0.0) / alpha))


def _gelu(node: ir.Node) -> Function:
    if attribute(node, "approximate", "none") == "tanh":
        return lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def _leaky_relu(node: ir.Node) -> Function:
    alpha = attribute(node, "alpha", 0.01)
    return lambda x: np.where(x >= 0, x, alpha * x)


def _thresholded_relu(node: ir.Node) -> Function:
    alpha = attribute(node, "alpha", 1.0)
    return lambda x: np.where(x > alpha, x, 0.0)


def _shrink(node: ir.Node) -> Function:
    bias, lambd = attribute(node, "bias", 0.0), attribute(node, "lambd", 0.5)
    return lambda x: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0.0))


def _swish(node: ir.Node) -> Function:
    alpha = attribute(node, "alpha", 1.0)
    return lambda x: x * _sigmoid(alpha * x)


def gate(node: ir.Node) -> Function:
    """The factor of a gated function, between 0 and 1."""
    if node.op_type == "HardSwish":
        return lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0)
    alpha = attribute(node, "alpha", 1.0)
    return lambda x: _sigmoid(alpha * x)


def _pow(node: ir.Node) -> Function:
    exponent = float(np.asarray(constant(node.inputs[1])).item())
    if exponent == int(exponent):
        return lambda x: x**exponent
    return lambda x: np.maximum(x, 0.0) ** exponent


def _rounding_function(rounding: Function) -> Function:
    """A function that cuts fractions off: codes stand for halves and wholes up to the rounding of a step."""

    def snap_to_halves(x: Array) -> Array:
        halves = np.rint(2 * x) / 2
        return rounding(np.where(np.abs(x - halves) <= NEAR * np.abs(x), halves, x))

    return snap_to_halves


def _plain(function: Function) -> Callable[[ir.Node], Function]:
    return lambda _node: function


FUNCTIONS: dict[str, Callable[[ir.Node], Function]] = {
    "Abs": _plain(np.abs),
    "Acos": _plain(lambda x: np.arccos(np.clip(x, -1.0, 1.0))),
    "Acosh": _plain(lambda x: np.arccosh(np.maximum(x, 1.0))),
    "Asin": _plain(lambda x: np.arcsin(np.clip(x, -1.0, 1.0))),
    "Asinh": _plain(np.arcsinh),
    "Atan": _plain(np.arctan),
    "Atanh": _plain(lambda x: np.arctanh(np.clip(x, -1.0, 1.0))),
    "Ceil": _plain(_rounding_function(np.ceil)),
    "Celu": _celu,
    "Cos": _plain(np.cos),
    "Cosh": _plain(np.cosh),
    "Elu": _elu,
    "Erf": _plain(_erf),
    "Exp": _plain(np.exp),
    "Floor": _plain(_rounding_function(np.floor)),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)),
    "LeakyRelu": _leaky_relu,
    "Log": _plain(lambda x: np.log(np.maximum(x, 0.0))),
    "Mish": _plain(lambda x: x * np.tanh(_softplus(x))),
    "Neg": _plain(np.negative),
    "Pow": _pow,
    "Reciprocal": _plain(lambda x: 1.0 / x),
    "Round": _plain(_rounding_function(np.rint)),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _plain(_sigmoid),
    "Sign": _plain(np.sign),
    "Silu": _plain(lambda x: x * _sigmoid(x)),
    "Sin": _plain(np.sin),
    "Sinh": _plain(np.sinh),
    "Softplus": _plain(_softplus),
    "Softsign": _plain(lambda x: x / (1.0 + np.abs(x))),
    "Sqrt": _plain(lambda x: np.sqrt(np.maximum(x, 0.0))),
    "Swish": _swish,
    "Tan": _plain(np.tan),
    "Tanh": _plain(np.tanh),
    "ThresholdedRelu": _thresholded_relu,
}
"""By operator type; `Silu` is the model-local function of that name."""

PERIODS = {"Sin": 2 * math.pi, "Cos": 2 * math.pi, "Tan": math.pi}
"""Of those that have one."""
