"""How alike the tensors of a graph are to those of float, on a few samples: figures for settings by layer.

`tpuflow.compare` looks at every level, for users; this is the one pair a build can afford to look at each
time: the normalised float network and the graph made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.evaluation.similarity import similarity
from tpuflow.execution.levels import GraphLevel, PartitionedLevel, graph_level
from tpuflow.frontend.activations import ActivationSession
from tpuflow.partitioning import device_networks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuflow.execution.simulation import ProgramPort
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["TensorSimilarity", "tensor_similarities"]

Array = NDArray[Any]

MEMORY = 512 << 20
"""Bytes of float values held at a time."""


@dataclass(frozen=True)
class TensorSimilarity:
    """One tensor of a graph beside that of float.

    Attributes:
        cosine: Cosine similarity over all elements of all samples.
        mse: Mean squared difference.
    """

    cosine: float
    mse: float


def tensor_similarities(
    model: FloatModel, graph: AnyGraph, samples: Samples, count: int = 1
) -> dict[str, TensorSimilarity]:
    """Compares every tensor of the model the graph can show.

    Args:
        model: The float model the graph was made of.
        graph: The graph.
        samples: What both are shown.
        count: How many feeds of them.

    Returns:
        By the model's name of the tensor.
    """
    level = graph_level(graph)
    shown = [port.name for each in device_networks(graph) for port in GraphLevel(each).shown.values()]
    session = ActivationSession(model.model, memory_bytes=MEMORY, wanted=set(shown), clamped=True)
    pairs: dict[str, list[tuple[Array, Array]]] = {}
    found: dict[str, TensorSimilarity] = {}
    batches = list(islice(samples.batches(), count))
    for batch in batches:
        made = _Tensors(level, batch.arrays)
        for exact in session.run(batch.arrays):
            for name, reference in exact.items():
                array = made.get(name)
                if array is None or array.shape != reference.shape:
                    continue
                if len(batches) == 1:
                    found[name] = _of([(reference, array)])
                else:  # what a session hands out is written over by the next feed
                    pairs.setdefault(name, []).append((reference.copy(), array))
    return found | {name: _of(each) for name, each in pairs.items()}


class _Tensors:
    """Tensors of a graph for one feed, of which only the codes are kept."""

    def __init__(self, level: GraphLevel | PartitionedLevel, arrays: Mapping[str, Array]) -> None:
        self._tensors: dict[str, Array] = {}
        self._codes: dict[str, tuple[ProgramPort, Array]] = {}
        if isinstance(level, GraphLevel):
            codes = level.codes(arrays, all_tensors=True)
            self._codes = {
                port.name: (port, codes[name]) for name, port in level.shown.items() if name in codes
            }
        else:
            self._tensors = level.run(arrays, all_tensors=True)

    def get(self, name: str) -> Array | None:
        """The tensor of the model of a name, None if there is none."""
        if name in self._codes:
            port, codes = self._codes[name]
            return port.decode(codes)
        return self._tensors.get(name)


def _of(pairs: list[tuple[Array, Array]]) -> TensorSimilarity:
    x, y = (np.concatenate([pair[side].ravel() for pair in pairs]).astype(np.float64) for side in (0, 1))
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.mean((x - y) ** 2)) if x.size else 0.0
    return TensorSimilarity(similarity(x, y).cosine, error)
