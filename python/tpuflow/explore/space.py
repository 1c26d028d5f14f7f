"""What may be chosen: fields of a machine, batch and precision, within constraints."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpuflow.errors import MachineError, TpuflowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuflow.compiler.machine import Machine

__all__ = ["ExploreError", "Point", "Space", "derived_fields"]

Value = int | float | str
Point = Mapping[str, Value]

BATCH, PRECISION = "batch", "precision"
STANDING = ("array.size", "cache.bytes", "ewp_cache.bytes")
"""Fields that stand for others, see `tpuflow.compiler.Machine.replace`."""

MOST_POINTS = 1_000_000

REASONS = {
    "array.rows": "array.size, or the length of a word",
    "array.columns": "array.size, or that of a square array",
    "pdp.lanes": "a word is one row vector",
    "cache.word_bytes": "a word is one row vector",
    "ewp.lanes": "keeps its share of the word",
    "cache.words": "cache.bytes over banks and bytes of a word",
    "ewp_cache.words": "ewp_cache.bytes over banks and bytes of a word",
}
"""Why a field that was not stated has another value than the base machine."""


class ExploreError(TpuflowError):
    """A study makes no sense, or cannot be made as it was asked for."""


@dataclass(frozen=True)
class Space:
    """The space that a study chooses from.

    Attributes:
        fields: Values by field: parameters of the machine, `batch`, `precision`.
        constraints: Expressions over fields of the machine that every point fulfils, such as
            `cache.bytes >= 8192 * array.size`.
    """

    fields: Mapping[str, tuple[Value, ...]]
    constraints: tuple[str, ...] = ()
    _parsed: tuple[ast.expr, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        """Checks what can be checked without a machine.

        Raises:
            ExploreError: A field has no or equal values, a constraint is no expression, there are no points.
        """
        for name, values in self.fields.items():
            if not values:
                raise ExploreError(f"space: {name} has no values")
            if len(set(values)) < len(values):
                raise ExploreError(f"space: {name} has a value twice")
            if name == PRECISION and not all(isinstance(value, str) for value in values):
                raise ExploreError(f"space: {name} {values[0]}: write names of element types, such as int8")
            if name == BATCH and not all(isinstance(value, int) and value > 0 for value in values):
                raise ExploreError(f"space: {name}: write positive whole numbers")
        if not self.fields:
            raise ExploreError("space: no field varies: there are no points to explore")
        if self.size > MOST_POINTS:
            raise ExploreError(
                f"space: {self.size:,} points, at most {MOST_POINTS:,} are possible: state fewer values"
            )
        object.__setattr__(self, "_parsed", tuple(_parse(text) for text in self.constraints))

    @property
    def size(self) -> int:
        """How many points there are before constraints."""
        count = 1
        for values in self.fields.values():
            count *= len(values)
        return count

    def points(self) -> Iterator[Point]:
        """All of them, the last field fastest."""
        for values in itertools.product(*self.fields.values()):
            yield dict(zip(self.fields, values, strict=True))

    def check_fields(self, base: Machine) -> None:
        """Makes sure that every field exists.

        Raises:
            ExploreError: One does not; the message lists those there are.
        """
        known = (*base.parameters, *STANDING, BATCH, PRECISION)
        for name in self.fields:
            if name not in known:
                raise ExploreError(f'space: no field "{name}", there are {", ".join(known)}')

    def machine(self, point: Point, base: Machine) -> Machine:
        """The machine of a point.

        Raises:
            MachineError: It makes no sense, or breaks a constraint; the message says which.
        """
        changes = {name: value for name, value in point.items() if name not in (BATCH, PRECISION)}
        numbers = {name: value for name, value in changes.items() if not isinstance(value, str)}
        made = base.replace(numbers, name=machine_name(base.name, point)) if changes else base
        for text, parsed in zip(self.constraints, self._parsed, strict=True):
            if not _evaluate(parsed, _lookup(made, point), text):
                raise MachineError(f"breaks the constraint {text}")
        return made


def machine_name(base: str, point: Point) -> str:
    """The name of a point's machine."""
    told = "_".join(f"{name}-{value}" for name, value in point.items() if name not in (BATCH, PRECISION))
    return f"{base}_{told}" if told else base


