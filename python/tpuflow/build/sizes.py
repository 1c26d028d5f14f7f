"""Bytes of constants, and of the process."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.partition import device_networks

if TYPE_CHECKING:
    from tpuflow.frontend import FloatModel
    from tpuflow.store import AnyGraph

__all__ = ["Sizes", "float_bytes", "graph_bytes", "peak_rss_bytes"]


@dataclass(frozen=True)
class Sizes:
    """Bytes of all constants, as floats and as stored integers."""

    floating: int | None
    quantized: int


def float_bytes(model: FloatModel) -> int:
    """Bytes of all constants of a normalised float model."""
    values = model.model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


def graph_bytes(graph: AnyGraph) -> int:
    """Bytes of all constants of a graph, as stored in its file; the host's are not counted."""
    return sum(
        int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
        for part in device_networks(graph)
        for tensor in part.tensors
        if tensor.is_constant
    )


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
