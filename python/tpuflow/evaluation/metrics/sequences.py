"""Sequences: errors per word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpuflow.evaluation.metrics.metric import Array, Metric, MetricError, whole

__all__ = ["word_error_rate"]


def word_error_rate(blank: str = "0") -> Metric:
    """Insertions, deletions and substitutions that turn what is found into the label, per word of all labels.

    Labels are `[samples, words]`, filled up with negative numbers. Outputs are such words too, or scores
    `[samples, steps, words]`: then the best word of each step counts, repetitions once, `blank` never.
    """
    nothing = whole(blank, "wer")

    def value(outputs: Sequence[Array], labels: Any) -> float:
        found = outputs[0]
        if labels.ndim != 2 or labels.dtype.kind not in "iu" or found.ndim not in {2, 3}:
            raise MetricError(
                f'outputs {found.shape} and array "labels" {labels.shape} are not sequences of words'
            )
        texts = [_spoken(row, nothing) if found.ndim == 3 else _words(row) for row in found]
        wanted = [_words(row) for row in labels]
        total = sum(len(words) for words in wanted)
        errors = sum(distance(text, words) for text, words in zip(texts, wanted, strict=True))
        return errors / total if total else float("nan")

    return Metric("labels", value, percent=True, smaller_is_better=True)


def _words(row: Array) -> list[int]:
    return [int(word) for word in np.rint(row) if word >= 0]


def _spoken(scores: Array, blank: int) -> list[int]:
    best = [int(word) for word in scores.argmax(1)]
    return [word for i, word in enumerate(best) if word != blank and (i == 0 or best[i - 1] != word)]


def distance(found: Sequence[int], wanted: Sequence[int]) -> int:
    """Least number of insertions, deletions and substitutions between two sequences."""
    row = list(range(len(wanted) + 1))
    for i, word in enumerate(found, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(wanted, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (word != other))
    return row[-1]
