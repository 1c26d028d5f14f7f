"""Functions of one variable as the straight-line programs that float operators evaluate, by ONNX operator.

A program is a list of steps over few primitives (docs/arithmetic.md, section 16): value 0 is the operand,
every step makes the next value from earlier ones, the last is the result. Here each function is written as
ordinary arithmetic on a `Symbol`, which records the steps. Formulas are chosen so that nothing cancels where
the result is small: `expm1` and `log1p` instead of differences with 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.lowering.nodes import attribute, constant

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.lowering.operators import StepFields

__all__ = ["EXPRESSIONS", "Expression", "Program", "program"]

Program = list["StepFields"]
"""The form the graph takes."""


@dataclass(frozen=True)
class Symbol:
    """A value of a program being recorded.

    Attributes:
        steps: The program so far, shared by all its values.
        index: Which value this is.
    """

    steps: Program
    index: int

    def step(self, name: str, *others: Symbol | float) -> Symbol:
        """A primitive of this value and further ones."""
        operands = [self.index, *(self.constant(other).index for other in others)]
        return self._append({name: operands if others else self.index})

    def constant(self, value: Symbol | float) -> Symbol:
        """A number as a value of the same program."""
        return value if isinstance(value, Symbol) else self._append({"constant": float(value)})

    def _append(self, step: StepFields) -> Symbol:
        if step not in self.steps:
            self.steps.append(step)
        return Symbol(self.steps, self.steps.index(step) + 1)

    def __add__(self, other: Symbol | float) -> Symbol:
        return self.step("add", other)

    def __radd__(self, other: float) -> Symbol:
        return self.constant(other) + self

    def __sub__(self, other: Symbol | float) -> Symbol:
        return self.step("sub", other)

    def __rsub__(self, other: float) -> Symbol:
        return self.constant(other) - self

    def __mul__(self, other: Symbol | float) -> Symbol:
        return self.step("mul", other)

    def __rmul__(self, other: float) -> Symbol:
        return self.constant(other) * self

    def __truediv__(self, other: Symbol | float) -> Symbol:
        return self.step("div", other)

    def __rtruediv__(self, other: float) -> Symbol:
        return self.constant(other) / self

    def __neg__(self) -> Symbol:
        return self.step("neg")


Expression = Callable[[Symbol], Symbol]


def program(expression: Expression) -> Program:
    """The steps of an expression."""
    steps: Program = []
    result = expression(Symbol(steps, 0))
    if not steps or result.index != len(steps):  # the result is the last value; adding -0 changes nothing
        steps.append({"add": [result.index, result.constant(-0.0).index]})
    return steps


def _exp(x: Symbol) -> Symbol:
    return x.step("exp")


def _expm1(x: Symbol) -> Symbol:
    return x.step("expm1")


def _log1p(x: Symbol) -> Symbol:
    return x.step("log1p")


def _sqrt(x: Symbol) -> Symbol:
    return x.step("sqrt")


def _abs(x: Symbol) -> Symbol:
    return x.step("abs")


def _positive(x: Symbol) -> Symbol:
    return x.step("max", 0.0)


def _negative(x: Symbol) -> Symbol:
    return x.step("min", 0.0)


def _clip(x: Symbol, low: float, high: float) -> Symbol:
    return x.step("max", low).step("min", high)


def _where_negative(condition: Symbol, a: Symbol | float, b: Symbol | float) -> Symbol:
    return condition.step("choose", a, b)


def _odd(x: Symbol, of_magnitude: Expression) -> Symbol:
    value = of_magnitude(_abs(x))
    return _where_negative(x, -value, value)


def _sigmoid(x: Symbol) -> Symbol:
    return 1.0 / (1.0 + _exp(-x))


def _tanh(x: Symbol) -> Symbol:
    doubled = _expm1(2.0 * x)
    return doubled / (doubled + 2.0)


def _softplus(x: Symbol) -> Symbol:
    return _positive(x) + _log1p(_exp(-_abs(x)))


def _sinh(a: Symbol) -> Symbol:
    t = _expm1(a)
    return 0.5 * (t + t / (t + 1.0))


def _cosh(x: Symbol) -> Symbol:
    e = _exp(_abs(x))
    return 0.5 * (e + 1.0 / e)


def _acosh(x: Symbol) -> Symbol:
    t = x - 1.0
    return _log1p(t + _sqrt(t * (t + 2.0)))


def _hard_sigmoid(node: ir.Node) -> Expression:
    alpha, beta = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    return lambda x: _clip(alpha * x + beta, 0.0, 1.0)


def _elu(node: ir.Node) -> Expression:
    alpha = attribute(node, "alpha", 1.0)
    return lambda x: _positive(x) + alpha * _expm1(_negative(x))


def _selu(node: ir.Node) -> Expression:
    alpha = attribute(node, "alpha", 1.67326319217681884765625)
    gamma = attribute(node, "gamma", 1.05070102214813232421875)
    return lambda x: gamma * (_positive(x) + alpha * _expm1(_negative(x)))


def _celu(node: ir.Node) -> Expression:
    alpha = attribute(node, "alpha", 1.0)
    return lambda x: _positive(x) + alpha * _expm1(_negative(x) / alpha)


def _gelu(node: ir.Node) -> Expression:
    if attribute(node, "approximate", "none") == "tanh":
        scale = math.sqrt(2.0 / math.pi)
        return lambda x: 0.5 * x * (1.0 + _tanh(scale * (x + 0.044715 * x * x * x)))
    return lambda x: 0.5 * x * (1.0 + (x / math.sqrt(2.0)).step("erf"))


def _leaky_relu(node: ir.Node) -> Expression:
    alpha = attribute(node, "alpha", 0.01)
    return lambda x: _where_negative(x, alpha * x, x)


def _thresholded_relu(node: ir.Node) -> Expression:
    alpha = attribute(node, "alpha", 1.0)
    return lambda x: _where_negative(alpha - x, x, 0.0)


def _shrink(node: ir.Node) -> Expression:
    bias, lambd = attribute(node, "bias", 0.0), attribute(node, "lambd", 0.5)
    return lambda x: _where_negative(x + lambd, x + bias, _where_negative(lambd - x, x - bias, 0.0))


def _swish(node: ir.Node) -> Expression:
    alpha = attribute(node, "alpha", 1.0)
    return lambda x: x / (1.0 + _exp(-(alpha * x)))


LARGEST_POWER = 16
"""Whole exponents up to this are products; others go through the logarithm."""


def _pow(node: ir.Node) -> Expression:
    exponent = float(np.asarray(constant(node.inputs[1])).item())
    if exponent == 0.5:
        return _sqrt
    if exponent != int(exponent):
        return lambda x: _exp(exponent * x.step("log"))
    if abs(exponent) > LARGEST_POWER:
        even: Expression = lambda x: _exp(exponent * _abs(x).step("log"))  # noqa: E731
        return even if exponent % 2 == 0 else lambda x: _odd(x, even)
    return lambda x: _product(x, int(exponent))


def _product(x: Symbol, exponent: int) -> Symbol:
    if exponent < 0:
        return 1.0 / _product(x, -exponent)
    if exponent == 0:
        return x.constant(1.0)
    half = _product(x, exponent // 2) if exponent > 1 else None
    if half is None:
        return x
    return half * half if exponent % 2 == 0 else half * half * x


def _plain(expression: Expression) -> Callable[[ir.Node], Expression]:
    return lambda _node: expression


def _primitive(name: str) -> Callable[[ir.Node], Expression]:
    return _plain(lambda x: x.step(name))


EXPRESSIONS: dict[str, Callable[[ir.Node], Expression]] = {
    "Abs": _primitive("abs"),
    "Acos": _plain(lambda x: 2.0 * _sqrt((1.0 - x) / (1.0 + x)).step("atan")),
    "Acosh": _plain(_acosh),
    "Asin": _plain(lambda x: (x / _sqrt((1.0 - x) * (1.0 + x))).step("atan")),
    "Asinh": _plain(lambda x: _odd(x, lambda a: _log1p(a + a * a / (1.0 + _sqrt(1.0 + a * a))))),
    "Atan": _primitive("atan"),
    "Atanh": _plain(lambda x: 0.5 * _log1p(2.0 * x / (1.0 - x))),
    "Ceil": _primitive("ceil"),
    "Celu": _celu,
    "Cos": _primitive("cos"),
    "Cosh": _plain(_cosh),
    "Elu": _elu,
    "Erf": _primitive("erf"),
    "Exp": _primitive("exp"),
    "Floor": _primitive("floor"),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(lambda x: x * _clip(x / 6.0 + 0.5, 0.0, 1.0)),
    "LeakyRelu": _leaky_relu,
    "Log": _primitive("log"),
    "Mish": _plain(lambda x: x * _tanh(_softplus(x))),
    "Neg": _primitive("neg"),
    "Pow": _pow,
    "Reciprocal": _plain(lambda x: 1.0 / x),
    "Round": _primitive("round"),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _plain(_sigmoid),
    "Sign": _plain(lambda x: _where_negative(x, -1.0, _where_negative(-x, 1.0, 0.0))),
    "Silu": _plain(lambda x: x / (1.0 + _exp(-x))),
    "Sin": _primitive("sin"),
    "Sinh": _plain(lambda x: _odd(x, _sinh)),
    "Softplus": _plain(_softplus),
    "Softsign": _plain(lambda x: x / (1.0 + _abs(x))),
    "Sqrt": _primitive("sqrt"),
    "Swish": _swish,
    "Tan": _plain(lambda x: x.step("sin") / x.step("cos")),
    "Tanh": _plain(_tanh),
    "ThresholdedRelu": _thresholded_relu,
}
"""By operator type; the same operators as `functions.FUNCTIONS`."""
