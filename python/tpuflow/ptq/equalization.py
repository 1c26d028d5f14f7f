"""Factors by channel that make a network easier to quantise and compute the same in floats.

One scale serves all channels of an activation, so channels with small values are stored with few codes; one
scale serves a row of weights, so columns with small weights are. A factor moves reach from one to the other:
channel `c` of an activation is divided by `s[c]`, the weights that read it are multiplied. Candidates are

    s[c] = reach[c]^a / weight[c]^b          a in 0 .. 1, b in 0 .. 0.75

with the largest value of the channel and the largest weight that reads it, each over that of all channels.
to the next power of `2^(1/16)`, so that factors can be told from scales that hold them.
Chosen is what makes the predicted noise of the sums of all readers least: roundings are taken as uniform and
independent, operands as uncorrelated. `smooth_channels` takes the usual fixed exponents for products behind
norms (G. Xiao et al., "SmoothQuant", 2022: `s = reach^alpha / weight^(1 - alpha)`).

A factor is a note on a value (`state_factors`), so that whoever shows the stored codes can multiply again.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from tpuflow.calibration import Means
from tpuflow.frontend.values import factors_of, input_at, state_factors
from tpuflow.ptq.attention import attention_factors
from tpuflow.ptq.channels import NORMS, Channels, Reader, at_ids, note_ids
from tpuflow.ptq.held_out import HeldOut
from tpuflow.ptq.layers import copy_model
from tpuflow.ptq.noise import Columns, ColumnStatistics, constant_of, groups_of
from tpuflow.ptq.seen_channels import MILD, SeenChannels

if TYPE_CHECKING:
    from tpuflow.calibration import Ranges
    from tpuflow.config import Config
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples

__all__ = [
    "SCALED",
    "STEPS",
    "EqualizedModel",
    "activation_aware",
    "better_equalized",
    "equalize_channels",
    "noted_factors",
    "scale_channels",
    "smooth_channels",
    "with_factors",
]

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

SCALED = 128
"""Samples that factors are made of."""

MARGIN_DB = 0.25
"""Least gain on samples held out for which a network's channels get factors."""

SMALLEST = 1e-3
"""Channels that reach less than this share of the largest one count as reaching so far."""

REACHES, WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.25, 0.5, 0.75)
"""Exponents tried."""

GAIN = 0.98
"""Predicted noise must fall to this share before factors are used."""

STEPS = 16
"""Factors are whole powers of two to one over this."""

WIDEST = np.log(64)
"""Largest magnitude of a factor's logarithm."""


@dataclass(frozen=True)
class EqualizedModel:
    """A network with its factors.

    Attributes:
        model: Computes the same in floats.
        sets: Sets of channels that got factors.
        predicted_db: By how much the noise of their readers is predicted to fall, the mean over the sets.
    """

    model: FloatModel
    sets: int
    predicted_db: float


def equalize_channels(
    seen: SeenChannels, weight_bits: int = 8, *, norms: bool = False, mild: float = MILD
) -> EqualizedModel:
    """Factors of least predicted noise for every set of channels; the model is not changed itself.

    Args:
        seen: The model to scale, and what samples show of it.
        weight_bits: Of its weights.
        norms: Scale what norms make, too. What they read and hold has 16 bits anyway.
        mild: Weight of the mean batch in what channels are taken to reach, `0 .. 1`, else the furthest's.
    """
    channels, statistics = seen.channels, seen.statistics(mild)
    levels = (255.0, float((1 << (weight_bits - 1)) - 1))
    factors = np.ones(channels.count)
    gains: list[float] = []
    for numbers, values, readers, products in channels.members():
        if not norms and any(_is_norm(value) for value in values):
            continue
        known = [value for value in values if value.name in statistics]
        if products:
            found = attention_factors(channels, numbers, known, readers, products, statistics, levels)
        else:
            found = _chosen(numbers, known, readers, statistics, channels, levels)
        if found is not None:
            factors[numbers], gain = found
            gains.append(gain)
    logger.info("%d sets of channels equalised", len(gains))
    return EqualizedModel(
        scale_channels(seen.model, channels, factors) if gains else seen.model,
        len(gains),
        float(np.mean(gains)) if gains else 0.0,
    )


