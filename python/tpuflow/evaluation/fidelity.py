"""Quantised networks compared with float on samples: noise, decisions, losses and the task metric.

One evaluator serves whoever tries ways to quantise: it runs float once, and every graph on the same
samples. Samples may come in groups, of which the worst counts (`Evaluator.fidelity`).
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
from tpuflow.evaluation.metrics import Metric, MetricError, metric, metric_list
from tpuflow.execution.levels import graph_level, run_samples
from tpuflow.frontend import FloatSession
from tpuflow.frontend.values import attributes_of, shape_of
from tpuflow.io.samples import joined_samples

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["LOSSES", "Evaluator", "Fidelity", "Outputs", "expected_flips", "parts_of_output"]

Array = NDArray[Any]
Outputs = Sequence[Mapping[str, Array]]
"""Of every group of samples what came out, by name, with the samples along the first axis."""

MOVES = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze"})
"""Operators that may stand between a softmax or a concatenation and the output."""

NEAR = 4.0
"""Deviations of noise within which a decision may turn: noise is measured where it matters."""

LEAST = 64
"""Decisions that noise is measured with, at least."""

EXACT = 1e-12
"""Noise over signal of what is taken for equal, where it is averaged with others."""

DEVIATIONS = np.linspace(0.0, 8.0, 2049)
EXCEEDED = np.array([math.erfc(each / math.sqrt(2)) / 2 for each in DEVIATIONS])
"""The chance that normal noise exceeds so many of its deviations, within a millionth between two entries."""


@dataclass(frozen=True)
class Fidelity:
    """How far a quantised network is from float.

    Attributes:
        sqnr_db: Signal to noise by output; infinite where there is no noise. Of one that is concatenated the
            mean over what it is made of: boxes must not hide scores.
        flips: Decisions that differ by those there are; 0 of a network that makes none.
        decisions: How many there are: one a sample; of a network that decides for many places at a time those
            for other than the commonest class, which is background.
        expected_flips: Decisions that noise of this power is expected to turn (`expected_flips`), likewise.
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
    def mean(cls, parts: Sequence[Fidelity]) -> Fidelity:
        """The fidelity over several groups of samples: the mean of decibels, all decisions together."""
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

    def beats(self, other: Fidelity, margin_db: float) -> bool:
        """Whether this is closer by a margin, and no single output pays for the others with twice that.

        With a negative margin it may be as much worse.
        """
        paid = any(each < other.sqnr_db[name] - 2 * abs(margin_db) for name, each in self.sqnr_db.items())
        return self.score > other.score + margin_db and not paid


