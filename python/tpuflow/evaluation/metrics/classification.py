"""Classifiers: the right class among the best, and F1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpuflow.evaluation.metrics.metric import Array, Metric, MetricError, Scores, by_sample, whole

__all__ = ["agreement", "f1", "top"]


def top(count: str = "1") -> Metric:
    """Whether the label is among the `count` largest outputs; of equal ones the first index is larger."""
    most = whole(count, "top")
    if most < 1:
        raise MetricError(f"top: {most} is below 1")

    def score(outputs: Array, labels: Array) -> Scores:
        flat = _classes(outputs, labels)
        if most == 1:
            return np.asarray(flat.argmax(1) == labels, np.float64)
        # Stable, so that of equal values the first index wins, as in arg-max.
        best = np.argsort(-flat.astype(np.float64), axis=1, kind="stable")[:, :most]
        return np.asarray((best == labels[:, np.newaxis]).any(1), np.float64)

    return by_sample("labels", score, share=True)


def f1(which: str = "macro") -> Metric:
    """Harmonic mean of precision and recall of the arg-max.

    `macro` is the mean over the classes that are predicted or labelled, `micro` counts all of them together,
    a number is that class alone. A class with neither hits nor misses has no F1 and is left out.
    """

    def value(outputs: Sequence[Array], labels: Any) -> float:
        found = _classes(outputs[0], labels).argmax(1)
        classes = np.union1d(found, labels) if which in {"macro", "micro"} else [whole(which, "f1")]
        counts = np.array(
            [
                [((found == c) & (labels == c)).sum(), (found == c).sum() + (labels == c).sum()]
                for c in classes
            ],
            np.float64,
        )
        if which == "micro":
            counts = counts.sum(0, keepdims=True)
        counts = counts[counts[:, 1] > 0]
        return float((2 * counts[:, 0] / counts[:, 1]).mean()) if len(counts) else float("nan")

    return Metric("labels", value, percent=True)


def agreement() -> Metric:
    """Whether the arg-max is that of the float network."""

    def score(outputs: Array, reference: Array) -> Scores:
        ours, theirs = (array.reshape(len(array), -1).argmax(1) for array in (outputs, reference))
        return np.asarray(ours == theirs, np.float64)

    return by_sample("float", score, share=True)


def _classes(outputs: Array, labels: Array) -> Array:
    """Outputs as one row of classes per sample.

    Raises:
        MetricError: Labels are no classes.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise MetricError('array "labels" must hold one whole number per sample for this metric')
    return outputs.reshape(len(outputs), -1)
