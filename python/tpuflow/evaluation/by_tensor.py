"""How alike the tensors of a graph are to those of float, on a few samples: figures for settings by layer.

`tpuflow.compare` looks at every level, for users; this is the one pair a build can afford to look at each
time: the normalised float network and the graph made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.evaluation.graph_reads import GraphReads
from tpuflow.evaluation.similarity import similarity
from tpuflow.execution.levels import GraphLevel, graph_level
from tpuflow.frontend.activations import ActivationSession
from tpuflow.partitioning import device_networks

if TYPE_CHECKING:
    import onnx_ir as ir

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
        parts = (
            _codes_in_parts(level, batch.arrays, session.made, model.model)
            if isinstance(level, GraphLevel)
            else repeat(level.run(batch.arrays, all_tensors=True))
        )
        for exact, made in zip(session.run(batch.arrays), parts, strict=False):
            for name, reference in exact.items():
                array = made.get(name)
                if array is None or array.shape != reference.shape:
                    continue
                if len(batches) == 1:
                    found[name] = _of([(reference, array)])
                else:  # what a session hands out is written over by the next feed
                    pairs.setdefault(name, []).append((reference.copy(), array))
    return found | {name: _of(each) for name, each in pairs.items()}


def _codes_in_parts(
    level: GraphLevel, arrays: Mapping[str, Array], parts: Sequence[Sequence[str]], model: ir.Model
) -> Iterator[Mapping[str, Array]]:
    """Tensors of a graph part by part, of which only those are kept that later parts read.

    Args:
        level: The graph.
        arrays: A feed.
        parts: The model's names of the tensors of every part, in an order in which they can be computed.
        model: The float model.
    """
    reads = GraphReads(level, model)
    last = {name: at for at, part in enumerate(parts) for name in reads.of(part)}
    inputs = level.input_codes(arrays)
    kept: dict[str, Array] = {}
    for at, part in enumerate(parts):
        wanted = [*part, *(port.name for port in level.ports)] if at == 0 else part
        made = level.graph.run_apart({**inputs, **kept}, level.stored_names(set(wanted)))
        yield _Decoded(level, {**kept, **made})
        here = {name for name, end in last.items() if end > at}
        kept = {name: codes for name, codes in {**kept, **made}.items() if level.shown[name].name in here}


class _Decoded(Mapping[str, Array]):
    """Tensors by the model's names, each decoded when it is asked for."""

    def __init__(self, level: GraphLevel, codes: Mapping[str, Array]) -> None:
        self._tensors = {level.shown[name].name: (level.shown[name], array) for name, array in codes.items()}

    def __getitem__(self, name: str) -> Array:
        port, codes = self._tensors[name]
        return port.decode(codes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _of(pairs: list[tuple[Array, Array]]) -> TensorSimilarity:
    whole = [
        pairs[0][side] if len(pairs) == 1 else np.concatenate([pair[side].ravel() for pair in pairs])
        for side in (0, 1)
    ]
    found = similarity(*whole)
    return TensorSimilarity(found.cosine, found.mse)
