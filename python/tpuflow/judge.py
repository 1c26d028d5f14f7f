"""What quantised networks make of samples, beside float: noise, decisions, losses and the task metric.

One judge serves whoever tries ways to quantise: it runs float once, and every graph it is shown on the same
samples. Samples may come in groups, of which the worst counts (`Judge.seen`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import SampleError
from tpuflow.frontend import FloatSession
from tpuflow.frontend.values import attributes_of, shape_of
from tpuflow.metrics import Metric, MetricError, metric, metric_list
from tpuflow.run import graph_level, run_samples
from tpuflow.samples import joined_samples

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend import FloatModel
    from tpuflow.samples import Samples
    from tpuflow.store import AnyGraph

__all__ = ["LOSSES", "Judge", "Outputs", "Seen", "expected_flips"]

Array = NDArray[Any]
Outputs = Sequence[Mapping[str, Array]]
"""Of every group of samples what came out, by name, with the samples along the first axis."""

MOVES = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze"})
"""Operators that may stand between a softmax and the output."""

DEVIATIONS = np.linspace(0.0, 8.0, 2049)
EXCEEDED = np.array([math.erfc(each / math.sqrt(2)) / 2 for each in DEVIATIONS])
"""The chance that normal noise exceeds so many of its deviations, within a millionth between two entries."""


@dataclass(frozen=True)
class Seen:
    """How far a quantised network is from float.

    Attributes:
        sqnr_db: Signal to noise by output; infinite where there is no noise.
        flips: Share of decisions that differ; 0 of a network that makes none.
        decisions: How many there are.
        expected_flips: Share of decisions that noise of this power is expected to turn (`expected_flips`).
    """

    sqnr_db: Mapping[str, float]
    flips: float
    decisions: int = 0
    expected_flips: float = 0.0

    @property
    def mean_db(self) -> float:
        """The mean over the outputs."""
        return float(np.mean(list(self.sqnr_db.values()))) if self.sqnr_db else math.inf

    @property
    def score(self) -> float:
        """Decibels, less one for every percent of decisions that are expected to differ.

        Those that do differ among some hundred are a handful, more or fewer by chance.
        """
        return self.mean_db - 100 * self.expected_flips

    @classmethod
    def mean(cls, parts: Sequence[Seen]) -> Seen:
        """What several judges saw: the mean of decibels, all decisions together."""
        decisions = sum(part.decisions for part in parts)
        differ, expected = (
            sum(getattr(part, key) * part.decisions for part in parts) / max(1, decisions)
            for key in ("flips", "expected_flips")
        )
        names = parts[0].sqnr_db
        return cls(
            {name: float(np.mean([part.sqnr_db[name] for part in parts])) for name in names},
            differ,
            decisions,
            expected,
        )

    def beats(self, other: Seen, margin_db: float) -> bool:
        """Whether this is closer by a margin, and no single output pays for the others with twice that.

        With a negative margin it may be as much worse.
        """
        paid = any(each < other.sqnr_db[name] - 2 * abs(margin_db) for name, each in self.sqnr_db.items())
        return self.score > other.score + margin_db and not paid


def expected_flips(floating: Array, made: Array) -> float:
    """Share of decisions that are expected to differ, from how near others are and how large errors are.

    The error of the difference between the two largest is taken for normal noise, of the same power for all
    decisions: each differs with the chance that this noise exceeds its own difference.

    Args:
        floating: What is decided among, along the last axis, in float.
        made: The same quantised.
    """
    if floating.shape[-1] < 2:
        return 0.0
    # Two passes along the classes instead of sorting them: an output may hold a decision for every pixel.
    largest = floating.argmax(-1)[..., np.newaxis]
    others = np.array(floating)
    np.put_along_axis(others, largest, -np.inf, -1)
    second = others.argmax(-1)[..., np.newaxis]
    margins, made_margins = (
        (np.take_along_axis(each, largest, -1) - np.take_along_axis(each, second, -1)).ravel()
        for each in (floating, made)
    )
    noise = float(np.sqrt(np.mean((made_margins - margins) ** 2)))
    if not noise:
        return 0.0
    return float(np.mean(np.interp(margins / noise, DEVIATIONS, EXCEEDED, right=0.0)))


def _noise(x: Array, y: Array) -> float:
    """Power of the error over that of the signal: of independent errors it adds up."""
    signal = float(np.vdot(x, x))
    return float(np.vdot(x - y, x - y)) / signal if signal else float(not np.array_equal(x, y))


def _mse(x: Array, y: Array) -> float:
    return float(np.mean((x - y) ** 2)) if x.size else 0.0


def _cosine(x: Array, y: Array) -> float:
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    return 1.0 - float(np.vdot(x, y)) / lengths if lengths else float(np.any(x) != np.any(y))


def _divergence(x: Array, y: Array) -> float:
    """Mean Kullback-Leibler divergence of the softmax of rows."""
    rows = [each.reshape(len(each), -1) for each in (x, y)]
    logs = [each - each.max(1, keepdims=True) for each in rows]
    p, q = (each - np.log(np.exp(each).sum(1, keepdims=True)) for each in logs)
    return float(np.mean(np.sum(np.exp(p) * (p - q), axis=1)))


LOSSES: Mapping[str, Callable[[Array, Array], float]] = {
    "sqnr": _noise,
    "mse": _mse,
    "cosine": _cosine,
    "kl": _divergence,
}
"""By name: how far one output is from that of float, float64 arrays [samples, ...]; 0 where they are equal.

