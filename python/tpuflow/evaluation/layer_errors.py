"""The error that every layer makes by itself, beside what its types should give.

Each layer is run on exact operands, so that it inherits no error, in two ways on the same samples:

    found      the integer layer, on the grids of the graph
    expected   the float layer on operands rounded to the best grid their type has for just these values, its
               result rounded likewise, and the rounding of weights

Where the first is much worse than the second something is wrong that no wider type makes good: a range that
calibration did not see, a constant beyond it, a function that a table does not resolve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatSession
from tpuflow.partitioning import device_networks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuflow.execution.simulation import ProgramPort
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["LayerError", "layer_errors"]

Array = NDArray[Any]

SAMPLES = 8
"""Samples looked at, at most."""

ELEMENTS = 4_000_000
"""Elements of tensors looked at, about: of large networks fewer samples."""

GIVEN = "/given"
"""Suffix of the name of a tensor that the float network reads from outside."""

MASKED = 1e30
"""Values beyond are masks, which no grid holds."""

WEIGHT_DB = 6.02, 10.0
"""Signal to noise of rounded weights: so much for every bit, less so much."""


@dataclass(frozen=True)
class LayerError:
    """The noise that a layer adds by itself.

    Attributes:
        tensor: The model's name of what it makes.
        nodes: The model's nodes it computes.
        reads: Tensors of the graph it reads, by the model's name or their own.
        found_db: Signal to noise on exact operands.
        expected_db: What the types of operands, weights and result give.
        reach: Largest magnitude of the exact result.
        held: Largest magnitude its grid holds.
    """

    tensor: str
    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    found_db: float
    expected_db: float
    reach: float
    held: float

    @property
    def lost_db(self) -> float:
        """How much worse the layer is than its types."""
        return self.expected_db - self.found_db


@dataclass
class _Sums:
    """Powers of a tensor over samples."""

    signal: float = 0.0
    found: float = 0.0
    expected: float = 0.0
    reach: float = 0.0


def layer_errors(
    model: FloatModel, graph: AnyGraph, samples: Samples, weight_bits: int = 8
) -> list[LayerError]:
    """Every layer whose result stands for a tensor of the model, in the order of the graph.

    Args:
        model: The float model the graph was made of, before channels were scaled.
        graph: The graph.
        samples: Some of them are looked at.
        weight_bits: Of stored weights.
    """
    levels = [GraphLevel(network) for network in device_networks(graph)]
    ports = {name: port for level in levels for name, port in _quantized_ports(level).items()}
    values = _values(model.model)
    names = [name for name in ports if name in values]
    made_here = [name for name in names if values[name].producer() is not None]
    if not made_here:
        return []
    cut, given = _apart(model.model, names)
    sums = {name: _Sums() for name in names}
    per_sample = sum(math.prod(ports[name].stored) for name in names)
    batches = list(samples.spread(max(1, min(SAMPLES, ELEMENTS // max(1, per_sample)))).batches())
    # One session after the other: each has a copy of all weights.
    whole = FloatSession(model.model, "all")
    every = [{**batch.arrays, **whole.run(dict(batch.arrays))} for batch in batches]
    del whole
    apart = FloatSession(cut, made_here, once=True)
    for batch, exact in zip(batches, every, strict=True):
        shown = {name: array for name in names if (array := exact[name]).shape == ports[name].shape}
        rounded = {f"{name}{GIVEN}": _round_to_best_grid(exact[name], ports[name]) for name in given}
        ideal = apart.run({**batch.arrays, **rounded})
        for level in levels:
            for name, made in level.run_apart(exact).items():
                if name in shown and name in ideal:
                    _add(sums[name], exact[name], made, _round_to_best_grid(ideal[name], ports[name]))
    kept = 10 ** (-(WEIGHT_DB[0] * weight_bits - WEIGHT_DB[1]) / 10)
    return [
        LayerError(
            name,
            *made_by,
            _decibels(own.signal, own.found),
            _decibels(own.signal, own.expected + kept * own.signal),
            own.reach,
            _largest_magnitude(ports[name]),
        )
        for name, made_by in _made_by(levels).items()
        if (own := sums.get(name)) is not None and own.signal > 0
    ]


def _quantized_ports(level: GraphLevel) -> dict[str, ProgramPort]:
    """Stored tensors on grids, by the model's name."""
    return {
        port.name: port
        for port in level.shown.values()
        if port.scale and port.own_codes is None and port.dtype.kind == "f"
    }


def _values(model: ir.Model) -> dict[str, ir.Value]:
    """Values that nodes of a model compute, and its inputs."""
    made = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return {value.name: value for value in made if value.name}


def _made_by(levels: Iterable[GraphLevel]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """By name of a tensor the nodes of the model that its layer computes, and what that reads."""
    found = {}
    for level in levels:
        tensors = level.graph.tensors
        names = [level.shown[each.name].name if each.name in level.shown else each.name for each in tensors]
        for layer in level.graph.layers:
            if tensors[layer.output].name in level.shown and layer.nodes:
                found[names[layer.output]] = tuple(layer.nodes), tuple(names[at] for at in layer.operands)
    return found


def _apart(model: ir.Model, names: list[str]) -> tuple[ir.Model, list[str]]:
    """The model with these tensors read from outside wherever they are read, and names of those that are."""
    made = model.clone()
    values, given = _values(made), []
    for name in names:
        value = values[name]
        uses = list(value.uses())
        if not uses:
            continue
        outside = ir.Value(name=f"{name}{GIVEN}", shape=value.shape, type=value.type)
        made.graph.inputs.append(outside)
        given.append(name)
        for use in uses:
            use.node.replace_input_with(use.idx, outside)
    return made, given


def _round_to_best_grid(array: Array, port: ProgramPort) -> Array:
    """Values on the best even grid of a tensor's type: one that just holds them, and zero."""
    plain = np.where(np.abs(array) < MASKED, array, 0.0)
    low, high = min(0.0, float(plain.min(initial=0.0))), max(0.0, float(plain.max(initial=0.0)))
    step = (high - low) / ((1 << 8 * port.code.itemsize) - 1)
    if not step > 0:
        return array.astype(np.float32)
    return (np.rint(array.astype(np.float64) / step) * step).astype(np.float32)


def _add(sums: _Sums, exact: Array, found: Array, expected: Array) -> None:
    here = np.abs(exact) < MASKED
    x = exact[here].astype(np.float64)
    sums.signal += float(x @ x)
    sums.found += float(np.sum((found[here] - x) ** 2))
    sums.expected += float(np.sum((expected[here] - x) ** 2))
    sums.reach = max(sums.reach, float(np.abs(x).max(initial=0.0)))


def _largest_magnitude(port: ProgramPort) -> float:
    limits = np.iinfo(port.code)
    levels = max(abs(limits.min - port.zero_point), abs(limits.max - port.zero_point))
    return float(max(port.scale) * levels)


def _decibels(signal: float, noise: float) -> float:
    if not math.isfinite(noise):  # a logarithm or quotient of a number that rounds to zero
        return -math.inf
    return 10 * math.log10(signal / noise) if noise else math.inf
