"""Segmentation: shares of pixels and of areas, all from one table of counts.

Outputs are scores `[samples, classes, h, w]`, of which the largest counts, or classes `[samples, h, w]`;
labels are `[samples, h, w]`. Labels that are negative or 255 are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.evaluation.metrics.metric import Array, Metric, MetricError

__all__ = ["mean_iou", "mean_pixel_accuracy", "pixel_accuracy"]

IGNORED = 255
Table = NDArray[np.float64]


def pixel_accuracy() -> Metric:
    """Share of the pixels whose class is right."""
    return _of_table(lambda table: np.trace(table) / table.sum())


def mean_pixel_accuracy() -> Metric:
    """Share of right pixels of each class, its mean over the classes that are labelled."""

    def value(table: Table) -> float:
        labeled = table.sum(1) > 0
        return float((np.diag(table)[labeled] / table.sum(1)[labeled]).mean())

    return _of_table(value)


def mean_iou() -> Metric:
    """Intersection over union of each class, its mean over the classes that are labelled or predicted."""

    def value(table: Table) -> float:
        union = table.sum(0) + table.sum(1) - np.diag(table)
        return float((np.diag(table)[union > 0] / union[union > 0]).mean())

    return _of_table(value)


def _of_table(measure: Callable[[Table], float]) -> Metric:
    def value(outputs: Sequence[Array], labels: Any) -> float:
        return float(measure(counts(outputs[0], labels)))

    return Metric("labels", value, percent=True)


def counts(outputs: Array, labels: Array) -> Table:
    """Pixels by label (row) and found class (column).

    Raises:
        MetricError: Shapes do not fit, or every label is left out.
    """
    found = outputs.argmax(1) if outputs.ndim == labels.ndim + 1 else np.rint(outputs).astype(np.int64)
    if found.shape != labels.shape or labels.dtype.kind not in "iu":
        raise MetricError(
            f'array "labels" must hold a class for each of {found.shape} pixels, it has {labels.shape}'
        )
    kept = (labels >= 0) & (labels != IGNORED)
    if not kept.any():
        raise MetricError('array "labels" holds no pixel that counts')
    ours, theirs = found[kept].astype(np.int64), labels[kept].astype(np.int64)
    size = int(max(ours.max(), theirs.max())) + 1
    return np.bincount(theirs * size + ours, minlength=size * size).reshape(size, size).astype(np.float64)
