"""The search from the end of the network: as many layers as must be get 16 bits, or else become floats.

    rule = parsed_rule("10,0.02,L")     # ten batches; float may be at most 0.02 better

The rule compares the metric of float, `base`, with that of the quantised network: with `L` it holds where
`base - value <= threshold`, with `G` where `base - value >= threshold` (for metrics that are errors). Later
layers are taken for the more sensitive ones, so what is searched is one number: from which layer on bits are
raised. Halving finds a number for which the rule holds, doubled steps from there the last one that does;
that needs about `2 log2(layers)` evaluations. A single early layer that ruins everything is not found so:
`sensitivity` and `within_budget` look at each layer alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuflow.config import parsed_search
from tpuflow.errors import ModelError
from tpuflow.ptq.precision.limits import Limits

if TYPE_CHECKING:
    from tpuflow.ptq.precision.trials import Trials

__all__ = ["PrecisionSuffix", "Rule", "parsed_rule", "raised_from_the_end"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rule:
    """When a quantised network is good enough.

    Attributes:
        batches: How many batches it is evaluated by; below 1 there is no search.
        threshold: What `base - value` is compared with.
        at_most: It must be at most the threshold (`L`), else at least (`G`).
    """

    batches: int
    threshold: float
    at_most: bool

    def holds(self, base: float, value: float) -> bool:
        """Whether a value of the metric is good enough; NaN never is."""
        drop = base - value
        return drop <= self.threshold if self.at_most else drop >= self.threshold


def parsed_rule(text: str) -> Rule:
    """The rule a text `batches,threshold,L|G` states.

    Raises:
        ValueError: It states none.
    """
    return Rule(*parsed_search(text))


@dataclass(frozen=True)
class PrecisionSuffix:
    """Result of the search for the layers that need more bits.

    Attributes:
        assignment: Precision by layer; empty if all may stay as they are.
        base: The metric of float.
        before: The metric without the assignment.
        after: The metric with it.
        holds: Whether the rule holds for it.
        ranges: Numbers of the first and last layer that stay, get 16 bits, become floats.
        evaluations: How many assignments were evaluated.
    """

    assignment: dict[str, str]
    base: float
    before: float
    after: float
    holds: bool
    ranges: dict[str, tuple[int, int]]
    evaluations: int


def raised_from_the_end(
    trials: Trials, rule: Rule, limits: Limits | None = None, remark: Callable[[str], None] = logger.info
) -> PrecisionSuffix:
    """Finds from which layer on more bits are needed.

    First with 16 bits; where even 16 bits everywhere do not satisfy the rule, with floats in place of them.
    Where nothing does, what came nearest is kept.

    Args:
        trials: The network.
        rule: What must hold.
        limits: Where the search ends at the latest.
        remark: Told about every evaluation.
    """
    limits = limits or Limits()
    base, layers = trials.evaluator.base, trials.layers
    values: dict[tuple[str, int], float] = {}

    def value(precision: str, first: int) -> float:
        key = (precision, first)
        if key not in values:
            try:
                values[key] = trials.value(_suffix(trials, precision, first))
            except ModelError:  # nothing would be left for the machine
                values[key] = math.nan
            what = (
                "nothing raised"
                if first == len(layers)
                else f"{precision} from layer {_number(trials, first)} on"
            )
            remark(f"{what}: {values[key]:.4f}, float {base:.4f}")
        return values[key]

    def holds(precision: str, first: int) -> bool:
        return limits.go_on() and rule.holds(base, value(precision, first))

    end, before = len(layers), value("16", len(layers))
    precision, first = "16", end
    if not rule.holds(base, before):
        for kind in ("16", "f32"):
            found = latest(end, lambda first, kind=kind: holds(kind, first))  # type: ignore[misc]
            if found is not None:
                precision, first = kind, found
                break
        else:
            side = 1 if rule.at_most else -1
            known = [key for key in values if not math.isnan(values[key])]
            precision, first = min(known, key=lambda key: side * (base - values[key]))
    assignment = _suffix(trials, precision, first)
    after = before if first == end else trials.value(assignment)
    return PrecisionSuffix(
        assignment,
        base,
        before,
        after,
        rule.holds(base, after),
        _ranges(trials, precision, first),
        limits.done,
    )


def latest(end: int, holds: Callable[[int], bool]) -> int | None:
    """The last beginning for which a property holds, as halving and doubled steps find it; None for none."""
    first = end // 2
    while first > 0 and not holds(first):
        first //= 2
    if first == 0 and not holds(0):
        return None
    step = 1
    while first + step < end and holds(first + step):
        first += step
        step *= 2
    return first


def _suffix(trials: Trials, precision: str, first: int) -> dict[str, str]:
    layers = trials.layers[first:]
    return {
        layer.name: precision for layer in layers if trials.can(layer, precision, host=precision == "f32")
    }


def _number(trials: Trials, first: int) -> int:
    return trials.layers[first].number


def _ranges(trials: Trials, precision: str, first: int) -> dict[str, tuple[int, int]]:
    numbers = [layer.number for layer in trials.layers]
    found = {"unchanged": (numbers[0], numbers[first - 1])} if first > 0 else {}
    if first < len(numbers):
        found[precision] = (numbers[first], numbers[-1])
    return found