def better_equalized(
    model: FloatModel,
    samples: Samples,
    config: Config,
    held_out: HeldOut | None = None,
    remark: Callable[[str], None] = logger.info,
) -> FloatModel:
    """The model with factors by channel where that brings outputs closer to float, else the model itself.

    Factors made of one half of the samples are evaluated by the other, both ways; of too few none are made.

    Args:
        model: A float model.
        samples: Those of calibration; factors are made of `SCALED` of them.
        config: How everything is stored.
        held_out: The halves of the samples, with all that was chosen before.
        remark: Told what was gained.
    """
    held_out = held_out or HeldOut(model, samples, config)
    bits = min(config.quantize.weight_bits or 8, 8)

    halves: list[SeenChannels] = []

    def change(model: FloatModel, ranges: Ranges, shown: Samples) -> tuple[FloatModel, Ranges]:
        halves.append(SeenChannels.of(model, shown))
        found = equalize_channels(halves[-1], bits)
        return (found.model, held_out.ranges(found.model, shown)) if found.sets else (model, ranges)

    gained = held_out.gained_db(change, MARGIN_DB)
    if gained is None:
        return model
    if not gained > MARGIN_DB:
        remark(f"cross-layer equalization: {gained:+.1f} dB on held-out samples, not applied")
        return model
    if all(half.model is model for half in halves):
        seen = reduce(SeenChannels.join, halves)
    else:
        seen = SeenChannels.of(model, samples.spread(SCALED))
    found = equalize_channels(seen, bits)
    remark(
        f"cross-layer equalization: {found.sets} sets of channels, "
        f"{gained:+.1f} dB or more on held-out samples"
    )
    return found.model


def smooth_channels(
    model: FloatModel, samples: Samples, alpha: float, fits: Callable[[ir.Node], bool] = lambda _: True
) -> EqualizedModel:
    """Factors `reach^alpha / weight^(1 - alpha)` for what products and convolutions read behind norms."""
    seen = SeenChannels.of(model, samples)
    channels, statistics = seen.channels, seen.statistics()
    factors = np.ones(channels.count)
    sets = 0
    for numbers, values, readers, products in channels.members():
        known = [value for value in values if value.name in statistics]
        if (
            not known
            or products
            or not any(_is_norm(value) for value in known)
            or not all(fits(reader.node) for reader in readers)
        ):
            continue
        columns = [Columns(reader) for reader in readers]
        reach = _by_number(
            channels, [(channels.ids[v], _reach(statistics[v.name or ""])) for v in known], np.maximum
        )
        weight = _by_number(channels, [(each.ids, each.reach()) for each in columns], np.maximum)
        own_reach, own_weight = np.maximum(reach[numbers], 1e-30), np.maximum(weight[numbers], 1e-30)
        wished = own_reach**alpha / own_weight ** (1 - alpha)
        usable = (reach[numbers] > 0) & (weight[numbers] > 0)
        factors[numbers] = np.where(usable, np.clip(wished, 1e-4, 1e4), 1.0)
        sets += 1
    return EqualizedModel(scale_channels(model, channels, factors) if sets else model, sets, 0.0)


def activation_aware(
    model: FloatModel, samples: Samples, grid: int, largest: Mapping[ir.Node, int]
) -> EqualizedModel:
    """Factors `magnitude^(r / grid)` of what layers read, with the least error of sums by rounded weights.

    Channels with large values get large weights, which rounding harms less. A magnitude is the root of the
    mean square, and factors are divided by the geometric mean of their extrema (J. Lin et al., "AWQ", 2023).

    Args:
        model: What to scale; it is not changed itself.
        samples: What its values are seen in.
        grid: Exponents tried.
        largest: Largest code of the weights of layers; sets of channels that others read stay.
    """
    seen = SeenChannels.of(model, samples)
    channels, statistics = seen.channels, seen.statistics()
    factors = np.ones(channels.count)
    sets = 0
    for numbers, values, readers, products in channels.members():
        known = [value for value in values if value.name in statistics]
        if not known or products or not readers or any(reader.node not in largest for reader in readers):
            continue
        square = _by_number(
            channels, [(channels.ids[v], statistics[v.name or ""].square) for v in known], np.maximum
        )
        magnitude = np.sqrt(np.maximum(square, 1e-30))
        best, least = (
            np.ones(len(numbers)),
            sum(_rounding(each, magnitude, np.ones(channels.count), largest[each.node]) for each in readers),
        )
        for r in range(1, grid + 1):
            own = np.ones(channels.count)
            wished = np.maximum(magnitude[numbers] ** (r / grid), 1e-4)
            own[numbers] = 1 / (wished / np.sqrt(wished.max() * wished.min()))
            error = sum(_rounding(each, magnitude, 1 / own, largest[each.node]) for each in readers)
            if error < least:
                best, least = 1 / own[numbers], error
        factors[numbers] = best
        sets += bool(np.any(best != 1))
    return EqualizedModel(scale_channels(model, channels, factors) if sets else model, sets, 0.0)


