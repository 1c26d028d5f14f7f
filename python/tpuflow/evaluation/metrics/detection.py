"""Detectors: mean average precision as VOC and COCO define it, and F1 at one threshold.

Labels are `[samples, boxes, 5]`: x1, y1, x2, y2, class; rows of negative class fill up. Outputs are either
finished detections `[samples, boxes, 6]`, x1, y1, x2, y2, score, class, rows of score 0 or class below 0
filling up; or two outputs, boxes `[samples, n, 4]` and scores `[samples, n, classes]`, of which every class
but the background is suppressed by itself (`nms`). Areas are those of continuous coordinates.

Detections are matched in the order of their scores, each with the box it overlaps most among those of its
image and class that are left (COCO), or among all of them, where a second match is an error (VOC). VOC's
precision is the area under the envelope of precision over recall, or as in 2007 the mean at 11 recalls;
COCO's the mean at 101 recalls and over overlaps of 0.5 to 0.95.

Sources: the development kits' documentation, https://cocodataset.org/#detection-eval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.evaluation.metrics.metric import Array, Metric, MetricError, number, whole

__all__ = ["coco", "detection_f1", "non_maximum_suppression", "overlaps", "voc"]

Real = NDArray[np.float64]

MOST_BOXES = 100
"""COCO counts so many detections of an image and class."""

LEAST_SCORE = 0.01
"""Boxes of two outputs below it are no detections."""


@dataclass(frozen=True)
class Boxes:
    """Boxes of all samples: which sample, [n, 4] corners, class, score (1 for labels)."""

    sample: NDArray[np.int64]
    corners: Real
    kind: NDArray[np.int64]
    score: Real

    def of(self, kind: int) -> Boxes:
        """Those of a class."""
        mine = self.kind == kind
        return Boxes(self.sample[mine], self.corners[mine], self.kind[mine], self.score[mine])


def coco(outputs: str = "1", background: str = "-1") -> Metric:
    """COCO's mean average precision."""
    levels = [0.5 + 0.05 * i for i in range(10)]
    points = np.linspace(0, 1, 101)

    def average(found: Boxes, wanted: Boxes) -> float:
        found = _best_of_each_image(found, MOST_BOXES)
        results = [_precision(*_curve(found, wanted, level, greedy=True), points) for level in levels]
        return float(np.mean(results))

    return _mean_over_classes(average, outputs, background)


def voc(iou: str = "0.5", year: str = "2012", outputs: str = "1", background: str = "-1") -> Metric:
    """VOC's mean average precision; year 2007 samples 11 recalls, later ones take the whole area."""
    level = number(iou, "voc_map")
    points = np.linspace(0, 1, 11) if whole(year, "voc_map") < 2010 else None

    def average(found: Boxes, wanted: Boxes) -> float:
        return _precision(*_curve(found, wanted, level, greedy=False), points)

    return _mean_over_classes(average, outputs, background)


def detection_f1(score: str = "0.5", iou: str = "0.5", outputs: str = "1", background: str = "-1") -> Metric:
    """F1 of the detections whose score is at least `score`, all classes counted together."""
    least, level, dropped = number(score, "f1_boxes"), number(iou, "f1_boxes"), whole(background, "f1_boxes")

    def value(arrays: Sequence[Array], labels: Any) -> float:
        found, wanted = _detected_boxes(arrays, dropped), _label_boxes(labels)
        kept = found.score >= least
        found = Boxes(found.sample[kept], found.corners[kept], found.kind[kept], found.score[kept])
        hits = sum(
            _curve(found.of(kind), wanted.of(kind), level, greedy=True)[0].sum()
            for kind in np.union1d(found.kind, wanted.kind)
        )
        total = len(found.kind) + len(wanted.kind)
        return float(2 * hits / total) if total else float("nan")

    return Metric("labels", value, outputs=_count(outputs), percent=True)


def _count(text: str) -> int:
    count = whole(text, "outputs")
    if count not in {1, 2}:
        raise MetricError(f"detections stand in 1 or 2 outputs, not in {count}")
    return count


def _mean_over_classes(average: Any, outputs: str, background: str) -> Metric:
    dropped = whole(background, "background")

    def value(arrays: Sequence[Array], labels: Any) -> float:
        found, wanted = _detected_boxes(arrays, dropped), _label_boxes(labels)
        results = [average(found.of(kind), wanted.of(kind)) for kind in np.unique(wanted.kind)]
        return float(np.mean(results)) if results else float("nan")

    return Metric("labels", value, outputs=_count(outputs), percent=True)


