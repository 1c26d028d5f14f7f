"""Rounds the weights of all linear layers of a model by what they meet in samples."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpuflow.config import Config
from tpuflow.config.chain import GlobalMethod
from tpuflow.frontend import FloatModel
from tpuflow.ptq.adaround import Learning, adaround
from tpuflow.ptq.gptq import RoundedWeights, better, cost, gptq, nearest
from tpuflow.ptq.layers import LinearLayer, copy_model
from tpuflow.ptq.operands import chosen_layers
from tpuflow.ptq.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuflow.io.samples import Samples

__all__ = ["RefinedLayer", "refine_weights"]

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

Rounding = Callable[[Array, Array, int], RoundedWeights]


def _gptq(numbers: Mapping[str, float]) -> Rounding:
    return lambda weights, damped, largest: gptq(weights, damped, largest, sweeps=int(numbers["sweeps"]))


def _adaround(numbers: Mapping[str, float]) -> Rounding:
    """Learned choices; but for rows that `gptq` brings closer, which takes little beside the steps.

    What a layer meets is known by its covariance, which every step sees whole: an epoch has as many steps as
    its batches would, one where all samples are taken (`batches` 0). The two end in different places, neither
    always the better one: a few hundred steps beside `gptq` come
    closer than a thousand alone.
    """
    batches = int(numbers["batches"])
    steps = math.ceil(batches / numbers["batch_size"]) if batches else 1

    learning = Learning(
        iterations=int(numbers["epochs"]) * steps,
        rate=numbers["lr"],
        reg=numbers["reg_param"],
        beta=(numbers["beta_start"], numbers["beta_end"]),
        warm=numbers["warm_start"],
    )

    def rounding(weights: Array, damped: Array, largest: int) -> RoundedWeights:
        learned = adaround(weights, damped, largest, learning)
        return better(weights, damped, learned, gptq(weights, damped, largest))

    return rounding


ROUNDINGS: dict[str, Callable[[Mapping[str, float]], Rounding]] = {"gptq": _gptq, "adaround": _adaround}
"""By a method's name, from its numbers to what rounds: weights, a covariance and the largest code."""

EVERYWHERE = GlobalMethod("gptq")
"""The method without a scope."""

DAMP = 0.01
"""Share of the mean variance added to every variance."""

POSITIONS = 256
"""Positions of a sample, evenly spread, at which a convolution is watched."""

BLOCK = 4096
"""Columns multiplied at a time."""


@dataclass(frozen=True)
class RefinedLayer:
    """Result of refining a layer.

    Attributes:
        name: The layer's.
        before: Mean squared error of its sums with weights rounded by themselves.
        after: The same with the weights it has now.
        kept: Whether the new weights were taken; they are not where they are no better.
    """

    name: str
    before: float
    after: float
    kept: bool


