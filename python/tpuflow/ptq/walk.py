"""Values of a model for all samples at once, one after another in the order of the graph.

    walk = Walk(model, ["conv2_in", "conv3_in"], samples)
    for array in walk.upto("conv2_in"): ...

Between two of them only the nodes in between run; what later ones still read is kept. A layer may get other
weights once what it reads was handed out and before anything behind it is. Where what is kept would outgrow
its limit, every value is computed from the inputs again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpuflow.frontend.activations import run_of, segment_of
from tpuflow.frontend.values import reads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx_ir as ir

    from tpuflow.io.samples import Samples

__all__ = ["Walk"]

LIMIT = 1 << 30
"""Bytes of values kept between two layers."""


class Walk:
    """A model under way.

    Args:
        model: What runs; it is read anew with every step.
        names: Values to be handed out, in the order of the graph.
        samples: What it runs on.
    """

    def __init__(self, model: ir.Model, names: Sequence[str], samples: Samples) -> None:
        self._model = model
        self._samples = samples
        self._left = run_of(list(model.graph), names)
        self._live: list[dict[str, NDArray[np.generic]]] | None = None
        self._keeps = True

    def upto(self, name: str) -> Iterator[NDArray[np.float32]]:
        """A value of every batch in turn; names come in the order of the graph."""
        part = run_of(self._left if self._keeps else list(self._model.graph), [name])
        own = set(part)
        rest = [node for node in self._left if node not in own] if self._keeps else []
        later = {value.name or "" for node in rest for value in reads(node)}
        segment = segment_of(self._model, part, later, {name}) if part else None
        live = self._live if self._live is not None else (batch.arrays for batch in self._samples.batches())
        kept: list[dict[str, NDArray[np.generic]]] = []
        for values in live:
            made: Mapping[str, NDArray[np.generic]] = {}
            if segment is not None:
                made = segment.session.run({key: values[key] for key in segment.inputs})
            found = made[name] if name in made else values[name]
            if self._keeps:
                kept.append({key: array for key, array in {**values, **made}.items() if key in later})
                if sum(array.nbytes for each in kept for array in each.values()) > LIMIT:
                    self._keeps, self._live, kept = False, None, []
            yield np.asarray(found, np.float32)
        if self._keeps:
            self._live, self._left = kept, rest
