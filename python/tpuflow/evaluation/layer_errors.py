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

from tpuflow.evaluation.graph_reads import GraphReads, values_of
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend.activations import ActivationSession, run_of, segment_of
from tpuflow.partitioning import device_networks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tpuflow.execution.simulation import ProgramPort
    from tpuflow.frontend import FloatModel, FloatSession
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["LayerError", "layer_errors"]

Array = NDArray[Any]

SAMPLES = 8
"""Samples looked at, at most."""

ELEMENTS = 4_000_000
"""Elements of tensors looked at, about: of large networks fewer samples."""

MEMORY = 512 << 20
"""Bytes of float values held at a time."""

BLOCK = 1 << 18
"""Elements that are compared at a time."""

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
    values = values_of(model.model)
    names = [name for name in ports if name in values]
    made_here = [name for name in names if values[name].producer() is not None]
    if not made_here:
        return []
    sums = {name: _Sums() for name in names}
    per_sample = sum(math.prod(ports[name].stored) for name in names)
    whole = _Parts(model.model, levels, names, made_here)
    for batch in samples.spread(max(1, min(SAMPLES, ELEMENTS // max(1, per_sample)))).batches():
        for part, exact in whole.run(batch.arrays):
            shown = {name: array for name in part.made if (array := exact[name]).shape == ports[name].shape}
            rounded = {f"{name}{GIVEN}": _round_to_best_grid(exact[name], ports[name]) for name in part.given}
            ideal = dict(part.session.run({**{name: batch.arrays[name] for name in part.inputs}, **rounded}))
            for level in levels:
                taken = {name: exact[name] for name in (*part.operands, *whole.inputs) if name in exact}
                for name, found in level.run_apart(taken, part.made).items():
                    if name in shown and name in ideal:
                        step = _best_step(ideal[name], ports[name])
                        _add(sums[name], exact[name], found, ideal.pop(name), step)
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


@dataclass(frozen=True)
class _Part:
    """Layers that are looked at together.

    Attributes:
        made: Tensors of the model that they make.
        session: The float network from rounded operands to these.
        given: Tensors of the model it reads rounded.
        inputs: The network's own it reads beside them.
        operands: Tensors of the model that the integer layers read.
    """

    made: tuple[str, ...]
    session: FloatSession
    given: tuple[str, ...]
    inputs: tuple[str, ...]
    operands: frozenset[str]


class _Parts:
    """A float network in parts whose tensors fit into memory, each beside the layers that it stands for.

    Args:
        model: The float network.
        levels: The graphs.
        names: Tensors of the model on grids, which layers read and make.
        made: Those that nodes make.
    """

    def __init__(
        self, model: ir.Model, levels: Sequence[GraphLevel], names: list[str], made: Collection[str]
    ) -> None:
        shown = {port.name: port for level in levels for port in level.shown.values()}
        self._session = ActivationSession(
            model, memory_bytes=MEMORY, wanted=set(shown), clamped=True, integers=True
        )
        # Inputs of segments, which the host may compute, are few and always given.
        self.inputs = frozenset(port.name for level in levels for port in level.ports)
        cut, reads = _apart(model, names), [GraphReads(level, model) for level in levels]
        nodes = list(cut.graph)
        self._parts: list[_Part | None] = []  # None where no layer ends
        for part in self._session.made:
            here = tuple(name for name in part if name in made)
            if not here:
                self._parts.append(None)
                continue
            segment = segment_of(cut, run_of(nodes, here), set(here), (), once=True, arena=False)
            given = tuple(name.removesuffix(GIVEN) for name in segment.inputs if name.endswith(GIVEN))
            inputs = tuple(name for name in segment.inputs if not name.endswith(GIVEN))
            operands = frozenset(name for each in reads for name in each.of(here))
            self._parts.append(_Part(here, segment.session, given, inputs, operands))
        self._last_read = {
            name: at
            for at, part in enumerate(self._parts)
            if part is not None
            for name in (*part.given, *part.operands)
        }

    def run(self, feeds: Mapping[str, Array]) -> Iterator[tuple[_Part, dict[str, Array]]]:
        """Every part, with the exact values that it makes and reads."""
        kept: dict[str, Array] = dict(feeds)
        for at, (part, values) in enumerate(zip(self._parts, self._session.run(feeds), strict=True)):
            known = {**values, **kept}
            if part is not None:
                yield part, known
            kept = {
                name: array
                for name, array in known.items()
                if name in feeds or name in self.inputs or self._last_read.get(name, 0) > at
            }


def _quantized_ports(level: GraphLevel) -> dict[str, ProgramPort]:
    """Stored tensors on grids, by the model's name."""
    return {
        port.name: port
        for port in level.shown.values()
        if port.scale and port.own_codes is None and port.dtype.kind == "f"
    }


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


def _apart(model: ir.Model, names: list[str]) -> ir.Model:
    """The model with these tensors read from outside wherever they are read."""
    made = model.clone()
    values = values_of(made)
    for name in names:
        value = values[name]
        uses = list(value.uses())
        if not uses:
            continue
        outside = ir.Value(name=f"{name}{GIVEN}", shape=value.shape, type=value.type)
        made.graph.inputs.append(outside)
        for use in uses:
            use.node.replace_input_with(use.idx, outside)
    return made


def _round_to_best_grid(array: Array, port: ProgramPort) -> Array:
    """Values on the best even grid of a tensor's type."""
    flat, step = array.ravel(), _best_step(array, port)
    rounded = np.empty(flat.shape, np.float32)
    for part, own in _blocks(flat, rounded):
        own[...] = _round_to_step(part, step)
    return rounded.reshape(array.shape)


def _best_step(array: Array, port: ProgramPort) -> float:
    """The step of the best even grid of a tensor's type: one that just holds its values, and zero."""
    low = high = 0.0
    for (part,) in _blocks(array.ravel()):
        plain = part[np.abs(part) < MASKED]
        low, high = min(low, float(plain.min(initial=0.0))), max(high, float(plain.max(initial=0.0)))
    return (high - low) / ((1 << 8 * port.code.itemsize) - 1)


def _round_to_step(values: Array, step: float) -> NDArray[np.float32]:
    """Values on a grid of a step, as they are where there is none."""
    exact = np.rint(values.astype(np.float64) / step) * step if step > 0 else values
    return exact.astype(np.float32)


def _add(sums: _Sums, exact: Array, found: Array, ideal: Array, step: float) -> None:
    """Adds the powers of values, of what was found in their place, and of ideal ones on a grid of a step."""
    for block in _blocks(exact.ravel(), found.ravel(), ideal.ravel()):
        here = np.abs(block[0]) < MASKED
        # Choosing all would be a copy, which takes most of the time.
        own, made, best = block if here.all() else (each[here] for each in block)
        x = own.astype(np.float64)
        sums.signal += float(x @ x)
        sums.found += float(np.sum((made - x) ** 2))
        sums.expected += float(np.sum((_round_to_step(best, step) - x) ** 2))
        sums.reach = max(sums.reach, float(np.abs(x).max(initial=0.0)))


def _blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Views of flat arrays of one length, some elements at a time: what is computed of them takes memory."""
    for at in range(0, arrays[0].size, BLOCK):
        yield tuple(array[at : at + BLOCK] for array in arrays)


def _largest_magnitude(port: ProgramPort) -> float:
    limits = np.iinfo(port.code)
    levels = max(abs(limits.min - port.zero_point), abs(limits.max - port.zero_point))
    return float(max(port.scale) * levels)


def _decibels(signal: float, noise: float) -> float:
    if not math.isfinite(noise):  # a logarithm or quotient of a number that rounds to zero
        return -math.inf
    return 10 * math.log10(signal / noise) if noise else math.inf