`cosine` does not see a wrong gain; `sqnr` (noise over signal) and `mse` do.
"""


class Judge:
    """Compares graphs with float on the same samples; float is run once, when first asked for.

    Of an output a softmax makes, noise is that of its operand where the graph shows it: probabilities of
    samples near a border between classes would outweigh all others. Decisions are the largest of what such an
    output, or one of the shape `[samples, classes]`, holds.

    Args:
        model: The float network.
        samples: Groups of samples, at least one.
        labels: One per sample, if there are any.
        metric_text: The task metric, such as `top1`; none where it is not asked for.
        plugins: Metrics beside the built-in ones.
        loss: Name of a loss.

    Raises:
        MetricError: The metric or loss is unknown, or the network lacks what it reads.
        SampleError: The metric needs labels.
    """

    def __init__(
        self,
        model: FloatModel,
        *samples: Samples,
        labels: Array | None = None,
        metric_text: str = "",
        plugins: Mapping[str, Callable[..., Metric]] | None = None,
        loss: str = "sqnr",
    ) -> None:
        if loss not in LOSSES:
            raise MetricError(f'"{loss}" is no loss: choose one of {", ".join(LOSSES)}')
        self.loss_name = loss
        self.name = metric_text
        self._groups = samples
        self._labels = labels
        self._metric: Metric | None = None
        outputs = model.model.graph.outputs
        self._compared = {value.name or "": _compared(value) for value in outputs}
        self._classes = {name: _axis_of_classes(value) for value in outputs for name in _names(value)}
        self._read = list(self._compared)
        if metric_text:
            (name, words), *_ = metric_list(metric_text)
            self._metric = metric(name, words, plugins or {})
            if len(self._read) < self._metric.outputs:
                raise MetricError(
                    f"{name} reads {self._metric.outputs} outputs, the network has {len(self._read)}"
                )
            self._read = self._read[: self._metric.outputs] or self._read
            if self._metric.against == "labels" and labels is None:
                raise SampleError(f"the samples have no labels, which {name} needs")
        self._names = tuple(dict.fromkeys([*self._compared.values(), *self._compared]))
        self._model = model

    @cached_property
    def _floating(self) -> Outputs:
        session = FloatSession(self._model.model, list(self._names))
        dynamic = frozenset(port.name for port in self._model.outputs if not port.static)
        return [_floats(session, group, dynamic) for group in self._groups]

    @cached_property
    def base(self) -> float:
        """The metric of the float network; NaN without a metric."""
        return float("nan") if self._metric is None else self.value(self._floating)

    @property
    def smaller_is_better(self) -> bool:
        """Whether the metric is an error."""
        return self._metric is not None and self._metric.smaller_is_better

    @property
    def percent(self) -> bool:
        """Whether the metric is shown in percent."""
        return self._metric is not None and self._metric.percent

    def outputs(self, graph: AnyGraph) -> Outputs:
        """What a graph makes of the samples."""
        level, inside = graph_level(graph), len(self._names) > len(self._compared)
        return [run_samples(level, group, all_tensors=inside, names=self._names) for group in self._groups]

    def value(self, outputs: Outputs) -> float:
        """The metric of outputs."""
        assert self._metric is not None, "a metric was asked for"
        given: Any = self._labels
        if self._metric.against == "float":
            given = [_joined(self._floating, name) for name in self._read]
        return float(self._metric.value([_joined(outputs, name) for name in self._read], given))

    def worse(self, value: float) -> float:
        """By how much a value of the metric is worse than float."""
        return value - self.base if self.smaller_is_better else self.base - value

    def loss(self, outputs: Outputs) -> float:
        """How far outputs are from float: the mean over the network's floating outputs."""
        found = []
        for name in self._compared:
            floating, made = _joined(self._floating, name), _joined(outputs, name)
            if floating.dtype.kind == "f" and made.shape == floating.shape:
                found.append(LOSSES[self.loss_name](floating.astype(np.float64), made.astype(np.float64)))
        return float(np.mean(found)) if found else 0.0

    def sqnr_db(self, graph: AnyGraph) -> float:
        """Signal to noise of the outputs, the mean over them; infinite where there is no noise."""
        return self.seen(graph).mean_db

    def seen(self, graph: AnyGraph) -> Seen:
        """Noise and decisions of a graph; of every output the group that comes out worst counts."""
        found = [self._seen(*pair) for pair in zip(self._floating, self.outputs(graph), strict=True)]
        worst: dict[str, float] = {}
        for part in found:
            worst |= {name: min(ratio, worst.get(name, math.inf)) for name, ratio in part.sqnr_db.items()}
        return Seen.mean([replace(part, sqnr_db=worst) for part in found])

    def _seen(self, floating: Mapping[str, Array], made: Mapping[str, Array]) -> Seen:
        """Of a group."""
        ratios: dict[str, float] = {}
        differ = decided = 0
        expected = 0.0
        for output, operand in self._compared.items():
            name = operand if operand in made else output
            value, axis = floating[name], self._classes[name]
            if name not in made or value.dtype.kind != "f" or made[name].size != value.size:
                continue
            own = made[name].astype(np.float64).reshape(value.shape)
            signal, noise = float(np.sum(value.astype(np.float64) ** 2)), float(np.sum((own - value) ** 2))
            if signal > 0:
                ratios[output] = 10 * math.log10(signal / noise) if noise else math.inf
            if axis is not None and value.shape[axis] > 1:
                count = value.size // value.shape[axis]
                differ += int(np.sum(own.argmax(axis) != value.argmax(axis)))
                expected += count * expected_flips(*(np.moveaxis(each, axis, -1) for each in (value, own)))
                decided += count
        return Seen(ratios, differ / max(1, decided), decided, expected / max(1, decided))