def derived_fields(point: Point, machine: Machine, base: Machine) -> dict[str, tuple[Value, str]]:
    """Fields that follow from those a point states, each with its value and the reason."""
    return {
        name: (value, REASONS.get(name, "follows from the others"))
        for name, value in machine.parameters.items()
        if name not in point and value != base.parameters[name]
    }


def _lookup(machine: Machine, point: Point) -> Callable[[str], Value]:
    def look_up(name: str) -> Value:
        if name in point:
            return point[name]
        if name == "array.size":
            return max(machine["array.rows"], machine["array.columns"])
        return machine[name]

    return look_up


OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def _parse(text: str) -> ast.expr:
    try:
        found = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExploreError(f'constraint "{text}": not an expression such as cache.bytes >= 1048576') from None
    allowed = (
        ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Name, ast.Constant,
        ast.And, ast.Or, ast.Not, ast.USub, ast.Load, *OPERATORS,
    )  # fmt: skip
    for node in ast.walk(found):
        if not isinstance(node, allowed):
            raise ExploreError(
                f'constraint "{text}": fields, numbers, + - * / // %, comparisons, and, or, not are possible'
            )
    return found


def _evaluate(node: ast.expr, value: Callable[[str], Value], text: str) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute():
            name = ast.unparse(node)
            try:
                return value(name)
            except KeyError:
                raise ExploreError(f'constraint "{text}": no field "{name}"') from None
        case ast.BoolOp():
            parts = (_evaluate(each, value, text) for each in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        case ast.UnaryOp():
            inner = _evaluate(node.operand, value, text)
            return not inner if isinstance(node.op, ast.Not) else -inner
        case ast.BinOp():
            left, right = _evaluate(node.left, value, text), _evaluate(node.right, value, text)
            return _apply(node.op, left, right, text)
        case ast.Compare():
            operands = [_evaluate(each, value, text) for each in (node.left, *node.comparators)]
            return all(
                _apply(op, *pair, text)
                for op, pair in zip(node.ops, itertools.pairwise(operands), strict=True)
            )
    raise ExploreError(f'constraint "{text}": not an expression')


def _apply(op: ast.AST, left: Any, right: Any, text: str) -> Any:
    try:
        return OPERATORS[type(op)](left, right)
    except (TypeError, ZeroDivisionError, OverflowError) as error:
        raise ExploreError(f'constraint "{text}": {error}') from None


def parsed_values(name: str, given: Any) -> tuple[Value, ...]:
    """Values of a field, from a list, a single one, or `{ low, high, step }` or `{ low, high, factor }`.

    Raises:
        ExploreError: It is none of them.
    """
    if isinstance(given, dict):
        return _stepped_values(name, given)
    values: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ExploreError(f"space: {name} {value}: write numbers or texts")
    return tuple(values)


def _stepped_values(name: str, given: Mapping[str, Any]) -> tuple[Value, ...]:
    low, high = given.get("low"), given.get("high")
    step, factor = given.get("step"), given.get("factor")
    numbers = [each for each in (low, high, step, factor) if each is not None]
    plain = all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers)
    known = set(given) <= {"low", "high", "step", "factor"}
    if (
        not plain
        or not known
        or low is None
        or high is None
        or (step is None) == (factor is None)
        or low > high
    ):
        raise ExploreError(
            f"space: {name}: write {{ low = .., high = .., step = .. }} or factor in place of step"
        )
    if (step is not None and step <= 0) or (factor is not None and (factor <= 1 or low <= 0)):
        raise ExploreError(f"space: {name}: step must be positive, factor above 1 with a positive low")
    found: list[Value] = []
    value = low
    while value <= high:
        found.append(value)
        if len(found) > MOST_POINTS:
            raise ExploreError(f"space: {name} has more than {MOST_POINTS:,} values")
        value = value + step if step is not None else value * factor
    return tuple(found)
