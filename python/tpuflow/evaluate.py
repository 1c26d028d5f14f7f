"""Task metrics at any level, the float network beside it, sample by sample.

Two levels are judged on the *same* samples: what quantisation costs is the difference of paired results,
which is far smaller than the error of either figure. Beside the difference stand the two counts it is made
of, samples right in float only and samples right in the tested level only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import SampleError, TpuflowError
from tpuflow.run import Level, run_samples
from tpuflow.samples import load_labelled, load_samples
from tpuflow.similarity import cosine, euclid, similarity

if TYPE_CHECKING:
    from pathlib import Path

    from tpuflow.samples import Samples

__all__ = ["METRICS", "Evaluation", "Metric", "MetricError", "evaluate_level", "pair"]

Array = NDArray[Any]


class MetricError(TpuflowError):
    """A metric is unknown, or does not fit the data."""


@dataclass(frozen=True)
class Metric:
    """How one output of one sample is judged.

    Attributes:
        against: What it is compared with: the sample's label, or the float network's output.
        score: One number per sample from outputs [samples, ...] and labels [samples] or outputs of float.
        share: Scores are 0 or 1, so that their mean is a share of the samples.
    """

    against: Literal["labels", "float"]
    score: Callable[[Array, Array], NDArray[np.float64]]
    share: bool = False


def _top(count: int) -> Callable[[Array, Array], NDArray[np.float64]]:
    def score(outputs: Array, labels: Array) -> NDArray[np.float64]:
        flat = outputs.reshape(len(outputs), -1)
        if count == 1:
            return np.asarray(flat.argmax(1) == labels, np.float64)
        # Stable, so that of equal values the first index wins, as in arg-max.
        best = np.argsort(-flat.astype(np.float64), axis=1, kind="stable")[:, :count]
        return np.asarray((best == labels[:, np.newaxis]).any(1), np.float64)

    return score


def _each(measure: Callable[[Array, Array], float]) -> Callable[[Array, Array], NDArray[np.float64]]:
    def score(outputs: Array, reference: Array) -> NDArray[np.float64]:
        return np.array([measure(theirs, ours) for ours, theirs in zip(outputs, reference, strict=True)])

    return score


def _agreement(outputs: Array, reference: Array) -> NDArray[np.float64]:
    ours, theirs = (array.reshape(len(array), -1).argmax(1) for array in (outputs, reference))
    return np.asarray(ours == theirs, np.float64)


METRICS: dict[str, Metric] = {
    "top1": Metric("labels", _top(1), share=True),
    "top5": Metric("labels", _top(5), share=True),
    "cosine": Metric("float", _each(cosine)),
    "euclid": Metric("float", _each(euclid)),
    "agreement": Metric("float", _agreement, share=True),
}
"""By name. A new metric is one entry."""


@dataclass(frozen=True)
class Pairing:
    """Two sets of outputs of the same samples, the first one float.

    Attributes:
        sqnr_db: Signal to quantisation noise ratio over all samples; inf when equal.
        agreement: Share of samples with the same arg-max.
    """

    sqnr_db: float
    agreement: float


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate_level`.

    Attributes:
        metric: Name of the metric.
        output: Name of the output it read.
        level: What computed it: float, graph or program.
        samples: Number of samples.
        value: Mean score of the level.
        reference: Mean score of the float network, if it was run and the metric can judge it.
        right_to_wrong: Samples right in float only, for metrics of shares.
        wrong_to_right: Samples right in the level only.
        sqnr_db: Output against float, over all samples.
        agreement: Share of samples with the same arg-max as float.
    """

    metric: str
    output: str
    level: str
    samples: int
    value: float
    reference: float | None = None
    right_to_wrong: int | None = None
    wrong_to_right: int | None = None
    sqnr_db: float | None = None
    agreement: float | None = None

    def shown(self, value: float) -> str:
        """A score as text: a share in percent, else three decimals."""
        return f"{value:.1%}" if METRICS[self.metric].share else f"{value:.3f}"

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return dict(self.__dict__)


def pair(reference: Array, outputs: Array) -> Pairing:
    """How alike outputs [samples, ...] are to those of the float network."""
    found = similarity(reference, outputs)
    return Pairing(found.sqnr, float(_agreement(outputs, reference).mean()))


def evaluate_level(
    level: Level,
    data: Path,
    metric: str,
    *,
    reference: Level | None = None,
    output: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Scores a level on a file of samples.

    Args:
        level: What to judge.
        data: `.npz` with the inputs, and `labels` if the metric needs them.
        metric: A name in `METRICS`.
        reference: The float network, for the paired comparison.
        output: Which output to read; the first one by default.
        progress: Told after every feed of the level.

    Raises:
        MetricError: The metric is unknown or needs what is not given; the output does not exist.
        SampleError: The data are wrong.
    """
    if metric not in METRICS:
        raise MetricError(f'no metric is called "{metric}": choose one of {", ".join(METRICS)}')
    chosen = METRICS[metric]
    if chosen.against == "float" and reference is None:
        raise MetricError(f"{metric} compares with the float network: give it with --float MODEL.onnx")
    name = level.outputs[0] if output is None else output
    if name not in level.outputs:
        raise MetricError(f'no output is called "{name}": the network has {", ".join(level.outputs)}')
    samples, labels = _open(data, level, chosen)
    outputs = run_samples(level, samples, progress=progress)[name]
    theirs = None
    if reference is not None:
        if name not in reference.outputs:
            raise MetricError(
                f'output "{name}" is not one of the float network: {", ".join(reference.outputs)}'
            )
        theirs = run_samples(reference, samples)[name]
    return judge(outputs, labels, theirs, metric, output=name, level=level.kind)


def judge(
    outputs: Array, labels: Array | None, reference: Array | None, metric: str, *, output: str, level: str
) -> Evaluation:
    """Scores outputs [samples, ...] computed elsewhere; the arguments are those of `evaluate_level`."""
    chosen = METRICS[metric]
    against = labels if chosen.against == "labels" else reference
    assert against is not None, "checked by the caller"
    scores = chosen.score(outputs, against)
    fields: dict[str, Any] = {"value": _mean(scores)}
    if reference is not None:
        pairing = pair(reference, outputs)
        fields |= {"sqnr_db": pairing.sqnr_db, "agreement": pairing.agreement}
    if reference is not None and chosen.against == "labels":
        floating = chosen.score(reference, against)
        fields["reference"] = _mean(floating)
        if chosen.share:
            fields["right_to_wrong"] = int(((floating == 1) & (scores == 0)).sum())
            fields["wrong_to_right"] = int(((floating == 0) & (scores == 1)).sum())
    return Evaluation(metric, output, level, len(outputs), **fields)


def _mean(scores: NDArray[np.float64]) -> float:
    return float(scores.mean()) if scores.size else math.nan


def _open(data: Path, level: Level, metric: Metric) -> tuple[Samples, Array | None]:
    if metric.against == "float":
        try:
            return load_samples(data, level.ports), None
        except SampleError:
            # Labels may stand in the file all the same.
            return load_labelled(data, level.ports)[0], None
    samples, labels = load_labelled(data, level.ports)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise SampleError(f'{data}: array "labels" must hold one whole number per sample')
    return samples, labels