def _rounding(reader: Reader, magnitude: Array, factors: Array, largest: int) -> float:
    """Mean square of what rounded weights add to sums, operands taken as uncorrelated."""
    node, own = reader.node, at_ids(factors, reader.ids)
    weights = constant_of(node, 1).astype(np.float64)
    groups = groups_of(node)
    rows = (
        weights.T[:, :, np.newaxis] if node.op_type == "MatMul" else weights.reshape(*weights.shape[:2], -1)
    )
    rows = rows.reshape(groups, -1, *rows.shape[1:]) * own.reshape(groups, 1, -1, 1)
    step = np.abs(rows).max(axis=(2, 3), keepdims=True) / largest
    off = np.rint(rows / np.where(step > 0, step, 1.0)) * step - rows
    power = (at_ids(magnitude, reader.ids) / own) ** 2
    return float(np.sum(off**2 * power.reshape(groups, 1, -1, 1)))


def _chosen(
    numbers: NDArray[np.int64],
    values: list[ir.Value],
    readers: list[Reader],
    statistics: Mapping[str, ColumnStatistics],
    channels: Channels,
    levels: tuple[float, float],
) -> tuple[Array, float] | None:
    """Factors of a set of channels and the predicted gain in dB; None where none is worth it."""
    columns = [
        each for each in map(Columns, readers) if each.value is not None and each.value.name in statistics
    ]
    if not values or not columns:
        return None
    logs = [(channels.ids[v], np.log(_share(_reach(statistics[v.name or ""])))) for v in values]
    reach = _by_number(channels, logs, np.add) / np.maximum(_by_number(channels, _ones(logs), np.add), 1)
    logs = [(each.ids, np.log(_share(each.reach()))) for each in columns]
    weight = _by_number(channels, logs, np.add) / np.maximum(_by_number(channels, _ones(logs), np.add), 1)
    reading = {each.value for each in columns}
    others = [value for value in values if value not in reading]

    def noise(factors: Array) -> float:
        total = 0.0
        for each in columns:
            assert each.value is not None
            ids = channels.ids[each.value]
            total += each.noise(
                statistics[each.value.name or ""], at_ids(factors, ids), at_ids(factors, each.ids), levels
            )
        for value in others:  # what no layer reads is stored and read with its own rounding alone
            found, own = statistics[value.name or ""], at_ids(factors, channels.ids[value])
            step = (max(0.0, (found.high / own).max()) - min(0.0, (found.low / own).min())) / levels[0]
            total += float(np.mean(own**2)) * step**2 / 12 / max(float(np.mean(found.square)), 1e-30)
        return total

    tied = any((channels.ids[value] == 0).any() for value in values)
    factors = np.ones(channels.count)
    first = least = noise(factors)
    best: Array | None = None
    for a, b in itertools.product(REACHES, WEIGHTS):
        exponent = a * reach[numbers] - b * weight[numbers]
        if not tied:
            exponent = exponent - exponent.mean()
        steps = np.rint(np.clip(exponent, -WIDEST, WIDEST) / np.log(2) * STEPS)
        factors[numbers] = np.exp2(steps / STEPS)
        found = noise(factors)
        if found < least * (GAIN if best is None else 1.0):
            best, least = factors[numbers], found
    return None if best is None else (best, float(10 * np.log10(first / least)))


def _reach(found: ColumnStatistics) -> Array:
    return np.maximum(-found.low, found.high)


def _share(reach: Array) -> Array:
    return np.asarray(np.maximum(reach / max(float(reach.max()), 1e-30), SMALLEST))


def _ones(entries: list[tuple[NDArray[np.int64], Array]]) -> list[tuple[NDArray[np.int64], Array]]:
    return [(ids, np.ones_like(values)) for ids, values in entries]


def _by_number(channels: Channels, entries: list[tuple[NDArray[np.int64], Array]], join: np.ufunc) -> Array:
    """Numbers of arrays joined by channel number."""
    found = np.zeros(channels.count)
    for ids, values in entries:
        join.at(found, ids.ravel(), np.broadcast_to(values, ids.shape).ravel())
    return found


