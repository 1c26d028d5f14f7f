"""The interface of metrics, and the parsing of their arguments.

A metric scores the outputs of all samples together. Where the result is the mean of one number per sample,
it can also give those: then float and quantised results are paired sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import TpuflowError

__all__ = ["Array", "Metric", "MetricError", "by_sample", "number", "whole"]

Array = NDArray[Any]
Scores = NDArray[np.float64]


class MetricError(TpuflowError):
    """A metric is unknown, has wrong arguments, or does not fit the data."""


@dataclass(frozen=True)
class Metric:
    """How outputs are scored.

    Attributes:
        against: What they are compared with: labels, or the outputs of the float network.
        value: The result of all samples, from the outputs it reads, each [samples, ...], and what they are
            compared with: labels [samples, ...], or of float the same outputs joined in a list.
        outputs: How many outputs it reads; 0: all.
        score: One number per sample, of which `value` is the mean; None where there is no such thing.
        share: Scores are 0 or 1, so that their mean is a share of the samples.
        percent: The result is a share of something, shown in percent.
        smaller_is_better: The result is an error.
    """

    against: Literal["labels", "float"]
    value: Callable[[Sequence[Array], Any], float]
    outputs: int = 1
    score: Callable[[Sequence[Array], Any], Scores] | None = None
    share: bool = False
    percent: bool = False
    smaller_is_better: bool = False


def by_sample(
    against: Literal["labels", "float"], score: Callable[[Array, Array], Scores], *, share: bool = False
) -> Metric:
    """A metric of one output that is the mean of a number per sample."""

    def scores(outputs: Sequence[Array], given: Any) -> Scores:
        return score(outputs[0], given if against == "labels" else given[0])

    def value(outputs: Sequence[Array], given: Any) -> float:
        found = scores(outputs, given)
        return float(found.mean()) if found.size else float("nan")

    return Metric(against, value, score=scores, share=share, percent=share)


def whole(text: str, name: str) -> int:
    """An argument that is a whole number.

    Raises:
        MetricError: It is not.
    """
    try:
        return int(text)
    except ValueError:
        raise MetricError(f'{name}: "{text}" is not a whole number') from None


def number(text: str, name: str) -> float:
    """An argument that is a number.

    Raises:
        MetricError: It is not.
    """
    try:
        return float(text)
    except ValueError:
        raise MetricError(f'{name}: "{text}" is not a number') from None
