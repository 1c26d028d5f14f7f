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
        noise: Power of the outputs' error over that of the outputs in float; 0 where it is not measured.
        interval: Joules at least and at most, as far as the energy table knows them.
        period: Seconds from one run of a stream to the next; None where runs do not overlap.
    """

    seconds: float
    joules: float
    batch: int
    noise: float = 0.0
    interval: tuple[float, float] | None = None
    period: float | None = None


@dataclass(frozen=True)
class Objective:
    """An objective to minimise.

    Attributes:
        unit: Of the figure as it is shown.
        of: From the figures of a network, and the area of the machine, to what is minimised.
        monotone: Whether a higher optimisation level never makes it worse.
        sign: -1 where a larger figure is shown for a smaller value.
        shown: The figure people read, of a value that is not 0.
        value: The reverse of `shown`.
    """

    unit: str
    of: Callable[[Figures, float], float]
    monotone: bool
    sign: int = 1
    shown: Callable[[float], float] = float
    value: Callable[[float], float] = float


def _reciprocal(value: float) -> float:
    return 1 / value


OBJECTIVES: Mapping[str, Objective] = {
    "latency": Objective("us", lambda own, _: own.seconds * 1e6, monotone=True),
    "throughput": Objective(
        "samples/s",
        lambda own, _: (own.seconds if own.period is None else own.period) / own.batch,
        monotone=False,
        sign=-1,
        shown=_reciprocal,
        value=_reciprocal,
    ),
    "energy": Objective("uJ a sample", lambda own, _: own.joules / own.batch * 1e6, monotone=False),
    "edp": Objective(
        "uJ us a sample", lambda own, _: own.joules / own.batch * own.seconds * 1e12, monotone=False
    ),
    "area": Objective("mm2", lambda _, mm2: mm2, monotone=True),
    "accuracy": Objective(
        "dB",
        lambda own, _: own.noise,
        monotone=True,
        sign=-1,
        shown=lambda noise: -10 * math.log10(noise),
        value=lambda decibels: 10 ** (-decibels / 10),
    ),
}
"""By name. Throughput is minimised as seconds a sample, and shown as its reciprocal; accuracy as noise over
the signal of outputs, and shown as decibels of signal over noise."""


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
    return OBJECTIVES[objective].shown(value) if value else value


def minimized_value(objective: str, figure: float) -> float:
    """The value that is minimised, of the figure people read."""
    return OBJECTIVES[objective].value(figure) if figure else figure


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
