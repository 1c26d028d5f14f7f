"""How far quantised networks are from float on samples, and the better of two."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.calibrate import calibrate
from tpuflow.frontend import FloatModel, FloatSession
from tpuflow.partition import PartitionedModel, partition
from tpuflow.quantize import quantize
from tpuflow.refine.equalize import equalized
from tpuflow.run import graph_level

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

    from tpuflow.calibrate import Ranges
    from tpuflow.config import Config
    from tpuflow.samples import Samples
    from tpuflow.store import AnyGraph

__all__ = ["Judge", "better_equalized", "calibrated_graph", "graph_of", "parts_of"]

logger = logging.getLogger(__name__)

SHOWN, JUDGED = 32, 16
"""Samples that factors are chosen by, and that the result is judged by."""

MARGIN_DB = 0.25
"""What a network must come closer by before its channels get factors."""


class Judge:
    """Compares graphs with float on the same samples.

    Of an output a softmax makes, its operand is compared: probabilities of samples near a border between
    classes would outweigh all others.
    """

    def __init__(self, model: FloatModel, samples: Samples) -> None:
        self._names = [_compared(value) for value in model.model.graph.outputs]
        session = FloatSession(model.model, self._names)
        self._batches = [batch.arrays for batch in samples.batches()]
        self._outputs = [session.run(arrays) for arrays in self._batches]
        self._inside = self._names != [value.name for value in model.model.graph.outputs]

    def sqnr_db(self, graph: AnyGraph) -> float:
        """Signal to noise of the outputs, the mean over them; infinite where there is no noise."""
        level = graph_level(graph)
        noise: dict[str, float] = {}
        signal: dict[str, float] = {}
        for arrays, expected in zip(self._batches, self._outputs, strict=True):
            found = level.run(arrays, all_tensors=self._inside)
            for name, value in expected.items():
                if name in found and value.dtype.kind == "f" and found[name].size == value.size:
                    off = found[name].astype(np.float64).reshape(value.shape) - value
                    noise[name] = noise.get(name, 0.0) + float(np.sum(off**2))
                    signal[name] = signal.get(name, 0.0) + float(np.sum(value.astype(np.float64) ** 2))
        ratios = [signal[name] / max(noise[name], 1e-30) for name in noise if signal[name] > 0]
        return float(np.mean(10 * np.log10(ratios))) if ratios else math.inf


def _compared(value: ir.Value) -> str:
    """Name of an output, or of the operand of the softmax that makes it."""
    node = value.producer()
    while node is not None and node.op_type in {"Reshape", "Transpose", "Flatten", "Squeeze", "Softmax"}:
        operand = node.inputs[0]
        if operand is None:
            break
        if node.op_type == "Softmax":
            return operand.name or value.name or ""
        node = operand.producer()
    return value.name or ""


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

    Few of the samples decide: factors are chosen by `SHOWN` of them, and both forms, calibrated with these,
    are compared on `JUDGED`.
    """
    bits = config.quantize.weight_bits or 8
    shown = samples.spread(SHOWN)
    found = equalized(model, shown, min(bits, 8))
    if not found.sets:
        return model
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
