"""Distances between tensors, to the float network or, as `NAME(labels)`, to labels of the same shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from tpuflow.evaluation.metrics.metric import Array, Metric, MetricError, Scores, number
from tpuflow.evaluation.similarity import cosine as cosine_of
from tpuflow.evaluation.similarity import euclid as euclid_of
from tpuflow.evaluation.similarity import max_error as max_error_of

__all__ = ["cosine", "euclid", "max_error", "psnr", "rmse"]

Against = Literal["labels", "float"]


def cosine(against: str = "float") -> Metric:
    """Cosine similarity of every sample, its mean."""
    return _each(cosine_of, against)


def euclid(against: str = "float") -> Metric:
    """Euclidean similarity of every sample, its mean."""
    return _each(euclid_of, against)


def max_error(against: str = "float") -> Metric:
    """Largest absolute difference over all samples."""
    return _all(max_error_of, against, smaller_is_better=True)


def rmse(against: str = "float") -> Metric:
    """Root of the mean squared difference over all values of all samples."""
    return _all(
        lambda given, ours: math.sqrt(_mean_squared_error(given, ours)), against, smaller_is_better=True
    )


def psnr(peak: str = "", against: str = "float") -> Metric:
    """Peak signal to noise ratio over all values, in decibels, `20 log10(peak / rmse)`.

    The peak is the span of what is compared with, unless it is given; equal values are infinitely alike.
    """
    if peak in {"labels", "float"}:
        peak, against = "", peak
    fixed = number(peak, "psnr") if peak else None

    def value(given: Array, ours: Array) -> float:
        error = math.sqrt(_mean_squared_error(given, ours))
        span = float(given.max()) - float(given.min()) if fixed is None else fixed
        if error == 0:
            return math.inf
        return 20 * math.log10(span / error) if span > 0 else -math.inf

    return _all(value, against)


def _mean_squared_error(given: Array, ours: Array) -> float:
    difference = ours.astype(np.float64) - given.astype(np.float64)
    return float(np.mean(np.square(difference)))


def _parse_against(against: str) -> Against:
    if against == "labels":
        return "labels"
    if against == "float":
        return "float"
    raise MetricError(f'compares with "labels" or "float", not with "{against}"')


def _reference_array(outputs: Sequence[Array], given: Any, against: Against) -> Array:
    """The array an output is compared with.

    Raises:
        MetricError: It has another shape.
    """
    found: Array = given if against == "labels" else given[0]
    if found.shape != outputs[0].shape:
        raise MetricError(f'array "{against}" has shape {found.shape}, the output has {outputs[0].shape}')
    return found


def _each(measure: Callable[[Array, Array], float], against: str) -> Metric:
    kind = _parse_against(against)

    def score(outputs: Sequence[Array], given: Any) -> Scores:
        pairs = zip(_reference_array(outputs, given, kind), outputs[0], strict=True)
        return np.array([measure(theirs, ours) for theirs, ours in pairs])

    def value(outputs: Sequence[Array], given: Any) -> float:
        scores = score(outputs, given)
        return float(scores.mean()) if scores.size else math.nan

    return Metric(kind, value, score=score)


def _all(
    measure: Callable[[Array, Array], float], against: str, *, smaller_is_better: bool = False
) -> Metric:
    kind = _parse_against(against)

    def value(outputs: Sequence[Array], given: Any) -> float:
        return measure(_reference_array(outputs, given, kind), outputs[0])

    return Metric(kind, value, smaller_is_better=smaller_is_better)
