"""What the outputs of a quantised network are worth, beside those of float on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import SampleError
from tpuflow.metrics import Metric, MetricError, metric, metric_list
from tpuflow.run import FloatLevel, graph_level, run_samples

if TYPE_CHECKING:
    from tpuflow.frontend import FloatModel
    from tpuflow.samples import Samples
    from tpuflow.store import AnyGraph

__all__ = ["LOSSES", "Judge"]

Array = NDArray[Any]


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
    """Judges graphs by samples; float is run once.

    Args:
        model: The float network.
        samples: What both are shown.
        labels: One per sample, if there are any.
        metric_text: The task metric, such as `top1`; none where only losses are asked for.
        plugins: Metrics beside the built-in ones.
        loss: Name of a loss.

    Attributes:
        base: The metric of the float network; NaN without a metric.

    Raises:
        MetricError: The metric or loss is unknown, or the network lacks what it reads.
        SampleError: The metric needs labels.
    """

    def __init__(
        self,
        model: FloatModel,
        samples: Samples,
        labels: Array | None = None,
        metric_text: str = "",
        plugins: Mapping[str, Callable[..., Metric]] | None = None,
        loss: str = "sqnr",
    ) -> None:
        if loss not in LOSSES:
            raise MetricError(f'"{loss}" is no loss: choose one of {", ".join(LOSSES)}')
        self.loss_name = loss
        self.name = metric_text
        self.samples = samples
        self._labels = labels
        self._metric: Metric | None = None
        level = FloatLevel(model)
        self._read = level.outputs
        if metric_text:
            (name, words), *_ = metric_list(metric_text)
            self._metric = metric(name, words, plugins or {})
            if len(level.outputs) < self._metric.outputs:
                raise MetricError(
                    f"{name} reads {self._metric.outputs} outputs, the network has {len(level.outputs)}"
                )
            self._read = level.outputs[: self._metric.outputs] or level.outputs
            if self._metric.against == "labels" and labels is None:
                raise SampleError(f"the samples have no labels, which {name} needs")
        self._floating = run_samples(level, samples)
        self.base = float("nan") if self._metric is None else self._value(self._floating)

    @property
    def smaller_is_better(self) -> bool:
        """Whether the metric is an error."""
        return self._metric is not None and self._metric.smaller_is_better

    @property
    def percent(self) -> bool:
        """Whether the metric is shown in percent."""
        return self._metric is not None and self._metric.percent

    def outputs(self, graph: AnyGraph) -> dict[str, Array]:
        """What a graph makes of the samples."""
        return run_samples(graph_level(graph), self.samples)

    def value(self, outputs: Mapping[str, Array]) -> float:
        """The metric of outputs."""
        return self._value(outputs)

    def worse(self, value: float) -> float:
        """By how much a value of the metric is worse than float."""
        return value - self.base if self.smaller_is_better else self.base - value

    def loss(self, outputs: Mapping[str, Array]) -> float:
        """How far outputs are from float: the mean over the network's floating outputs."""
        found = [
            LOSSES[self.loss_name](array.astype(np.float64), outputs[name].astype(np.float64))
            for name, array in self._floating.items()
            if array.dtype.kind == "f" and outputs[name].shape == array.shape
        ]
        return float(np.mean(found)) if found else 0.0

    def _value(self, outputs: Mapping[str, Array]) -> float:
        assert self._metric is not None, "a metric was asked for"
        given: Any = self._labels
        if self._metric.against == "float":
            given = [self._floating[name] for name in self._read]
        rows: Sequence[Array] = [outputs[name] for name in self._read]
        return float(self._metric.value(rows, given))
