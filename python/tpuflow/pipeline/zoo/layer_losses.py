"""Which layers a bad result comes from.

Both networks run on one sample and every tensor they share is compared. Noise that a layer hands on is not
its own: what counts is how many decibels of signal to noise are lost between a layer's nearest compared
inputs and its output, on the way to the outputs in question.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tpuflow.evaluation.similarity import similarity
from tpuflow.frontend import FloatModel, FloatSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from tpuflow.execution.levels import IntegerLevel

__all__ = ["layer_losses"]

CLEAN = 100.0
"""Decibels that stand for a result without any noise."""


def layer_losses(
    model: FloatModel,
    level: IntegerLevel,
    feed: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    most: int = 5,
) -> list[dict[str, Any]]:
    """The layers that lose most on the way to `outputs`.

    Returns:
        Largest loss first: name and operator of the layer, its output, decibels before and after, cosine.
    """
    integers = level.run(feed, all_tensors=True)
    normalized = FloatSession(model.model, "all").run(feed)
    noise: dict[str, float] = {}
    cosine: dict[str, float] = {}
    for name, array in {**feed, **normalized}.items():
        if name in integers and integers[name].shape == array.shape:
            found = similarity(array, integers[name])
            noise[name] = min(CLEAN, found.sqnr) if not math.isnan(found.sqnr) else -CLEAN
            cosine[name] = found.cosine
    before: dict[str, float] = {}
    losses = []
    for node in model.model.graph:
        reached = min(
            (_known_sqnr(value, noise, before) for value in node.inputs if value is not None), default=CLEAN
        )
        for value in node.outputs:
            name = value.name or ""
            if name not in noise:
                before[name] = reached
                continue
            lost = reached - noise[name]
            losses.append((lost, node, name, reached))
    wanted = _ancestors(model.model, outputs)
    losses = sorted((entry for entry in losses if entry[2] in wanted), key=lambda entry: -entry[0])
    return [
        {
            "layer": node.name,
            "operator": node.op_type,
            "tensor": name,
            "before_db": reached,
            "after_db": noise[name],
            "cosine": cosine[name],
        }
        for lost, node, name, reached in losses[:most]
        if lost > 0
    ]


def _known_sqnr(value: ir.Value, noise: Mapping[str, float], before: Mapping[str, float]) -> float:
    """Decibels of a tensor, or of the worst one it was computed from; constants are clean."""
    name = value.name or ""
    return noise.get(name, before.get(name, CLEAN))


def _ancestors(model: ir.Model, outputs: Sequence[str]) -> set[str]:
    """Names of all tensors that `outputs` depend on, themselves included."""
    wanted = set(outputs)
    for node in reversed(model.graph):
        if any(value.name in wanted for value in node.outputs):
            wanted |= {value.name for value in node.inputs if value is not None and value.name}
    return wanted