def _floats(session: FloatSession, samples: Samples, dynamic: frozenset[str]) -> dict[str, Array]:
    feeds: dict[str, list[Array]] = {}
    for batch in samples.batches():
        for name, array in session.run(batch.arrays).items():
            feeds.setdefault(name, []).append(array)
    return joined_samples(feeds, samples, dynamic)


def _joined(outputs: Outputs, name: str) -> Array:
    """One output of all groups."""
    parts = [group[name] for group in outputs]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _compared(value: ir.Value) -> str:
    """Name of an output, or of the operand of the softmax that makes it."""
    node = value.producer()
    while node is not None and node.op_type in MOVES | {"Softmax"}:
        operand = node.inputs[0]
        if operand is None:
            break
        if node.op_type == "Softmax":
            return operand.name or value.name or ""
        node = operand.producer()
    return value.name or ""


def _names(value: ir.Value) -> set[str]:
    return {value.name or "", _compared(value)}


def _axis_of_classes(value: ir.Value) -> int | None:
    """The axis of an output whose largest entry is a decision, from the end; None where there is none."""
    shape, node = shape_of(value) or (), value.producer()
    while node is not None and node.op_type in MOVES and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "Softmax":
        return -1 if len(shape) == 2 and shape[1] > 1 else None
    axis, rank = attributes_of(node).get("axis", -1), len(shape_of(node.outputs[0]) or ())
    moved = node.outputs[0] is not value
    if not isinstance(axis, int) or not rank:
        return None
    # Behind other axes the last one is still that of classes, if it was.
    if not moved:
        return axis % rank - rank
    return -1 if rank == len(shape) and axis % rank == rank - 1 else None
