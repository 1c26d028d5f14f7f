"""Figures of a point as a vector that is minimised, and when one vector dominates another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["COMBINED", "OBJECTIVES", "Figures", "Objective", "dominates", "front", "rank", "vector"]

Vector = tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """Figures of one network on one machine, exact or lower bounds.

    Attributes:
        seconds: Of one run of the whole batch.
        joules: Of the same.
        batch: Samples in it.
    """

    seconds: float
    joules: float
    batch: int


@dataclass(frozen=True)
class Objective:
    """An objective to minimise.

    Attributes:
        unit: Of the figure as it is shown.
        of: From the figures of a network, and the area of the machine, to what is minimised.
        monotone: Whether a higher optimisation level never makes it worse.
        sign: -1 where the figure shown is the negative of what is minimised.
    """

    unit: str
    of: Callable[[Figures, float], float]
    monotone: bool
    sign: int = 1


OBJECTIVES: Mapping[str, Objective] = {
    "latency": Objective("us", lambda own, _: own.seconds * 1e6, monotone=True),
    "throughput": Objective("samples/s", lambda own, _: own.seconds / own.batch, monotone=True, sign=-1),
    "energy": Objective("uJ a sample", lambda own, _: own.joules / own.batch * 1e6, monotone=False),
    "edp": Objective(
        "uJ us a sample", lambda own, _: own.joules / own.batch * own.seconds * 1e12, monotone=False
    ),
    "area": Objective("mm2", lambda _, mm2: mm2, monotone=True),
}
"""By name. Throughput is minimised as seconds a sample, and shown as its reciprocal."""


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0


COMBINED: Mapping[str, Callable[[Sequence[float]], float]] = {"geomean": _geometric_mean, "worst": max}
"""How figures of several networks become one; both rise with every one of them, so bounds stay bounds."""


def vector(objectives: Iterable[str], networks: Sequence[Figures], mm2: float, combine: str) -> Vector:
    """The values to minimise, by objective."""
    together = COMBINED[combine]
    return tuple(together([OBJECTIVES[name].of(own, mm2) for own in networks]) for name in objectives)


def displayed_value(objective: str, value: float) -> float:
    """The figure people read for what is minimised."""
    return 1 / value if OBJECTIVES[objective].sign < 0 and value else value


def dominates(left: Vector, right: Vector) -> bool:
    """Whether one is nowhere worse than the other and somewhere better."""
    return left != right and all(a <= b for a, b in zip(left, right, strict=True))


def front(vectors: Mapping[int, Vector]) -> list[int]:
    """Keys of those that none dominates, by the first objective."""
    order = sorted(vectors, key=lambda key: (vectors[key], key))
    found: list[int] = []
    for key in order:  # whatever dominates a vector comes before it in this order
        if not any(dominates(vectors[other], vectors[key]) for other in found):
            found.append(key)
    return found


def rank(vectors: Mapping[int, Vector]) -> list[int]:
    """All keys, front after front: what is likely to dominate others comes first."""
    left, found = dict(vectors), list[int]()
    while left:
        best = front(left)
        found += best
        for key in best:
            del left[key]
    return found
