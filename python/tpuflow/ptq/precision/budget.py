r"""The best precisions within a budget: so many cycles or bytes, or so much of the metric.

Every layer alone is tried at every width: what it adds to the error of the output, and what it costs. Errors
of different layers are nearly independent, so their powers add up, and the choice is a knapsack with one
item of every class. Its relaxation is solved by a path: start where every layer is cheapest, then take the
steps up the lower convex hulls of the layers, the largest gain for the cost first. A budget says where on
that path to stop, and only there sums give way to facts: the assignment itself is compiled and run.

    error |  o 4 bits            steps of one layer: 4 -> 8 -> 16 bits; `f32` lies above the hull
          |    \\                 and is never taken
          |      o 8     x f32
          |         ' - . o 16
          +---------------------- cost
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from tpuflow.ptq.precision.limits import Limits
from tpuflow.ptq.precision.sensitivity import Row, rows_of
from tpuflow.ptq.precision.trials import PRECISIONS, Cost, PrecisionError

if TYPE_CHECKING:
    from tpuflow.ptq.precision.trials import Layer, Trials

__all__ = ["Budget", "BudgetResult", "parsed_budget", "path", "within_budget"]

Kind = Literal["cycles", "bytes", "activations", "drop"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Budget:
    """A budget and its limit.

    Attributes:
        kind: Cycles of an inference, bytes of constants or of activations, or by how much the metric may be
            worse than float.
        limit: The number.
    """

    kind: Kind
    limit: float

    @property
    def widths(self) -> tuple[str, ...]:
        """Precisions to choose from where none are named: 8 and 16 bits, of what the budget counts."""
        return ("a8", "a16") if self.kind == "activations" else ("8", "16")


def parsed_budget(text: str) -> Budget:
    """The budget a text `cycles=N`, `bytes=N`, `activations=N` or `drop=X` states.

    Raises:
        PrecisionError: It states none.
    """
    word, _, number = text.partition("=")
    kind = next((each for each in KINDS if each == word), None)
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if kind is None or not math.isfinite(limit) or limit < 0:
        raise PrecisionError(
            f'budget "{text}": write cycles=N, bytes=N, activations=N or drop=X, such as drop=0.005'
        )
    return Budget(kind, limit)


@dataclass(frozen=True)
class BudgetResult:
    """Result of a search for bits within a budget.

    Attributes:
        assignment: Precision of every layer that is not as configured.
        rows: Every layer at every other width, before anything was changed.
        base: Cost as configured.
        cost: Cost of the assignment.
        loss: How far outputs are from float, as configured and with the assignment.
        value: The metric, as configured and with the assignment; NaN without one.
        within: Whether the budget is kept.
        partial: Whether the search was cut short.
    """

    assignment: dict[str, str]
    rows: tuple[Row, ...]
    base: Cost
    cost: Cost
    loss: tuple[float, float]
    value: tuple[float, float]
    within: bool
    partial: bool


@dataclass(frozen=True)
class _Step:
    layer: str
    precision: str
    slope: float


def within_budget(
    trials: Trials,
    budget: Budget,
    widths: Sequence[str] = (),
    limits: Limits | None = None,
    shown: Callable[[Sequence[Row]], None] | None = None,
) -> BudgetResult:
    """Chooses a width for every layer.

    Args:
        trials: The network; layers that fit none of the widths stay as configured.
        budget: What may not be exceeded.
        widths: What to choose from, of `PRECISIONS`; what is configured is always among it. By default 8 and
            16 bits, of activations alone where the budget is theirs.
        limits: Where to stop trying layers at the latest.
        shown: Shown every row, before anything is chosen.

    Raises:
        PrecisionError: A width is unknown, or a budget of the metric lacks a metric.
    """
    widths = widths or budget.widths
    unknown = [width for width in widths if width not in PRECISIONS]
    if unknown:
        raise PrecisionError(f'width "{", ".join(unknown)}": choose of {", ".join(PRECISIONS)}')
    if budget.kind == "drop" and not trials.evaluator.name:
        raise PrecisionError("a budget of the metric needs one: give it with --metric")
    limits = limits or Limits()
    base, loss = trials.cost({}), trials.loss({})
    rows = rows_of(trials, ((layer, width) for layer in trials.layers for width in widths), limits)
    if shown is not None:
        shown(rows)
    steps = path(rows, "cycles" if budget.kind == "drop" else budget.kind)
    assignments = _along(rows, steps)

    def fits(assignment: Mapping[str, str]) -> bool:
        if budget.kind == "drop":
            return trials.evaluator.worse(trials.value(assignment)) <= budget.limit
        return _spent(trials.cost(assignment), budget.kind) <= budget.limit

    # Costs grow along the path: the last that fits. The metric improves along it: the first that does.
    place = _first(assignments, fits) if budget.kind == "drop" else _last(assignments, fits)
    assignment = assignments[place]
    scored = trials.evaluator.name != ""
    values = (trials.value({}), trials.value(assignment)) if scored else (math.nan, math.nan)
    return BudgetResult(
        assignment, tuple(rows), base, trials.cost(assignment), (loss, trials.loss(assignment)), values,
        fits(assignment), limits.cut,
    )  # fmt: skip


def _spent(cost: Cost, kind: str) -> int:
    """The amount that a network spends of a kind of budget."""
    return {"bytes": cost.bytes, "activations": cost.activations}.get(kind, cost.cycles)


def path(rows: Sequence[Row], kind: Kind) -> list[_Step]:
    """Steps of all layers up their hulls, the largest gain for the cost first.

    The first step of a layer leads to its cheapest point and costs nothing: its slope is infinite.
    """
    points: dict[str, list[tuple[float, float, str]]] = {}
    for row in rows:
        point = (float(_spent(row.cost, kind)), -row.gain, row.precision)
        points.setdefault(row.layer.name, [(0.0, 0.0, "")]).append(point)
    steps = []
    for layer, own in points.items():
        hull = _hull(own)
        steps.append(_Step(layer, hull[0][2], math.inf))
        steps += [
            _Step(layer, after[2], (before[1] - after[1]) / (after[0] - before[0]))
            for before, after in pairwise(hull)
        ]
    return sorted(steps, key=lambda step: -step.slope)


def _hull(points: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """The points of the lower convex hull, from the cheapest to the one of least error."""
    best: list[tuple[float, float, str]] = []
    for point in sorted(points, key=lambda each: (each[0], each[1])):
        if best and point[1] >= best[-1][1]:
            continue  # dearer, and no better
        while len(best) > 1 and _turns_left(best[-2], best[-1], point):
            best.pop()
        best.append(point)
    return best


def _turns_left(
    a: tuple[float, float, str], b: tuple[float, float, str], c: tuple[float, float, str]
) -> bool:
    """Whether `b` lies on or above the line from `a` to `c`."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def _along(rows: Sequence[Row], steps: Sequence[_Step]) -> list[dict[str, str]]:
    """The assignment at the start of the path, and after every step that costs something."""
    order: dict[str, Layer] = {row.layer.name: row.layer for row in rows}
    held: dict[str, str] = {}
    found: list[dict[str, str]] = []

    def note() -> None:
        found.append({name: held[name] for name in order if held.get(name)})

    for number, step in enumerate(steps):
        if not math.isinf(step.slope) and not found:
            note()
        held[step.layer] = step.precision
        if not math.isinf(step.slope) or number == len(steps) - 1:
            note()
    return found or [{}]


def _last(assignments: Sequence[dict[str, str]], fits: Callable[[Mapping[str, str]], bool]) -> int:
    """The last that fits, the first one if none does, by halving."""
    low, high = 0, len(assignments) - 1
    if fits(assignments[high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(assignments[middle]) else (low, middle)
    return low


def _first(assignments: Sequence[dict[str, str]], fits: Callable[[Mapping[str, str]], bool]) -> int:
    """The first that fits, the last one if none does, by halving."""
    low, high = 0, len(assignments) - 1
    if fits(assignments[low]):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(assignments[middle]) else (middle, high)
    return high