def scale_channels(model: FloatModel, channels: Channels, factors: Array) -> FloatModel:
    """The model with values divided by the factors of their channels; it is not changed itself.

    Args:
        model: Its graph is that of `channels`.
        channels: Numbers of its channels.
        factors: By number; that of number 0 is 1.
    """
    made = copy_model(model.model)
    pairs = dict(zip(model.model.graph, made.graph, strict=True))
    reads = {reader.node: at_ids(factors, reader.ids) for reader in channels.readers}
    for node in dict.fromkeys([*channels.makers, *reads]):
        out = at_ids(factors, channels.ids[node.outputs[0]]) if node in channels.makers else np.ones(1)
        _divide(pairs[node], reads.get(node), out)
    for node, place in channels.constants:
        own = at_ids(factors, channels.ids[node.outputs[0]])
        if np.any(own != 1):
            old = constant_of(node, place)
            divided = old / own
            _replace(pairs[node], place, divided.reshape(old.shape) if divided.size == old.size else divided)
    for node, twin in pairs.items():
        for value, same in zip(node.outputs, twin.outputs, strict=True):
            ids = channels.ids.get(value)
            found = np.ones(1) if ids is None else at_ids(factors, ids)
            if np.any(found != 1):
                state_factors(same, found)
    for name, value in list(made.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del made.graph.initializers[name]
    return replace(model, model=made)


def with_factors(model: FloatModel, factors: Mapping[str, Means]) -> FloatModel:
    """The model with some of its values divided, and with them all that must be divided alike.

    Args:
        model: As it was before its channels were scaled.
        factors: By name of a value, as ranges keep them.
    """
    channels = Channels.of(model.model.graph, _host_nodes(model))
    by_number = np.ones(channels.count)
    known = [
        (ids.ravel(), np.array(own.values))
        for value, ids in channels.ids.items()
        if (own := factors.get(value.name or "")) is not None and ids.size == len(own.values)
    ]
    if known:  # all at once: a number's own factor is exact, its inverse's is rounded
        note_ids(by_number, *(np.concatenate(parts) for parts in zip(*known, strict=True)))
    by_number[0] = 1.0
    return scale_channels(model, channels, by_number)


def noted_factors(model: FloatModel) -> dict[str, Means]:
    """The factors that values of a model were divided by, by name, as ranges keep them."""
    found: dict[str, Means] = {}
    for node in model.model.graph:
        for value in node.outputs:
            factors = factors_of(value)
            # Of values with factors along several axes those tell that they are made of.
            if factors is not None and value.name and max(factors.shape) == factors.size:
                axis = int(np.argmax(factors.shape))
                found[value.name] = Means(axis, tuple(factors.ravel().tolist()))
    return found


def _divide(node: ir.Node, read: Array | None, out: Array) -> None:
    """Weights, gain and bias of a maker or reader."""
    if node.op_type in NORMS:
        if np.any(out != 1):
            for place in (1, 2):
                if input_at(node, place) is not None:
                    _replace(node, place, constant_of(node, place) / out.reshape(-1))
        return
    weights = constant_of(node, 1).astype(np.float64)
    read = None if read is None or np.all(read == 1) else read
    if read is None and np.all(out == 1):
        return
    if node.op_type == "MatMul":
        weights = weights if read is None else weights * read[:, np.newaxis]
        _replace(node, 1, weights / out.reshape(-1))
        return
    rows, inner = weights.shape[:2]
    if read is not None:
        groups = groups_of(node)
        spread = np.repeat(read.reshape(groups, inner), rows // groups, axis=0)
        weights = weights * spread[:, :, np.newaxis, np.newaxis]
    _replace(node, 1, weights / out.reshape(-1, 1, 1, 1))
    if input_at(node, 2) is not None:
        _replace(node, 2, constant_of(node, 2) / out.reshape(-1))


def _is_norm(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in NORMS


def _replace(node: ir.Node, place: int, array: NDArray[np.floating]) -> None:
    old = node.inputs[place]
    assert old is not None
    name = f"{old.name}/equalized/{node.outputs[0].name}"
    tensor = ir.tensor(np.ascontiguousarray(array, np.float32), name=name)
    value = ir.Value(
        name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.FLOAT)
    )
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.initializers[name] = value
    node.replace_input_with(place, value)


def _host_nodes(model: FloatModel) -> set[str]:
    """Names of the nodes that stay with the host."""
    return {finding.node for finding in model.findings}