def expected_flips(floating: Array, made: Array) -> float:
    """Share of decisions that are expected to differ, from how near others are and how large errors are.

    The error of the difference between the two largest is taken for normal noise, of the same power for all
    decisions that are near enough to turn: each differs with the chance that this noise exceeds its own
    difference.

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
    noise = _deviation(margins, made_margins - margins)
    if not noise:
        return 0.0
    return float(np.mean(np.interp(margins / noise, DEVIATIONS, EXCEEDED, right=0.0)))


def _deviation(margins: Array, errors: Array) -> float:
    """Of the errors of those decisions that may turn; the many far from it may have noise of their own."""
    least = np.partition(margins, LEAST - 1)[LEAST - 1] if margins.size > LEAST else np.inf
    near = margins < np.inf
    deviation = 0.0
    for _ in range(8):
        deviation = float(np.sqrt(np.mean(errors[near] ** 2)))
        now = margins <= max(NEAR * deviation, least)
        if np.array_equal(now, near):
            break
        near = now
    return deviation


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


class Evaluator:
    """Compares graphs with float on the same samples; float is run once, when first asked for.

    An output that is concatenated is compared part by part. Of what a softmax makes, noise is that of its
    operand where the graph shows it: probabilities of samples near a border between classes would outweigh
    all others. Decisions are the largest of what such an output, or one of the shape `[samples, classes]`,
    holds.

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
            raise MetricError(f'unknown loss "{loss}" (known: {", ".join(LOSSES)})')
        self.loss_name = loss
        self.name = metric_text
        self._own = frozenset(plugins or ())
        self._groups = samples
        self._labels = labels
        self._metric: Metric | None = None
        outputs = model.model.graph.outputs
        self._compared = {value.name or "": _compared_parts(value) for value in outputs}
        self._classes = {value.name or "": _axis_of_classes(value) for value in outputs} | {
            name: axis for parts in self._compared.values() for name, axis in parts.items()
        }
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
                raise SampleError(
                    f'the samples have no labels, which {name} needs: give --data with an array "labels"'
                )
        self._names = tuple(
            dict.fromkeys([*(name for parts in self._compared.values() for name in parts), *self._compared])
        )
        self._model = model

    def __getstate__(self) -> dict[str, object]:
        # A metric is a set of functions; another process makes its own.
        (name, _), *_ = metric_list(self.name) if self.name else [("", ())]
        if name in self._own:
            raise MetricError(f"{name} is the metric of a plugin, which other processes do not have")
        return self.__dict__ | {"_metric": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.name:
            (name, words), *_ = metric_list(self.name)
            self._metric = metric(name, words, {})

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
    def count(self) -> int:
        """Number of samples it evaluates."""
        return sum(group.count for group in self._groups)

    @property
    def smaller_is_better(self) -> bool:
        """Whether the metric is an error."""
        return self._metric is not None and self._metric.smaller_is_better

    @property
    def percent(self) -> bool:
        """Whether the metric is shown in percent."""
        return self._metric is not None and self._metric.percent

    def outputs(self, graph: AnyGraph) -> Outputs:
        """Runs a graph on the samples."""
        level, inside = graph_level(graph), len(self._names) > len(self._compared)
        return [run_samples(level, group, all_tensors=inside, names=self._names) for group in self._groups]

    def value(self, outputs: Outputs) -> float:
        """The metric of outputs."""
        assert self._metric is not None, "a metric was asked for"
        given: Any = self._labels
        if self._metric.against == "float":
            given = [_join_groups(self._floating, name) for name in self._read]
        return float(self._metric.value([_join_groups(outputs, name) for name in self._read], given))

    def worse(self, value: float) -> float:
        """By how much a value of the metric is worse than float."""
        return value - self.base if self.smaller_is_better else self.base - value

    def loss(self, outputs: Outputs) -> float:
        """How far outputs are from float: the mean over the network's floating outputs."""
        found = []
        for name in self._compared:
            floating, made = _join_groups(self._floating, name), _join_groups(outputs, name)
            if floating.dtype.kind == "f" and made.shape == floating.shape:
                found.append(LOSSES[self.loss_name](floating.astype(np.float64), made.astype(np.float64)))
        return float(np.mean(found)) if found else 0.0

    def sqnr_db(self, graph: AnyGraph) -> float:
        """Signal to noise of the outputs, the mean over them; infinite where there is no noise."""
        return self.fidelity(graph).mean_db

    def fidelity(self, graph: AnyGraph) -> Fidelity:
        """Noise and decisions of a graph; of every output the group that comes out worst counts."""
        return self.of_outputs(self.outputs(graph))

    def by_sample(self, outputs: Outputs) -> dict[str, tuple[Array, Array]]:
        """Power of noise and of signal by sample, `[samples]` each, of every output of floats."""
        found = {}
        for name in self._compared:
            exact, made = _join_groups(self._floating, name), _join_groups(outputs, name)
            if exact.dtype.kind == "f" and made.shape == exact.shape and exact.size:
                powers = np.array([_powers(*pair) for pair in zip(made, exact, strict=True)])
                found[name] = (powers[:, 0], powers[:, 1])
        return found

    def flips_by_sample(self, outputs: Outputs) -> Array:
        """How many of its decisions differ from float, `[samples]`; all 0 of a network that makes none."""
        flips = np.zeros(self.count)
        for parts in self._compared.values():
            for name in parts:
                axis, exact = self._classes[name], _join_groups(self._floating, name)
                if axis is None or exact.dtype.kind != "f" or exact.shape[axis] < 2 or name not in outputs[0]:
                    continue
                made = _join_groups(outputs, name)
                if made.size == exact.size:
                    differ = exact.argmax(axis) != made.reshape(exact.shape).argmax(axis)
                    flips += differ.reshape(len(exact), -1).sum(axis=1)
        return flips

    def of_outputs(self, outputs: Outputs) -> Fidelity:
        """As `fidelity`, of outputs that a graph made."""
        groups = zip(self._groups, self._floating, outputs, strict=True)
        found = [self._group_fidelity(group.count, *pair) for group, *pair in groups]
        worst: dict[str, float] = {}
        for part in found:
            worst |= {name: min(ratio, worst.get(name, math.inf)) for name, ratio in part.sqnr_db.items()}
        return Fidelity.mean([replace(part, sqnr_db=worst) for part in found])

    def _group_fidelity(
        self, samples: int, floating: Mapping[str, Array], made: Mapping[str, Array]
    ) -> Fidelity:
        """Of a group."""
        ratios: dict[str, float] = {}
        differ = decided = 0
        expected = 0.0
        for output, parts in self._compared.items():
            shown = all(name in made and made[name].size == floating[name].size for name in parts)
            noises = []
            for name in parts if shown else (output,):
                value, axis = floating[name], self._classes[name]
                if name not in made or value.dtype.kind != "f" or made[name].size != value.size:
                    continue
                own = made[name].astype(np.float64).reshape(value.shape)
                if np.any(value):
                    noises.append(_noise(value.astype(np.float64), own))
                if axis is not None and value.shape[axis] > 1:
                    turned = _decision_changes(
                        samples, *(np.moveaxis(each, axis, -1) for each in (value, own))
                    )
                    differ, expected, decided = differ + turned[0], expected + turned[1], decided + turned[2]
            if noises:
                ratios[output] = _decibels(noises)
        return Fidelity(ratios, differ / max(1, decided), decided, expected / max(1, decided))


def _decibels(noises: Sequence[float]) -> float:
    """Signal to noise: the mean of the decibels of all parts."""
    if not any(noises):
        return math.inf
    least = EXACT if len(noises) > 1 else 0.0
    return -10 * float(np.mean([math.log10(max(noise, least)) for noise in noises]))


def _decision_changes(samples: int, floating: Array, made: Array) -> tuple[int, float, int]:
    """Decisions that differ, those expected to, and how many there are.

    Args:
        samples: That were decided.
        floating: `[..., classes]`.
        made: The same quantised.
    """
    classes, others = floating.argmax(-1), made.argmax(-1)
    count = classes.size
    if count > samples:
        count -= int(np.bincount(classes.ravel()).max())
    return int(np.sum(classes != others)), classes.size * expected_flips(floating, made), max(1, count)


def _floats(session: FloatSession, samples: Samples, dynamic: frozenset[str]) -> dict[str, Array]:
    feeds: dict[str, list[Array]] = {}
    for batch in samples.batches():
        for name, array in session.run(batch.arrays).items():
            feeds.setdefault(name, []).append(array)
    return joined_samples(feeds, samples, dynamic)


def _join_groups(outputs: Outputs, name: str) -> Array:
    """One output of all groups."""
    parts = [group[name] for group in outputs]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def parts_of_output(value: ir.Value) -> list[ir.Value]:
    """The parts an output is concatenated of, or the output alone; a row of classes is one output."""
    node = _maker(value)
    if node is None or node.op_type != "Concat" or len(shape_of(value) or ()) == 2:
        return [value]
    parts = [each for each in node.inputs if each is not None and each.producer() is not None]
    if len(parts) < 2 or any(each.dtype is None or not each.dtype.is_floating_point() for each in parts):
        return [value]
    return [inner for each in parts for inner in parts_of_output(each)]


def _compared_parts(output: ir.Value) -> dict[str, int | None]:
    """Values to compare for an output, with their axis of classes: its parts, of a softmax the operand."""
    found: dict[str, int | None] = {}
    for value in parts_of_output(output):
        node = _maker(value)
        operand = None if node is None or node.op_type != "Softmax" else node.inputs[0]
        if node is None or operand is None:
            source, axis = (
                (value, _axis_of_classes(value)) if value is output else _source_before_moves(value, None)
            )
        else:
            stated, rank = attributes_of(node).get("axis", -1), len(shape_of(operand) or ())
            source, axis = _source_before_moves(
                operand, stated % rank - rank if isinstance(stated, int) and rank else None
            )
        if source.producer() is None:  # an input of the network, which it does not compute
            source, axis = output, _axis_of_classes(output)
        found[source.name or output.name or ""] = axis
    return found


def _source_before_moves(value: ir.Value, axis: int | None) -> tuple[ir.Value, int | None]:
    """The value before it is moved, which a graph stores, and where its axis of classes is there.

    As far as that axis can be told.
    """
    while (node := value.producer()) is not None and node.op_type in MOVES and node.inputs[0] is not None:
        source = node.inputs[0]
        old, new = shape_of(source), shape_of(value)
        if axis is not None and node.op_type == "Transpose":
            order, rank = attributes_of(node).get("perm"), len(new or ())
            if not isinstance(order, (list, tuple)) or not rank:
                break
            axis = int(order[axis]) - rank
        elif axis is not None and (axis != -1 or not old or not new or old[-1] != new[-1]):
            break
        value = source
    return value, axis


def _maker(value: ir.Value) -> ir.Node | None:
    """The operator that makes a value, but for those that only move it."""
    node = value.producer()
    while node is not None and node.op_type in MOVES and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


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


def _powers(made: Array, exact: Array) -> tuple[float, float]:
    """Power of noise and of signal of one sample."""
    signal = exact.astype(np.float64).ravel()
    noise = made.ravel() - signal
    return float(np.square(noise, out=noise).sum()), float(np.square(signal, out=signal).sum())
