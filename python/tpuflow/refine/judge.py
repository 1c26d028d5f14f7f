"""How far quantised networks are from float on samples, and the better of two."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibrate import calibrate
from tpuflow.frontend import FloatModel, FloatSession
from tpuflow.frontend.values import attributes_of, shape_of
from tpuflow.partition import PartitionedModel, partition
from tpuflow.quantize import quantize
from tpuflow.refine.equalize import equalized
from tpuflow.run import graph_level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from tpuflow.calibrate import Ranges
    from tpuflow.config import Config
    from tpuflow.run import Level
    from tpuflow.samples import Samples
    from tpuflow.store import AnyGraph

__all__ = ["Judge", "Seen", "better_equalized", "calibrated_graph", "graph_of", "parts_of"]

logger = logging.getLogger(__name__)

SCALED = 128
"""Samples that factors are chosen by."""

SHOWN, JUDGED = 32, 16
"""Of these, samples that networks with and without are calibrated with, and judged by."""

MOVES = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze"})
"""Operators that may stand between a softmax and the output."""

MARGIN_DB = 0.25
"""What a network must come closer by before its channels get factors."""


@dataclass(frozen=True)
class Seen:
    """How far a quantised network is from float.

    Attributes:
        sqnr_db: Signal to noise by output; infinite where there is no noise.
        flips: Share of decisions that differ; 0 of a network that makes none.
        decisions: How many there are.
    """

    sqnr_db: Mapping[str, float]
    flips: float
    decisions: int = 0

    @property
    def mean_db(self) -> float:
        """The mean over the outputs."""
        return float(np.mean(list(self.sqnr_db.values()))) if self.sqnr_db else math.inf

    @property
    def score(self) -> float:
        """Decibels, less one for every percent of decisions that differ; a single one is chance."""
        return self.mean_db - 100 * max(0.0, self.flips - 1 / max(1, self.decisions))

    @classmethod
    def mean(cls, parts: Sequence[Seen]) -> Seen:
        """What several judges saw: the mean of decibels, all decisions together."""
        decisions = sum(part.decisions for part in parts)
        differ = sum(part.flips * part.decisions for part in parts)
        names = parts[0].sqnr_db
        return cls(
            {name: float(np.mean([part.sqnr_db[name] for part in parts])) for name in names},
            differ / max(1, decisions),
            decisions,
        )

    def beats(self, other: Seen, margin_db: float) -> bool:
        """Whether this is closer by a margin, and no single output pays for the others with twice that.

        With a negative margin it may be as much worse.
        """
        paid = any(each < other.sqnr_db[name] - 2 * abs(margin_db) for name, each in self.sqnr_db.items())
        return self.score > other.score + margin_db and not paid


class Judge:
    """Compares graphs with float on the same samples.

    Of an output a softmax makes, its operand is compared where the graph shows it: probabilities of samples
    near a border between classes would outweigh all others. Decisions are the largest of what such an output,
    or one of the shape `[samples, classes]`, holds.

    Args:
        model: The float network.
        samples: Groups of samples; of every output the group that comes out worst counts.
    """

    def __init__(self, model: FloatModel, *samples: Samples) -> None:
        outputs = model.model.graph.outputs
        self._compared = {value.name or "": _compared(value) for value in outputs}
        self._classes = {name: _axis_of_classes(value) for value in outputs for name in _names(value)}
        names = list(dict.fromkeys([*self._compared.values(), *self._compared]))
        session = FloatSession(model.model, names)
        self._groups = [[batch.arrays for batch in group.batches()] for group in samples]
        self._outputs = [[session.run(arrays) for arrays in group] for group in self._groups]
        self._inside = len(names) > len(self._compared)

    def sqnr_db(self, graph: AnyGraph) -> float:
        """Signal to noise of the outputs, the mean over them; infinite where there is no noise."""
        return self.seen(graph).mean_db

    def seen(self, graph: AnyGraph) -> Seen:
        """Runs a graph on the samples."""
        level = graph_level(graph)
        found = [self._seen(level, *group) for group in zip(self._groups, self._outputs, strict=True)]
        worst: dict[str, float] = {}
        for ratios, *_ in found:
            worst |= {name: min(ratio, worst.get(name, math.inf)) for name, ratio in ratios.items()}
        decisions = sum(each[2] for each in found)
        return Seen(worst, sum(each[1] for each in found) / max(1, decisions), decisions)

    def _seen(
        self, level: Level, batches: list[dict[str, NDArray[Any]]], outputs: list[dict[str, NDArray[Any]]]
    ) -> tuple[dict[str, float], int, int]:
        """Of a group: signal to noise by output, decisions that differ, decisions."""
        noise: dict[str, float] = {}
        signal: dict[str, float] = {}
        differ = decided = 0
        for arrays, floating in zip(batches, outputs, strict=True):
            found = level.run(arrays, all_tensors=self._inside)
            for output, operand in self._compared.items():
                name = operand if operand in found else output
                value, axis = floating[name], self._classes[name]
                if name not in found or value.dtype.kind != "f" or found[name].size != value.size:
                    continue
                made = found[name].astype(np.float64).reshape(value.shape)
                noise[output] = noise.get(output, 0.0) + float(np.sum((made - value) ** 2))
                signal[output] = signal.get(output, 0.0) + float(np.sum(value.astype(np.float64) ** 2))
                if axis is not None:
                    differ += int(np.sum(made.argmax(axis) != value.argmax(axis)))
                    decided += value.size // value.shape[axis]
        ratios = {
            name: 10 * math.log10(signal[name] / noise[name]) if noise[name] else math.inf
            for name in noise
            if signal[name] > 0
        }
        return ratios, differ, decided


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
    """The axis of an output whose largest entry is a decision; None where nothing is decided."""
    shape, node = shape_of(value) or (), value.producer()
    while node is not None and node.op_type in MOVES and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "Softmax":
        return 1 if len(shape) == 2 and shape[1] > 1 else None
    axis, rank = attributes_of(node).get("axis", -1), len(shape_of(node.outputs[0]) or ())
    moved = node.outputs[0] is not value
    if not isinstance(axis, int) or not rank:
        return None
    # Behind other axes the last one is still that of classes, if it was.
    return axis % rank if not moved else rank - 1 if rank == len(shape) and axis % rank == rank - 1 else None


def parts_of(model: FloatModel) -> FloatModel | PartitionedModel:
    """The model, in segments where the host takes part."""
    return partition(model) if model.findings else model


def graph_of(model: FloatModel, ranges: Ranges, config: Config) -> AnyGraph:
    """The graph of a model; in segments only where the host takes part."""
    parts = parts_of(model)
    if isinstance(parts, FloatModel):
        return quantize(parts, ranges, config)
    graphs = quantize(parts, ranges, config)
    return graphs.whole or graphs


def calibrated_graph(model: FloatModel, samples: Samples, config: Config) -> tuple[AnyGraph, Ranges]:
    """The graph of a model calibrated with samples, and its ranges."""
    ranges = calibrate(parts_of(model), samples, config)
    return graph_of(model, ranges, config), ranges


def better_equalized(
    model: FloatModel, samples: Samples, config: Config, remark: Callable[[str], None] = logger.info
) -> FloatModel:
    """The model with factors by channel where that brings outputs closer to float, else the model itself.

    Few of the samples decide: factors are chosen by `SCALED` of them, and both forms, calibrated with `SHOWN`
    of them, are compared on `JUDGED`.
    """
    bits = config.quantize.weight_bits or 8
    found = equalized(model, samples.spread(SCALED), min(bits, 8))
    if not found.sets:
        return model
    shown = samples.spread(SHOWN)
    judge = Judge(model, shown.spread(JUDGED))
    plain, divided = (
        judge.sqnr_db(calibrated_graph(each, shown, config)[0]) for each in (model, found.model)
    )
    kept = divided > plain + MARGIN_DB
    remark(
        f"equalized: {found.sets} sets of channels, {divided:.1f} dB, without {plain:.1f} dB"
        + ("" if kept else ": undone")
    )
    return found.model if kept else model