def _label_boxes(labels: Array) -> Boxes:
    if labels.ndim != 3 or labels.shape[2] != 5:
        raise MetricError(f'array "labels" must hold [samples, boxes, 5] numbers, it has {labels.shape}')
    rows = labels.reshape(-1, 5).astype(np.float64)
    sample = np.repeat(np.arange(labels.shape[0]), labels.shape[1])
    kept = rows[:, 4] >= 0
    return Boxes(sample[kept], rows[kept, :4], rows[kept, 4].astype(np.int64), np.ones(kept.sum()))


def _detected_boxes(arrays: Sequence[Array], background: int) -> Boxes:
    if len(arrays) == 1:
        (rows,) = arrays
        if rows.ndim != 3 or rows.shape[2] != 6:
            raise MetricError(
                f"the output must hold [samples, boxes, 6] numbers, it has {rows.shape}: "
                "name two outputs, boxes and scores, or cut the network behind its suppression"
            )
    else:
        boxes, scores = arrays
        if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.shape[:2] != boxes.shape[:2] or scores.ndim != 3:
            raise MetricError(f"boxes {boxes.shape} and scores {scores.shape} are not [samples, n, ...]")
        rows = _detections(boxes.astype(np.float64), scores.astype(np.float64), background)
    flat = rows.reshape(-1, 6).astype(np.float64)
    sample = np.repeat(np.arange(rows.shape[0]), rows.shape[1])
    kept = (flat[:, 4] > 0) & (flat[:, 5] >= 0)
    return Boxes(sample[kept], flat[kept, :4], flat[kept, 5].astype(np.int64), flat[kept, 4])


def _detections(boxes: Real, scores: Real, background: int) -> Real:
    """Boxes and scores as rows of detections, each class suppressed by itself."""
    images = []
    for corners, classes in zip(boxes, scores, strict=True):
        rows = []
        for kind in range(classes.shape[1]):
            if kind != background:
                score = classes[:, kind]
                (likely,) = np.nonzero(score >= LEAST_SCORE)
                kept = likely[non_maximum_suppression(corners[likely], score[likely])]
                rows.append(np.column_stack([corners[kept], score[kept], np.full(len(kept), kind)]))
        images.append(np.concatenate(rows) if rows else np.zeros((0, 6)))
    longest = max((len(rows) for rows in images), default=0)
    return np.array([np.pad(rows, ((0, longest - len(rows)), (0, 0))) for rows in images])


def non_maximum_suppression(corners: Real, scores: Real, overlap: float = 0.45) -> NDArray[np.int64]:
    """Indices of the boxes that remain, best first: none overlaps a better one by more than `overlap`."""
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[overlaps(corners[best : best + 1], corners[order])[0] <= overlap]
    return np.array(kept, np.int64)


def overlaps(a: Real, b: Real) -> Real:
    """Intersection over union of every box of `a` [n, 4] with every one of `b` [m, 4]; 0 without area."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=2)
    area_a, area_b = (np.prod(np.maximum(box[:, 2:] - box[:, :2], 0), axis=1) for box in (a, b))
    union = area_a[:, None] + area_b[None, :] - shared
    found: Real = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return found


def _best_of_each_image(found: Boxes, most: int) -> Boxes:
    """The `most` likeliest boxes of every sample."""
    order = np.argsort(-found.score, kind="stable")
    by_image = order[np.argsort(found.sample[order], kind="stable")]
    samples = found.sample[by_image]
    place = np.arange(len(samples)) - np.searchsorted(samples, samples)
    kept = np.sort(by_image[place < most])
    return Boxes(found.sample[kept], found.corners[kept], found.kind[kept], found.score[kept])


def _curve(found: Boxes, wanted: Boxes, level: float, *, greedy: bool) -> tuple[NDArray[np.bool_], int]:
    """Whether each detection of one class is right, best first, and how many boxes there are.

    With `greedy` a detection takes the best box that is left; else its best box, which may be gone.
    """
    order = np.argsort(-found.score, kind="stable")
    taken = np.zeros(len(wanted.kind), bool)
    right = np.zeros(len(order), bool)
    for place, index in enumerate(order):
        (near,) = np.nonzero((wanted.sample == found.sample[index]) & ~(taken & greedy))
        if not len(near):
            continue
        shared = overlaps(found.corners[index : index + 1], wanted.corners[near])[0]
        best = near[shared.argmax()]
        if shared.max() >= level and not taken[best]:
            taken[best] = right[place] = True
    return right, len(wanted.kind)


def _precision(right: NDArray[np.bool_], wanted: int, points: Real | None) -> float:
    """Average precision: at given recalls, or the whole area under the envelope."""
    if not wanted or not len(right):
        return 0.0
    hits = np.cumsum(right)
    recall, precision = hits / wanted, hits / np.arange(1, len(right) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    if points is None:
        return float(np.sum(np.diff(recall, prepend=0.0) * envelope))
    places = np.searchsorted(recall, points - 1e-12, side="left")
    return float(np.mean(np.append(envelope, 0.0)[places]))
