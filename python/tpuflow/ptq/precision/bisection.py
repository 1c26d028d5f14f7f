"""The fewest layers to blame: those whose floats restore the metric, while all others stay as they are.

Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002): from all
layers in floats, parts are left out as long as the rest still restores the metric. What remains is minimal:
without any one of its layers the metric is lost again. One layer among n layers takes about 2 log2(n)
evaluations. Nothing is drawn by chance, so the same network gives the same set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tpuflow.ptq.precision.limits import Limits
from tpuflow.ptq.precision.trials import PrecisionError

if TYPE_CHECKING:
    from tpuflow.ptq.precision.trials import Layer, Trials

__all__ = ["Bisection", "bisect_layers", "smallest"]

Item = TypeVar("Item")


@dataclass(frozen=True)
class Bisection:
    """The result of a bisection.

    Attributes:
        layers: The layers, in the order of the network; none where nothing is wrong.
        base: The metric of float.
        before: As configured.
        after: With these layers in floats.
        evaluations: How many sets were tried.
        partial: Whether the search was cut short, so that fewer layers might do.
    """

    layers: tuple[Layer, ...]
    base: float
    before: float
    after: float
    evaluations: int
    partial: bool


def smallest(items: Sequence[Item], restores: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A part of `items` that restores what all of them do, and from which none can be left out.

    Args:
        items: In an order; neighbours are tried together first.
        restores: Whether a part does; it must hold for all items.
    """
    kept, parts = list(items), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        cuts = [kept[start : start + size] for start in range(0, len(kept), size)]
        rests = [[each for other in cuts if other is not cut for each in other] for cut in cuts]
        part = next((cut for cut in cuts if len(cut) < len(kept) and restores(cut)), None)
        if part is not None:
            kept, parts = part, 2
            continue
        rest = next((rest for rest in rests if len(rests) > 2 and restores(rest)), None)
        if rest is not None:
            kept, parts = rest, max(2, parts - 1)
        elif size == 1:
            break
        else:
            parts = min(len(kept), 2 * parts)
    return kept


def bisect_layers(trials: Trials, allowed: float, limits: Limits | None = None) -> Bisection:
    """The layers whose execution in floats brings the metric back.

    Args:
        trials: The network, with an evaluator that has a metric.
        allowed: By how much the metric may be worse than float.
        limits: Where to stop at the latest.

    Raises:
        PrecisionError: Even all layers in floats do not restore the metric.
    """
    limits = limits or Limits()
    evaluator = trials.evaluator
    tried: dict[tuple[str, ...], bool] = {}

    def value(layers: Sequence[Layer]) -> float:
        return trials.value({layer.name: "f32" for layer in layers})

    def restores(layers: Sequence[Layer]) -> bool:
        key = tuple(layer.name for layer in layers)
        if key not in tried:
            if not limits.go_on():
                return False
            tried[key] = evaluator.worse(value(layers)) <= allowed
        return tried[key]

    before = value(())
    if evaluator.worse(before) <= allowed:
        return Bisection((), evaluator.base, before, before, limits.done, limits.cut)
    able = [layer for layer in trials.layers if trials.can(layer, "f32", host=True)]
    if not restores(able):
        raise PrecisionError(
            f"{evaluator.name}: even with {len(able)} layers in floats it is {value(able):.4f}, "
            f"float has {evaluator.base:.4f}: the cause is not in their precision"
        )
    found = smallest(able, restores)
    return Bisection(tuple(found), evaluator.base, before, value(found), limits.done, limits.cut)
