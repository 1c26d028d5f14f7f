"""Output bias correction: biases of the last layers correct the mean error of their sums.

Roundings in front of a last layer have means of their own, which the layers in between turn into a constant
error of the outputs: a share of it that no range or rounding of a single layer sees. It is measured where it
arrives, in the network of integers. Of few samples a mean is uncertain by itself: only the share that exceeds
that by expectation is corrected (W. James and C. Stein, "Estimation with quadratic loss", 1961), and only
where halves of the samples confirm each other.

Last layers are those between which and an output stand nothing but views, concatenations, averages and a
softmax or sigmoid.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.calibration import Means
from tpuflow.config import fingerprint
from tpuflow.execution.levels import graph_level, run_samples
from tpuflow.frontend.activations import ActivationSession
from tpuflow.frontend.values import shape_of
from tpuflow.io.samples import joined_samples
from tpuflow.ptq.confirmation import graph_of
from tpuflow.ptq.held_out import LEAST
from tpuflow.ptq.layers import LinearLayer, linear_layers

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir

    from tpuflow.calibration import Ranges
    from tpuflow.config import Config
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples

__all__ = ["confirmed", "correct_output_bias", "last_layers", "sure_share"]

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

VIEWS = frozenset(
    {
        "AveragePool",
        "Cast",
        "Concat",
        "Flatten",
        "GlobalAveragePool",
        "Identity",
        "ReduceMean",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that move numbers about, or average them."""

ENDS = frozenset({"LogSoftmax", "Sigmoid", "Softmax"})
"""Functions that may stand before an output."""

SEEN = 64
"""Samples that errors are measured with, at most."""

MEMORY = 512 << 20
"""Bytes of activations held at a time."""

ELEMENTS = 1 << 26
"""Elements of last layers' outputs held at a time."""

BLOCK = 1 << 18
"""Elements averaged at a time."""


def correct_output_bias(model: FloatModel, ranges: Ranges, samples: Samples, config: Config) -> Ranges:
    """The ranges with the mean errors of last layers, which `quantize` corrects.

    Args:
        model: What is quantised.
        ranges: Of its values; errors they hold are measured anew.
        samples: What errors are measured with.
        config: How values are stored; without bias correction nothing is measured.
    """
    ranges = replace(ranges, errors={}, errors_of=None)
    layers = {layer.summed: layer for layer in last_layers(model.model.graph)}
    if not layers or not config.quantize.bias_correction or config.quantize.dtype != "int8":
        return ranges
    samples = samples.spread(SEEN)
    if samples.count < LEAST:
        return ranges  # halves of so few confirm nothing
    level = graph_level(graph_of(model, ranges, config))
    inside = not layers.keys() <= {*level.outputs}
    session = ActivationSession(model.model, memory_bytes=MEMORY, wanted=set(layers))
    largest = sum(math.prod(shape_of(layer.node.outputs[0]) or (1,)) for layer in layers.values())
    groups = samples.shards(max(1, ELEMENTS // max(1, largest)) * samples.batch)
    parts: dict[str, list[Array]] = {name: [] for name in layers}
    for group in groups:
        found = run_samples(level, group, all_tensors=inside, names=frozenset(layers))
        expected = _float_outputs(session, group, layers)
        for name, layer in layers.items():
            if name in found and found[name].shape == expected[name].shape:
                parts[name].append(_mean_errors(found[name], expected[name], -_axes_from_channels(layer)))
    errors: dict[str, Means] = {}
    for name, layer in layers.items():
        if len(parts[name]) < len(groups):
            continue
        means = np.concatenate(parts[name])
        sure = sure_share(means)
        if sure > 0 and confirmed(means):
            rank = len(shape_of(layer.node.outputs[0]) or ())
            errors[name] = Means(
                rank - _axes_from_channels(layer), tuple((sure * means.mean(axis=0)).tolist())
            )
            logger.info("%s: %.0f%% of its mean error is systematic", layer.name, 100 * sure)
    return replace(ranges, errors=errors, errors_of=fingerprint(config) if errors else None)


def _axes_from_channels(layer: LinearLayer) -> int:
    return 3 if layer.node.op_type == "Conv" else 1


def _mean_errors(found: NDArray[Any], expected: NDArray[Any], axis: int) -> Array:
    """By sample and index of `axis`, the mean of an error; of large outputs some channels at a time."""
    found, expected = (np.moveaxis(each, axis, 1) for each in (found, expected))
    means = np.empty(found.shape[:2])
    step = max(1, BLOCK // max(1, math.prod(found.shape[2:])))
    for sample, channel in product(range(len(found)), range(0, found.shape[1], step)):
        part = sample, slice(channel, channel + step)
        error = found[part].astype(np.float64) - expected[part]
        means[part] = error.mean(tuple(range(1, error.ndim)))
    return means


def sure_share(errors: Array) -> float:
    """The share of the mean over samples that is no chance: `1 - variance / square`, at least 0.

    Args:
        errors: `[samples, channels]`.
    """
    count = len(errors)
    if count < 2:
        return 0.0
    chance = float(errors.var(axis=0, ddof=1).sum()) / count
    power = float((errors.mean(axis=0) ** 2).sum())
    return max(0.0, 1.0 - chance / power) if power else 0.0


def confirmed(errors: Array) -> bool:
    """Whether what one half of the samples would correct brings the other half closer, both ways together.

    Args:
        errors: `[samples, channels]`.
    """
    if len(errors) < LEAST:
        return False
    halves = errors[0::2], errors[1::2]
    before = after = 0.0
    for own, other in (halves, halves[::-1]):
        before += float(np.sum(other**2))
        after += float(np.sum((other - sure_share(own) * own.mean(axis=0)) ** 2))
    return after < before


def last_layers(graph: ir.Graph) -> list[LinearLayer]:
    """Layers whose sums reach an output unchanged but for views, averages and a function at the end."""
    by_sum = {layer.summed: layer for layer in linear_layers(graph)}
    found: dict[str, LinearLayer] = {}
    waiting = list(graph.outputs)
    while waiting:
        value = waiting.pop()
        layer = by_sum.get(value.name or "")
        node = value.producer()
        if layer is not None and value.name is not None:
            found[value.name] = layer
        elif node is not None and (node.op_type in VIEWS or node.op_type in ENDS):
            waiting += [each for each in node.inputs if each is not None]
    return list(found.values())


def _float_outputs(
    session: ActivationSession, samples: Samples, wanted: Collection[str]
) -> dict[str, NDArray[Any]]:
    """Float outputs of last layers, the samples along the first axis."""
    parts: dict[str, list[NDArray[np.float32]]] = {name: [] for name in wanted}
    for batch in samples.batches():
        for values in session.run(batch.arrays):
            for name, array in values.items():
                if name in parts:
                    parts[name].append(array.copy())
    return joined_samples(parts, samples)
