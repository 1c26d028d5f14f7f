"""Every metric against a brute force written from its definition, on small random data."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tpuflow.evaluation.metrics import METRICS, Metric, MetricError, metric, metric_list
from tpuflow.evaluation.metrics.detection import non_maximum_suppression

Array = NDArray[Any]
seeds = st.integers(0, 2**32 - 1)


def value(name: str, outputs: Array | list[Array], against: Any, *words: str) -> float:
    return metric(name, words).value(outputs if isinstance(outputs, list) else [outputs], against)


@given(seeds, st.integers(1, 6))
@pytest.mark.feature("CMP-12")
def test_top_k_equals_its_definition(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.integers(0, 5, (9, 7)).astype(np.float32)
    labels = rng.integers(0, 7, 9)
    hits = 0
    for row, label in zip(outputs.tolist(), labels.tolist(), strict=True):
        # How many classes come before the label: larger ones, and equal ones of smaller index.
        before = sum(x > row[label] or (x == row[label] and i < label) for i, x in enumerate(row))
        hits += before < k
    assert value("top", outputs, labels, str(k)) == pytest.approx(hits / 9)


@given(seeds)
@pytest.mark.feature("CMP-12")
def test_f1_equals_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, labels = rng.normal(size=(12, 4)), rng.integers(0, 4, 12)
    found = [max(range(4), key=lambda c, row=row: row[c]) for row in outputs]  # type: ignore[misc]
    each = {}
    for c in range(4):
        hits = sum(f == c and w == c for f, w in zip(found, labels, strict=True))
        predicted, wanted = found.count(c), labels.tolist().count(c)
        if predicted + wanted == 0:
            continue
        precision = hits / predicted if predicted else 0.0
        recall = hits / wanted if wanted else 0.0
        each[c] = 2 * precision * recall / (precision + recall) if hits else 0.0
        assert value("f1", outputs, labels, str(c)) == pytest.approx(each[c])
    assert value("f1", outputs, labels) == pytest.approx(sum(each.values()) / len(each))
    right = sum(f == w for f, w in zip(found, labels, strict=True))
    assert value("f1", outputs, labels, "micro") == pytest.approx(right / 12)


@given(seeds, st.booleans())
@pytest.mark.feature("CMP-12")
def test_shares_of_pixels_and_areas(seed: int, scores: bool) -> None:  # noqa: FBT001 - drawn
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 4, (3, 4, 5))
    labels = rng.choice([0, 1, 2, 5, 255, -1], (3, 4, 5), p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.05])
    labels.flat[0] = 0
    outputs = np.eye(6)[classes].transpose(0, 3, 1, 2) if scores else classes
    pairs = [(f, w) for f, w in zip(classes.flat, labels.flat, strict=True) if w not in {255, -1}]
    right = sum(f == w for f, w in pairs)
    assert value("pixel_accuracy", outputs, labels) == pytest.approx(right / len(pairs))
    accuracies, ious = [], []
    for c in range(6):
        both = sum(f == c and w == c for f, w in pairs)
        wanted = sum(w == c for _, w in pairs)
        either = sum(c in {f, w} for f, w in pairs)
        if wanted:
            accuracies.append(both / wanted)
        if either:
            ious.append(both / either)
    assert value("mpa", outputs, labels) == pytest.approx(sum(accuracies) / len(accuracies))
    assert value("miou", outputs, labels) == pytest.approx(sum(ious) / len(ious))


@given(seeds)
@pytest.mark.feature("CMP-12")
def test_distances_equal_their_definitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ours, theirs = rng.normal(size=(2, 3, 2, 5)).astype(np.float32)
    pairs = [(float(a), float(b)) for a, b in zip(ours.flat, theirs.flat, strict=True)]
    squared = math.fsum((a - b) ** 2 for a, b in pairs) / len(pairs)
    assert value("rmse", ours, [theirs]) == pytest.approx(math.sqrt(squared))
    assert value("rmse", ours, theirs, "labels") == pytest.approx(math.sqrt(squared))
    assert value("max_error", ours, [theirs]) == pytest.approx(max(abs(a - b) for a, b in pairs))
    assert value("psnr", ours, theirs, "255", "labels") == pytest.approx(10 * math.log10(255**2 / squared))
    span = max(b for _, b in pairs) - min(b for _, b in pairs)
    assert value("psnr", ours, [theirs]) == pytest.approx(10 * math.log10(span**2 / squared))
    cosines = []
    for a, b in zip(ours, theirs, strict=True):
        dot = math.fsum(float(x) * float(y) for x, y in zip(a.flat, b.flat, strict=True))
        norms = [math.sqrt(math.fsum(float(x) ** 2 for x in each.flat)) for each in (a, b)]
        cosines.append(dot / (norms[0] * norms[1]))
    assert value("cosine", ours, [theirs]) == pytest.approx(sum(cosines) / 3)


def test_equal_values_are_infinitely_alike() -> None:
    same = np.arange(4.0)
    assert value("psnr", same, [same]) == math.inf
    assert value("psnr", np.zeros(3), [np.ones(3)]) == -math.inf


def slow_distance(found: tuple[int, ...], wanted: tuple[int, ...]) -> int:
    if not found or not wanted:
        return len(found) + len(wanted)
    return min(
        slow_distance(found[1:], wanted) + 1,
        slow_distance(found, wanted[1:]) + 1,
        slow_distance(found[1:], wanted[1:]) + (found[0] != wanted[0]),
    )


@given(seeds)
@pytest.mark.feature("CMP-12")
def test_word_error_rate(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found, wanted = rng.integers(-1, 3, (3, 5)), rng.integers(-1, 3, (3, 4))
    wanted[0, 0] = 1
    texts = [tuple(int(word) for word in row if word >= 0) for row in found]
    labels = [tuple(int(word) for word in row if word >= 0) for row in wanted]
    errors = sum(slow_distance(a, b) for a, b in zip(texts, labels, strict=True))
    assert value("wer", found, wanted) == pytest.approx(errors / sum(map(len, labels)))


@pytest.mark.feature("CMP-12")
def test_words_of_scores_are_the_best_once_without_blanks() -> None:
    steps = [0, 2, 2, 0, 2, 3, 3, 0]
    scores = np.eye(4)[steps][np.newaxis]
    assert value("wer", scores, np.array([[2, 2, 3]])) == 0
    assert value("wer", scores, np.array([[2, 3, -1]])) == pytest.approx(1 / 2)
    assert value("wer", scores, np.array([[0, 2, 0, 2, 0]]), "3") == 0


Box = tuple[float, ...]


def iou(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def slow_ap(found: list[Any], wanted: list[Any], level: float, points: int | None, *, left: bool) -> float:
    """Average precision of one class; `found` and `wanted` are (sample, box, score) and (sample, box).

    Precision at a recall is the best one at that recall or beyond, asked at `points` recalls or everywhere.
    """
    used: set[int] = set()
    hits, curve = 0, []
    for place, (sample, box, _) in enumerate(sorted(found, key=lambda row: -row[2]), 1):
        choices = [
            (iou(box, other), -i)
            for i, (owner, other) in enumerate(wanted)
            if owner == sample and not (left and i in used)
        ]
        if choices:
            overlap, index = max(choices)
            if overlap >= level and -index not in used:
                used.add(-index)
                hits += 1
        curve.append((hits / len(wanted), hits / place))

    def best(recall: float) -> float:
        return max((p for r, p in curve if r >= recall - 1e-12), default=0.0)

    if points is not None:
        return sum(best(i / (points - 1)) for i in range(points)) / points
    return sum(best((i + 1) / len(wanted)) for i in range(len(wanted))) / len(wanted)


def scene(seed: int) -> tuple[Array, Array, dict[int, list[Any]], dict[int, list[Any]]]:
    """Detections and labels of three samples and classes, as arrays and as lists by class."""
    rng = np.random.default_rng(seed)
    labels = np.full((3, 4, 5), -1.0)
    rows = np.zeros((3, 9, 6))
    scores = iter(rng.permutation(27) / 27 + 0.01)
    wanted: dict[int, list[Any]] = {}
    found: dict[int, list[Any]] = {}
    for sample in range(3):
        boxes = []
        for i in range(int(rng.integers(1, 5))):
            corner, size, kind = rng.integers(0, 8, 2), rng.integers(2, 7, 2), int(rng.integers(0, 3))
            labels[sample, i] = [*corner, *(corner + size), kind]
            boxes.append((labels[sample, i, :4], kind))
            wanted.setdefault(kind, []).append((sample, tuple(labels[sample, i, :4])))
        for i in range(int(rng.integers(0, 10))):
            base, kind = boxes[int(rng.integers(0, len(boxes)))]
            moved = base + rng.integers(-1, 2, 4) * rng.choice([0, 0.25, 1])
            kind = kind if rng.random() < 0.8 else int(rng.integers(0, 4))
            score = float(next(scores))
            rows[sample, i] = [*moved, score, kind]
            found.setdefault(kind, []).append((sample, tuple(moved), score))
    return rows, labels, found, wanted


@given(seeds)
@pytest.mark.feature("CMP-12")
def test_voc_mean_average_precision(seed: int) -> None:
    rows, labels, found, wanted = scene(seed)
    for level, year, points in ((0.5, 2012, None), (0.5, 2007, 11), (0.75, 2012, None)):
        each = [
            slow_ap(found.get(kind, []), boxes, level, points, left=False) for kind, boxes in wanted.items()
        ]
        assert value("voc_map", rows, labels, str(level), str(year)) == pytest.approx(sum(each) / len(each))


@given(seeds)
@pytest.mark.feature("CMP-12")
def test_coco_mean_average_precision(seed: int) -> None:
    rows, labels, found, wanted = scene(seed)
    each = [
        slow_ap(found.get(kind, []), boxes, 0.5 + 0.05 * i, 101, left=True)
        for kind, boxes in wanted.items()
        for i in range(10)
    ]
    assert value("coco_map", rows, labels) == pytest.approx(sum(each) / len(each))


@pytest.mark.feature("CMP-12")
def test_a_precision_by_hand() -> None:
    labels = np.array([[[0, 0, 10, 10, 1], [20, 20, 30, 30, 1]]])
    rows = np.array([[[0, 0, 10, 10, 0.9, 1], [50, 50, 60, 60, 0.8, 1], [20, 20, 30, 31, 0.7, 1]]])
    # Right, wrong, right: the area is 1/2 at precision 1 and 1/2 at 2/3.
    assert value("voc_map", rows, labels) == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert value("f1_boxes", rows, labels) == pytest.approx(2 * 2 / 5)
    assert value("f1_boxes", rows, labels, "0.75") == pytest.approx(2 * 1 / 4)


@given(seeds)
def test_boxes_that_remain_overlap_no_better_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, 6, (8, 2)).repeat(2, axis=0).reshape(8, 4)[:, [0, 2, 1, 3]].astype(float)
    corners[:, 2:] = corners[:, :2] + rng.integers(1, 6, (8, 2))
    scores = rng.permutation(8) / 8
    kept: list[int] = []
    for i in sorted(range(8), key=lambda i: -scores[i]):
        if all(iou(tuple(corners[i]), tuple(corners[j])) <= 0.45 for j in kept):
            kept.append(i)
    assert non_maximum_suppression(corners, scores).tolist() == kept


@pytest.mark.feature("CMP-12")
def test_boxes_and_scores_of_two_outputs() -> None:
    boxes = np.array([[[0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]]], float)
    scores = np.array([[[0.1, 0.9], [0.2, 0.8], [0.95, 0.005]]])
    labels = np.array([[[0, 0, 10, 10, 1], [20, 20, 30, 30, 0]]])
    assert value("voc_map", [boxes, scores], labels, "0.5", "2012", "2") == 1
    assert value("f1_boxes", [boxes, scores], labels[:, :1], "0.5", "0.5", "2", "0") == 1
    assert metric("coco_map", ("2",)).outputs == 2


def test_coco_counts_a_hundred_boxes_of_an_image_and_class() -> None:
    labels = np.array([[[0, 0, 10, 10, 0]]])
    rows = np.array([[[50, 50, 60, 60, 1 - i / 200, 0] for i in range(100)] + [[0, 0, 10, 10, 0.1, 0]]])
    assert value("coco_map", rows, labels) == 0
    assert value("coco_map", rows[:, 1:], labels) == pytest.approx(1 / 100)


@pytest.mark.feature("PLG-03")
def test_lists_of_metrics_with_arguments() -> None:
    assert metric_list("TopKMetric,TopKMetric(5),X(a,b)") == [
        ("TopKMetric", ()),
        ("TopKMetric", ("5",)),
        ("X", ("a", "b")),
    ]
    assert metric_list(" a ( 1 , 2 ) , b() ") == [("a", ("1", "2")), ("b", ())]
    outputs, labels = np.eye(8)[:3] + np.eye(8)[2], np.array([0, 1, 3])
    assert value("TopKMetric", outputs, labels, "2") == pytest.approx(2 / 3)


@pytest.mark.parametrize("text", ["", "a,", "a(", "a)b", "a b", "a((1))", ",a"])
@pytest.mark.feature("PLG-03")
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(MetricError, match="is not a list of metrics"):
        metric_list(text)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("best", (), 'no metric is called "best": choose one of top1, top5'),
        ("top", ("x",), 'top: "x" is not a whole number'),
        ("top", ("0",), "0 is below 1"),
        ("top1", ("2",), "top1 takes the arguments ()"),
        ("voc_map", ("x",), "is not a number"),
        ("cosine", ("x",), 'compares with "labels" or "float", not with "x"'),
        ("coco_map", ("3",), "detections stand in 1 or 2 outputs, not in 3"),
    ],
)
def test_what_is_no_metric(name: str, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(MetricError) as caught:
        value(name, np.zeros((1, 2)), np.zeros(1, np.int64), *words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG: list[tuple[str, Array, Array]] = [
    ("top1", np.zeros((2, 3)), np.zeros((2, 3))),
    ("miou", np.zeros((2, 3, 4, 4)), np.zeros((2, 5, 5), np.int64)),
    ("miou", np.zeros((2, 3, 4, 4)), np.full((2, 4, 4), 255)),
    ("wer", np.zeros((2, 3)), np.zeros(2, np.int64)),
    ("coco_map", np.zeros((2, 3)), np.zeros((2, 1, 5))),
    ("coco_map", np.zeros((2, 3, 6)), np.zeros((2, 1, 4))),
]


@pytest.mark.parametrize(("name", "outputs", "labels"), WRONG)
def test_outputs_and_labels_that_do_not_fit(name: str, outputs: Array, labels: Array) -> None:
    with pytest.raises(MetricError) as caught:
        value(name, outputs, labels)
    assert "\n" not in str(caught.value)


def test_means_of_scores_are_values() -> None:
    rng = np.random.default_rng(3)
    outputs, theirs, labels = rng.normal(size=(5, 4)), rng.normal(size=(5, 4)), rng.integers(0, 4, 5)
    scored: list[tuple[Metric, Any]] = []
    for name, maker in METRICS.items():
        made = maker()
        if made.score is not None:
            scored.append((made, labels if made.against == "labels" else [theirs]))
            assert made.percent == made.share, name
    assert len(scored) == 6
    for (made, against), _ in itertools.product(scored, range(1)):
        assert made.score is not None
        assert made.value([outputs], against) == pytest.approx(made.score([outputs], against).mean())
