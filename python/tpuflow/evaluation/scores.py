"""Task metrics at any level, the float network beside it, sample by sample.

Two levels are scored on the *same* samples: what quantisation costs is the difference of paired results,
which is far smaller than the error of either figure. Beside the difference stand the two counts it is made
of, samples right in float only and samples right in the tested level only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tpuflow.errors import SampleError
from tpuflow.evaluation.metrics import Metric, MetricError, metric, metric_list, metric_text
from tpuflow.evaluation.similarity import similarity
from tpuflow.execution.levels import Level, run_samples
from tpuflow.io.samples import load_labeled, load_samples

if TYPE_CHECKING:
    from pathlib import Path

    from tpuflow.io.samples import Samples

__all__ = ["Evaluation", "evaluate_level", "pair", "score"]

Array = NDArray[Any]


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
        reference: Mean score of the float network, if it was run and the metric can score it.
        right_to_wrong: Samples right in float only, for metrics of shares.
        wrong_to_right: Samples right in the level only.
        sqnr_db: Output against float, over all samples.
        agreement: Share of samples with the same arg-max as float.
        percent: Scores are shown in percent.
        smaller_is_better: The metric is an error.
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
    percent: bool = False
    smaller_is_better: bool = False

    def text_of(self, value: float) -> str:
        """A score as text: a share in percent, else three decimals."""
        return f"{value:.1%}" if self.percent else f"{value:.3f}"

    def shortfall(self, threshold: float | None, max_drop: float | None) -> str:
        """Describes how the score misses a threshold; empty where it does not.

        Args:
            threshold: The score may be no worse.
            max_drop: It may be no further from that of the float network on the worse side.
        """
        sign = -1.0 if self.smaller_is_better else 1.0
        word = "above" if self.smaller_is_better else "below"
        if threshold is not None and not sign * self.value >= sign * threshold:
            return f"{self.metric} {self.text_of(self.value)} is {word} {self.text_of(threshold)}"
        if max_drop is not None and self.reference is not None:
            drop = sign * (self.reference - self.value)
            if not drop <= max_drop:
                return (
                    f"{self.metric} {self.text_of(self.value)} is {self.text_of(drop)} {word} "
                    f"{self.text_of(self.reference)} of the float network, more than {self.text_of(max_drop)}"
                )
        return ""

    def to_json(self) -> dict[str, Any]:
        """All figures by name."""
        return {
            key: value for key, value in self.__dict__.items() if key not in {"percent", "smaller_is_better"}
        }


def pair(reference: Array, outputs: Array) -> Pairing:
    """How alike outputs [samples, ...] are to those of the float network."""
    found = similarity(reference, outputs)
    ours, theirs = (array.reshape(len(array), -1).argmax(1) for array in (outputs, reference))
    return Pairing(found.sqnr, float((ours == theirs).mean()))


def evaluate_level(
    level: Level,
    data: Path | tuple[Samples, Array | None],
    metrics: str,
    *,
    reference: Level | None = None,
    outputs: Sequence[str] = (),
    plugins: Mapping[str, Callable[..., Metric]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    run: Callable[..., dict[str, Array]] = run_samples,
) -> list[Evaluation]:
    """Scores a level on a file of samples, by one or several metrics.

    Args:
        level: What to score.
        data: `.npz` with the inputs, and `labels` if a metric needs them; or both.
        metrics: Names, with arguments in parentheses, separated by commas.
        reference: The float network, for the paired comparison.
        outputs: Which outputs to read; the first ones by default.
        plugins: Metrics beside the built-in ones.
        progress: Told how many samples the level has run.
        run: Runs one of the levels on samples, see `run_samples`.

    Raises:
        MetricError: A metric is unknown or needs what is not given; an output does not exist.
        SampleError: The data are wrong.
    """
    chosen = {
        metric_text(name, words): metric(name, words, plugins or {}) for name, words in metric_list(metrics)
    }
    for name, each in chosen.items():
        if each.against == "float" and reference is None:
            raise MetricError(f"{name} compares with the float network: give it with --float MODEL.onnx")
    wanted = {name: _outputs(name, each, level, reference, outputs) for name, each in chosen.items()}
    samples, labels = data if isinstance(data, tuple) else _open(data, level, chosen.values())
    if labels is None and any(each.against == "labels" for each in chosen.values()):
        raise SampleError('the samples have no labels, which the metric needs: add an array "labels"')
    found = run(level, samples, progress=progress)
    theirs = None if reference is None else run(reference, samples)
    return [
        score(
            [found[output] for output in wanted[name]],
            labels,
            None if theirs is None else [theirs[output] for output in wanted[name]],
            each,
            name=name,
            output=",".join(wanted[name]),
            level=level.kind,
        )
        for name, each in chosen.items()
    ]


def _outputs(
    name: str, chosen: Metric, level: Level, reference: Level | None, outputs: Sequence[str]
) -> tuple[str, ...]:
    """The outputs a metric reads, known to exist at both levels."""
    if not chosen.outputs:
        return tuple(outputs) or tuple(level.outputs)
    if len(level.outputs) < chosen.outputs:
        raise MetricError(f"{name} reads {chosen.outputs} outputs, the network has {len(level.outputs)}")
    found = tuple(outputs) or tuple(level.outputs[: chosen.outputs])
    if len(found) != chosen.outputs:
        raise MetricError(f"{name} reads {chosen.outputs} outputs, {len(found)} are named")
    for output in found:
        if output not in level.outputs:
            raise MetricError(f'no output is called "{output}": the network has {", ".join(level.outputs)}')
        if reference is not None and output not in reference.outputs:
            raise MetricError(
                f'output "{output}" is not one of the float network: {", ".join(reference.outputs)}'
            )
    return found


def score(
    outputs: Sequence[Array],
    labels: Array | None,
    reference: Sequence[Array] | None,
    chosen: Metric,
    *,
    name: str,
    output: str,
    level: str,
) -> Evaluation:
    """Scores outputs, each [samples, ...], computed elsewhere, beside those of the float network.

    Raises:
        MetricError: Outputs or labels do not fit the metric.
    """
    against = labels if chosen.against == "labels" else reference
    assert against is not None, "checked by the caller"
    fields: dict[str, Any] = {"value": chosen.value(outputs, against)}
    if reference is not None:
        pairing = pair(reference[0], outputs[0])
        fields |= {"sqnr_db": pairing.sqnr_db, "agreement": pairing.agreement}
    if reference is not None and chosen.against == "labels":
        fields["reference"] = chosen.value(reference, against)
        if chosen.share and chosen.score is not None:
            scores, floating = chosen.score(outputs, against), chosen.score(reference, against)
            fields["right_to_wrong"] = int(((floating == 1) & (scores == 0)).sum())
            fields["wrong_to_right"] = int(((floating == 0) & (scores == 1)).sum())
    return Evaluation(
        name,
        output,
        level,
        len(outputs[0]),
        percent=chosen.percent,
        smaller_is_better=chosen.smaller_is_better,
        **fields,
    )


def _open(data: Path, level: Level, chosen: Iterable[Metric]) -> tuple[Samples, Array | None]:
    if any(each.against == "labels" for each in chosen):
        return load_labeled(data, level.ports)
    try:
        return load_samples(data, level.ports), None
    except SampleError:
        # Labels may stand in the file all the same.
        return load_labeled(data, level.ports)[0], None
