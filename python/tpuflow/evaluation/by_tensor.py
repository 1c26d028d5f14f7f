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
from tpuflow.execution.levels import graph_level
from tpuflow.frontend import FloatSession

if TYPE_CHECKING:
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["TensorSimilarity", "tensor_similarities"]

Array = NDArray[Any]


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
    session, level = FloatSession(model.model, "all"), graph_level(graph)
    pairs: dict[str, list[tuple[Array, Array]]] = {}
    for batch in islice(samples.batches(), count):
        exact = {**batch.arrays, **session.run(dict(batch.arrays))}
        found = level.run(batch.arrays, all_tensors=True)
        for name, array in found.items():
            reference = exact.get(name)
            if reference is not None and reference.dtype.kind == "f" and reference.shape == array.shape:
                pairs.setdefault(name, []).append((reference, array))
    return {name: _of(each) for name, each in pairs.items()}


def _of(pairs: list[tuple[Array, Array]]) -> TensorSimilarity:
    x, y = (np.concatenate([pair[side].ravel() for pair in pairs]).astype(np.float64) for side in (0, 1))
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.mean((x - y) ** 2)) if x.size else 0.0
    return TensorSimilarity(similarity(x, y).cosine, error)
