"""Graphs of float models, whole or in segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuflow.calibration import calibrate
from tpuflow.frontend import FloatModel
from tpuflow.lowering import lower
from tpuflow.partitioning import PartitionedModel, partition

if TYPE_CHECKING:
    from tpuflow.calibration import Ranges
    from tpuflow.config import Config
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["calibrated_graph", "graph_of", "parts_of"]

SHOWN, HELD_OUT_COUNT = 32, 16
"""Of these, samples that are seen by methods that take long, and evaluated by."""


def parts_of(model: FloatModel) -> FloatModel | PartitionedModel:
    """The model, in segments where the host takes part."""
    return partition(model) if model.findings else model


def graph_of(model: FloatModel, ranges: Ranges, config: Config) -> AnyGraph:
    """The graph of a model; in segments only where the host takes part.

    That a node is the host's may show only when it is lowered, as with a cast of indices to numbers.
    """
    graphs = lower(partition(model), ranges, config)
    return graphs.whole or graphs


def calibrated_graph(model: FloatModel, samples: Samples, config: Config) -> tuple[AnyGraph, Ranges]:
    """The graph of a model calibrated with samples, and its ranges."""
    ranges = calibrate(parts_of(model), samples, config)
    return graph_of(model, ranges, config), ranges