class _LayerSums:
    """Sums over what a layer's weights meet, in the float model and in the one refined so far.

    Columns `x` and `z` have the shape `[groups, columns, k]`; `cross` sums `x z^T`, `own` sums `z z^T`.
    Blocks of `BLOCK` columns are multiplied in float32 and added up in float64.
    """

    def __init__(self, layer: LinearLayer) -> None:
        groups, _, size = layer.weights.shape
        self.count = 0
        self.sum_x, self.sum_z = np.zeros((groups, size)), np.zeros((groups, size))
        self.cross, self.own = np.zeros((groups, size, size)), np.zeros((groups, size, size))
        self._waiting: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []

    def observe(self, x: NDArray[np.float32], z: NDArray[np.float32]) -> None:
        """Adds columns."""
        self._waiting.append((x, z))
        if sum(part.shape[1] for part, _ in self._waiting) >= BLOCK:
            self.settle()

    def settle(self) -> None:
        """Adds up what waits for its block to be full."""
        if not self._waiting:
            return
        x, z = (np.concatenate(parts, axis=1) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        self.count += x.shape[1]
        self.sum_x += x.sum(axis=1, dtype=np.float64)
        self.sum_z += z.sum(axis=1, dtype=np.float64)
        if len(x) == 1:  # one product of two matrices, that of a matrix with itself by its half
            self.cross[0] += x[0].T @ z[0]
            self.own[0] += z[0].T @ z[0]
        else:
            self.cross += x.transpose(0, 2, 1) @ z
            self.own += z.transpose(0, 2, 1) @ z


def refine_weights(
    model: FloatModel,
    samples: Samples,
    config: Config | None = None,
    progress: Callable[[int, int], None] | None = None,
    method: GlobalMethod = EVERYWHERE,
) -> tuple[FloatModel, list[RefinedLayer]]:
    """The model with the weights of its linear layers rounded by a method; it is not changed itself.

    Widths follow the configuration; layers of floats, those with one step per tensor and those whose grid the
    model states are left as they are. A layer whose new weights are no better keeps its own.

    Args:
        model: What to refine.
        samples: What it is shown.
        config: Types and widths by layer.
        progress: Told after every layer.
        method: How they are rounded, and which of them.

    Returns:
        The refined model, and what became of every layer.
    """
    config = config or Config()
    refined = replace(model, model=copy_model(model.model))
    if method.numbers.get("batches"):
        samples = samples.spread(int(method.numbers["batches"]))
    layers = chosen_layers(refined, config, method)
    by_operand: dict[str, list[tuple[LinearLayer, int]]] = {}
    for layer, largest in layers:
        by_operand.setdefault(layer.operand, []).append((layer, largest))
    report: list[RefinedLayer] = []
    walks = [Walk(each.model, list(by_operand), samples) for each in (model, refined)]
    for operand, readers in by_operand.items():
        watched = _observe_layers([layer for layer, _ in readers], *(walk.upto(operand) for walk in walks))
        rounding = ROUNDINGS[method.name](method.numbers)
        report += [_refine_layer(layer, largest, watched[layer], rounding) for layer, largest in readers]
        if progress is not None:
            progress(len(report), len(layers))
    return refined, report


def _observe_layers(
    layers: list[LinearLayer], plain: Iterable[NDArray[np.float32]], now: Iterable[NDArray[np.float32]]
) -> dict[LinearLayer, _LayerSums]:
    """Accumulates operands of layers, batch by batch, in the float model and in the one refined so far."""
    found = {layer: _LayerSums(layer) for layer in layers}
    for arrays in zip(plain, now, strict=True):
        for layer in layers:
            x, z = (layer.columns(array, POSITIONS * len(array)) for array in arrays)
            found[layer].observe(x, z)
    for watched in found.values():
        watched.settle()
    return found


def _refine_layer(layer: LinearLayer, largest: int, watched: _LayerSums, rounding: Rounding) -> RefinedLayer:
    weights = layer.weights
    mean_x, mean_z = watched.sum_x / watched.count, watched.sum_z / watched.count
    cross, own = watched.cross / watched.count, watched.own / watched.count
    if layer.has_bias:  # which takes the mean error: only what varies counts
        cross = cross - mean_x[:, :, np.newaxis] * mean_z[:, np.newaxis]
        own = own - mean_z[:, :, np.newaxis] * mean_z[:, np.newaxis]
    parts: list[RoundedWeights] = []
    before = after = 0.0
    for group, matrix in enumerate(weights):
        damped = own[group] + np.eye(len(own[group])) * (DAMP * np.mean(np.diag(own[group])) + 1e-12)
        # What weights of any precision would best do with the operands there really are.
        wish = matrix @ (cross[group] + damped - own[group])
        wish = np.linalg.solve(damped, wish.T).T
        rounded = rounding(wish, damped, largest)
        reach = np.abs(matrix).max(axis=1)
        plain = np.where(reach > 0, reach, 1.0) / largest
        alone = nearest(matrix, plain, largest) * plain[:, np.newaxis]
        before += float(cost(wish - alone, damped).sum())
        after += float(cost(wish - rounded.values, damped).sum())
        parts.append(rounded)
    kept = after < before
    if kept:
        values = np.stack([part.values for part in parts])
        steps = np.stack([part.steps for part in parts])
        shift = np.einsum("grk,gk->gr", weights, mean_x) - np.einsum("grk,gk->gr", values, mean_z)
        layer.replace(values, steps, shift)
    logger.info("%s: error of sums %.3g, was %.3g%s", layer.name, after, before, "" if kept else ", left")
    return RefinedLayer(layer.name, before, after, kept)
