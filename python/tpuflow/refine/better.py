"""The better of two networks: with factors by channel or without."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tpuflow.calibrate import calibrate
from tpuflow.frontend import FloatModel
from tpuflow.judge import Judge
from tpuflow.partition import PartitionedModel, partition
from tpuflow.quantize import quantize
from tpuflow.refine.equalize import equalized

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuflow.calibrate import Ranges
    from tpuflow.config import Config
    from tpuflow.samples import Samples
    from tpuflow.store import AnyGraph

__all__ = ["better_equalized", "calibrated_graph", "graph_of", "parts_of"]

logger = logging.getLogger(__name__)

SCALED = 128
"""Samples that factors are chosen by."""

SHOWN, JUDGED = 32, 16
"""Of these, samples that networks with and without are calibrated with, and judged by."""

MARGIN_DB = 0.25
"""What a network must come closer by before its channels get factors."""


def parts_of(model: FloatModel) -> FloatModel | PartitionedModel:
    """The model, in segments where the host takes part."""
    return partition(model) if model.findings else model


def graph_of(model: FloatModel, ranges: Ranges, config: Config) -> AnyGraph:
    """The graph of a model; in segments only where the host takes part.

    That a node is the host's may show only when it is lowered, as with a cast of indices to numbers.
    """
    graphs = quantize(partition(model), ranges, config)
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
