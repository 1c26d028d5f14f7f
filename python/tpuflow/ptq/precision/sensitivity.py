"""Sensitivity of single layers: the network with one layer changed, everything else as configured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuflow.ptq.precision.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuflow.ptq.precision.trials import Cost, Layer, Trials

__all__ = ["Row", "rows_of", "sensitivity"]


@dataclass(frozen=True)
class Row:
    """One layer at one precision, everything else as configured.

    Attributes:
        layer: The layer.
        precision: What it was given.
        loss: How far outputs are from float then.
        gain: By how much that is less than without.
        value: The metric, NaN without one.
        cost: Cycles and bytes it adds; negative ones are saved.
    """

    layer: Layer
    precision: str
    loss: float
    gain: float
    value: float
    cost: Cost


def sensitivity(trials: Trials, precision: str, limits: Limits | None = None) -> list[Row]:
    """Every layer that can have the precision, the one that gains most first.

    Args:
        trials: The network.
        precision: What each layer is given in turn.
        limits: Where to stop at the latest; layers come in their order then.
    """
    pairs = ((layer, precision) for layer in trials.layers)
    # Equal gains stay in the order of the network.
    return sorted(rows_of(trials, pairs, limits or Limits()), key=lambda row: -row.gain)


def rows_of(trials: Trials, alone: Iterable[tuple[Layer, str]], limits: Limits) -> list[Row]:
    """A row for each layer with a precision that it can have, in order, until a limit is reached."""
    base, cost = trials.loss({}), trials.cost({})
    scored = trials.evaluator.name != ""
    rows = []
    for layer, precision in trials.in_waves(alone):
        if not trials.can(layer, precision):
            continue
        if not limits.go_on():
            break
        own = {layer.name: precision}
        loss = trials.loss(own)
        value = trials.value(own) if scored else float("nan")
        rows.append(Row(layer, precision, loss, base - loss, value, trials.cost(own) - cost))
    return rows
