"""Ranges of operands tuned on what their readers make of them.

`kld` looks at a tensor's own distribution alone, and extrema clip nothing. Between the range of the one and
that of the other lie candidates at even distances; taken is the one with which the sums of the readers,
computed with weights as they are stored, are nearest to those in float. Of several readers the furthest
counts, each in parts of its own sums.

Near sums are not yet near outputs: of nine trained networks one gains 1 to 2 dB, the others little or less.
Where nobody chose a strategy, ranges are tuned only if samples held out confirm it (`better_tuned`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpuflow.calibration import Range, Ranges
from tpuflow.config.chain import parsed_chain
from tpuflow.ptq.easy_quant import round_to_codes
from tpuflow.ptq.held_out import HeldOut
from tpuflow.ptq.kept_statistics import KeptStatistics
from tpuflow.ptq.operands import Operand, chosen_layers, fake_quantize, operand_grid, operands_of

if TYPE_CHECKING:
    from tpuflow.config import Config
    from tpuflow.config.chain import GlobalMethod
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.lowering.scheme import Quant
    from tpuflow.ptq.layers import LinearLayer

__all__ = ["Reader", "auto_tuned", "better_tuned", "candidates", "distance", "reader", "tune_operand"]

logger = logging.getLogger(__name__)


METHOD = parsed_chain("auto_tune")[0]
"""All layers, with the numbers it has by default."""

LEAST = 32
"""Of fewer samples no ranges are tuned: a half of them says too little of sums."""

MARGIN_DB = 0.5
"""Least gain of outputs on either half: the choice of samples alone moves them by as much."""


def better_tuned(
    model: FloatModel,
    ranges: Ranges,
    samples: Samples,
    config: Config,
    held_out: HeldOut | None = None,
    remark: Callable[[str], None] = logger.info,
) -> Ranges:
    """Ranges tuned where that brings outputs closer to float on samples held out, else the ranges themselves.

    Args:
        model: A float model.
        ranges: Of its values, by all samples.
        samples: Those of calibration.
        config: How everything is stored.
        held_out: The halves of the samples, with all that was chosen before.
        remark: Told what was gained.
    """
    if samples.count < LEAST or not chosen_layers(model, config, METHOD):
        return ranges
    held_out = held_out or HeldOut(model, samples, config)

    def change(model: FloatModel, ranges: Ranges, shown: Samples) -> tuple[FloatModel, Ranges]:
        few = held_out.few(shown)
        return model, auto_tuned(model, ranges, few, config, METHOD, held_out.statistics)

    gained = held_out.gained_db(change, MARGIN_DB)
    if gained is None or not gained > MARGIN_DB:
        return ranges
    found = auto_tuned(model, ranges, samples, config, METHOD, held_out.statistics)
    remark(f"range tuning: {gained:+.1f} dB or more on held-out samples")
    return found


def auto_tuned(
    model: FloatModel,
    ranges: Ranges,
    samples: Samples,
    config: Config,
    method: GlobalMethod,
    statistics: KeptStatistics | None = None,
) -> Ranges:
    """Ranges with those of operands of linear layers tuned.

    Args:
        model: A float model.
        ranges: Of its values.
        samples: What candidates rest on; some of them are what layers meet.
        config: How everything is stored.
        method: The layers it is for, and its numbers.
        statistics: What was counted before.
    """
    layers, numbers = dict(chosen_layers(model, config, method)), method.numbers
    statistics = statistics or KeptStatistics()
    cut, whole = (
        statistics.ranges(model, samples, _by(config, strategy)).tensors for strategy in ("kld", "extrema")
    )
    for operand in operands_of(model.model, list(layers), samples.spread(int(numbers["batches"]))):
        if operand.name in cut and operand_grid(operand.name, ranges, config) is not None:
            between = candidates(cut[operand.name], whole[operand.name], int(numbers["candidates"]))
            ranges = tune_operand(operand, layers, ranges, config, between)
    return ranges


def _by(config: Config, strategy: str) -> Config:
    own = config.calibrate.model_copy(update={"strategy": strategy})
    return config.model_copy(update={"calibrate": own})


def candidates(cut: Range, whole: Range, count: int) -> list[Range]:
    """So many ranges from one to the other, both among them.

    Args:
        cut: The narrower one.
        whole: The wider one.
        count: At least 2.
    """
    (low, high), (least, most) = cut.pairs[0], whole.pairs[0]
    shares = np.linspace(0, 1, count)
    return [Range(low + share * (least - low), high + share * (most - high)) for share in shares]


@dataclass(frozen=True)
class Reader:
    """A layer that reads an operand.

    Attributes:
        met: What its weights meet, `[groups, columns, k]`.
        weights: As they are stored, `[groups, k, rows]`.
        sums: What float weights make of it, `[groups, columns, rows]`.
    """

    met: NDArray[np.float32]
    weights: NDArray[np.float32]
    sums: NDArray[np.float32]

    @cached_property
    def norm(self) -> float:
        """Length of the sums, 1 where they are all zero."""
        return float(np.linalg.norm(self.sums)) or 1.0


def reader(layer: LinearLayer, met: NDArray[np.float32], largest: int) -> Reader:
    """A layer whose weights have codes up to `largest`, rounded to the nearest."""
    weights = layer.weights
    reach = np.abs(weights).max(axis=2)
    steps = np.where(reach > 0, reach, 1.0) / largest
    kept = round_to_codes(weights, steps, largest) * steps[..., np.newaxis]
    plain, codes = (each.transpose(0, 2, 1).astype(np.float32) for each in (weights, kept))
    return Reader(met, codes, met @ plain)


def distance(readers: Sequence[Reader], grid: Quant | None) -> float:
    """How far sums over an operand on a grid are from float, in parts of those: of the furthest reader."""
    found = 0.0
    for each in readers:
        made = fake_quantize(each.met, grid) @ each.weights
        made -= each.sums
        found = max(found, float(np.linalg.norm(made)) / each.norm)
    return found


def tune_operand(
    operand: Operand,
    layers: Mapping[LinearLayer, int],
    ranges: Ranges,
    config: Config,
    between: Sequence[Range],
) -> Ranges:
    """Ranges with that of an operand replaced by the one, of its own and some more, of the least distance.

    Args:
        operand: With its readers and what they meet.
        layers: The largest code of every layer.
        ranges: Of all values.
        config: How values are stored.
        between: What else the operand may have.
    """
    readers = [reader(layer, x, layers[layer]) for layer, x in operand.layers]
    tried = [ranges, *(replace(ranges, tensors={**ranges.tensors, operand.name: found}) for found in between)]
    return min(tried, key=lambda each: distance(readers, operand_grid(operand.name, each, config)))
