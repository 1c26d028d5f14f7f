"""Channels stored twice, half a step apart: finer numbers out of the same 8 bits.

A value that linear layers read is made as two channels, a quarter of a step above and below it, and readers
take half of their weight for each. The mean of the two roundings lies on a grid of half the step, so that the
power of their error falls to a quarter, and zero stays zero behind a Relu:

    v            -->  stored  v + step/4,  v - step/4
    sum of w v   -->  sum of  w/2 (v + step/4) + w/2 (v - step/4)

(after R. Zhao et al., "Improving neural network quantization without retraining using outlier channel
splitting", 2019, who split values in two for narrower ranges). It costs the multiplications of what makes the
value and of what reads it once more, so what is split is chosen by what its rounding alone does to the
outputs, until a network has grown by as much as it may.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.evaluation.fidelity import parts_of_output
from tpuflow.frontend import FloatSession
from tpuflow.frontend.values import (
    array_of,
    attributes_of,
    factors_of,
    input_at,
    shape_of,
    state_factors,
    state_steps,
    steps_of,
)
from tpuflow.ptq.layers import LinearLayer, copy_model, linear_layers
from tpuflow.ptq.operands import operand_grid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from tpuflow.calibration import Ranges
    from tpuflow.config import Config
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.lowering.scheme import Quant

__all__ = ["SplitChannels", "multiplications", "split_channels"]

logger = logging.getLogger(__name__)

CLAMPS = frozenset({"Relu", "Clip"})
"""Operators that a layer's sums go through before they are stored."""

SEEN = 8
"""Samples that the noise of a rounding is measured with, at most."""

LEFT = 0.25
"""Share of the power of a rounding's error that is left of two."""

WORTH = 1e-3
"""Where less than this share of all noise would go, nothing is split."""


@dataclass(frozen=True)
class SplitChannels:
    """A network some of whose channels are stored twice.

    Attributes:
        model: Computes the same in floats, but for an eighth of a step at most where a clamp bends.
        values: Names of what is split, as it was.
        growth: How many times as many multiplications linear layers take.
    """

    model: FloatModel
    values: tuple[str, ...]
    growth: float


@dataclass(frozen=True)
class _SplitGroup:
    """Values that are split together, because they are concatenated.

    Attributes:
        makers: Layers that sum them up.
        stored: Values that are rounded, in their makers' order.
        between: All nodes from the makers' sums to the readers, but for these.
        readers: Layers that read them.
        grid: The value whose range gives the step.
        axis: Of channels: 1 of what convolutions make, -1 of products.
    """

    makers: tuple[LinearLayer, ...]
    stored: tuple[ir.Value, ...]
    between: tuple[ir.Node, ...]
    readers: tuple[LinearLayer, ...]
    grid: ir.Value
    axis: int

    @property
    def name(self) -> str:
        """Of the value whose range gives the step."""
        return self.grid.name or ""

    @property
    def names(self) -> set[str]:
        """Everything that will have other channels."""
        nodes = [*(maker.node for maker in self.makers), *self.between]
        found = {name for node in nodes for name in (node.name, *(value.name for value in node.outputs))}
        return {name for name in (*found, *(name for maker in self.makers for name in maker.names)) if name}


def split_channels(
    model: FloatModel, ranges: Ranges, samples: Samples, config: Config, growth: float = 2.0
) -> SplitChannels:
    """Doubles the channels whose roundings disturb the outputs most for what they cost.

    Ranges of the result are to be found anew: what is split has another name. Values that the
    configuration has settings for by name are left, and so are networks of other types than int8.

    Args:
        model: What is quantised; it is not changed itself.
        ranges: Of its values: they give the steps.
        samples: What roundings are measured with; the first of them.
        config: How values are stored.
        growth: How many times as many multiplications linear layers may take at most.
    """
    steps = {
        group: grid.scale
        for group in _split_groups(model)
        if not any(entry.fits(name) for entry in config.layers for name in group.names)
        and (grid := operand_grid(group.name, ranges, config)) is not None
        and grid.dtype == "int8"
    }
    if config.quantize.dtype != "int8" or not steps or growth <= 1:
        return SplitChannels(model, (), 1.0)
    layers = list(linear_layers(model.model.graph))
    noise = _noise(model, ranges, samples.spread(SEEN), config, list(steps))
    least, total = WORTH * sum(noise.values()), float(sum(map(multiplications, layers)))
    chosen: list[_SplitGroup] = []
    spent = 1.0
    left = [group for group in steps if (1 - LEFT) * noise[group] > least]
    while left:
        costs = {group: _multiplication_count(layers, [*chosen, group]) / total - spent for group in left}
        left = [group for group in left if spent + costs[group] <= growth * (1 + 1e-9)]
        if left:
            best = max(left, key=lambda group: noise[group] / costs[group])
            spent += costs[best]
            chosen.append(best)
            left.remove(best)
    logger.info("%d of %d values split, %.2f times the multiplications", len(chosen), len(steps), spent)
    made = _rewritten(model, {group: steps[group] for group in chosen}) if chosen else model
    return SplitChannels(made, tuple(group.name for group in chosen), spent)


def multiplications(layer: LinearLayer) -> int:
    """Products a layer adds up for one run."""
    return math.prod(shape_of(layer.node.outputs[0]) or (0,)) * int(layer.weights.shape[-1])


def _multiplication_count(layers: Iterable[LinearLayer], groups: Iterable[_SplitGroup]) -> float:
    """Multiplications of all layers, some of whose operands and results are split."""
    groups = list(groups)
    made = {maker.node for group in groups for maker in group.makers}
    read = {reader.node for group in groups for reader in group.readers}
    return float(
        sum(
            multiplications(layer) * (1 + (layer.node in made)) * (1 + (layer.node in read))
            for layer in layers
        )
    )


def _split_groups(model: FloatModel) -> list[_SplitGroup]:
    """Everything that can be split."""
    hosted = {finding.node for finding in model.findings}
    layers = {layer.node: layer for layer in linear_layers(model.model.graph) if layer.name not in hosted}
    stored: dict[ir.Value, tuple[LinearLayer, tuple[ir.Node, ...]]] = {}
    for layer in layers.values():
        if layer.has_bias:
            value, behind = _first_rounded(layer)
            stored[value] = (layer, behind)
    found: list[_SplitGroup] = []
    done: set[ir.Value] = set()
    for value in stored:
        if value in done:
            continue
        group = _split_group(value, stored, layers)
        if group is not None:
            done.update(group.stored)
            found.append(group)
    return found


def _first_rounded(layer: LinearLayer) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """The first value a layer's sums are rounded to, and the nodes up to it."""
    value, behind = layer.node.outputs[0], []
    summed = value.name == layer.summed
    while (node := _sole(value)) is not None and (not summed or node.op_type in CLAMPS):
        behind.append(node)
        value = node.outputs[0]
        summed = True
    return value, tuple(behind)


def _sole(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _split_group(
    first: ir.Value,
    stored: Mapping[ir.Value, tuple[LinearLayer, tuple[ir.Node, ...]]],
    layers: Mapping[ir.Node, LinearLayer],
) -> _SplitGroup | None:
    """The layers to split together with a value; None where something else reads or makes it."""
    waiting, values, readers = [first], [first], {}
    between: list[ir.Node] = []
    joined: ir.Node | None = None
    while waiting:
        value = waiting.pop()
        if value.is_graph_output() or not value.uses():
            return None
        for node, place in value.uses():
            if node in layers and place == 0:
                readers[node] = layers[node]
            elif node in between:
                continue
            elif node.op_type == "MaxPool" and len(node.outputs) == 1:
                between.append(node)
                waiting.append(node.outputs[0])
            elif node.op_type == "Concat" and joined is None and _along_channels(node):
                joined = node
                between.append(node)
                own = [each for each in node.inputs if each is not None]
                # Parts that are read elsewhere, too, or moved first, have grids of their own.
                if any(each not in stored or _sole(each) is not node for each in own):
                    return None
                values = list(dict.fromkeys([*values, *own]))
                waiting.append(node.outputs[0])
            else:
                return None
    makers = [stored[value][0] for value in values]
    kinds = {layer.node.op_type for layer in (*makers, *readers.values())}
    pooled = any(node.op_type == "MaxPool" for node in between)
    if not readers or len(kinds) > 1 or (pooled and kinds != {"Conv"}):  # pools go along a product's columns
        return None
    behind = [node for value in values for node in stored[value][1]]
    return _SplitGroup(
        tuple(makers),
        tuple(values),
        tuple(dict.fromkeys([*behind, *between])),
        tuple(readers.values()),
        first if joined is None else joined.outputs[0],
        1 if kinds == {"Conv"} else -1,
    )


def _along_channels(node: ir.Node) -> bool:
    axis, rank = attributes_of(node).get("axis", 0), len(shape_of(node.outputs[0]) or ())
    return isinstance(axis, int) and rank == 4 and axis % rank == 1


def _noise(
    model: FloatModel, ranges: Ranges, samples: Samples, config: Config, groups: Iterable[_SplitGroup]
) -> dict[_SplitGroup, float]:
    """Of every group, what rounding it alone does to the outputs: noise over signal, over all their parts."""
    parts = (part for output in model.model.graph.outputs for part in parts_of_output(output))
    outputs = list(dict.fromkeys(part.name or "" for part in parts))
    plain = copy_model(model.model)
    _tidy(plain.graph)
    exact = _run(plain, outputs, samples)
    signal = {name: float(np.sum(np.square(array))) for name, array in exact.items()}
    found: dict[_SplitGroup, float] = {}
    for group in groups:
        grid = operand_grid(group.name, ranges, config)
        assert grid is not None
        made = copy_model(plain)
        twins = {value.name: value for node in made.graph for value in node.outputs}
        for value in group.stored:
            _round(made.graph, twins[value.name], grid)
        near = _run(made, outputs, samples)
        found[group] = sum(
            float(np.sum(np.square(near[name] - array))) / signal[name]
            for name, array in exact.items()
            if signal[name] > 0
        )
    return found


def _run(model: ir.Model, names: list[str], samples: Samples) -> dict[str, NDArray[np.float64]]:
    session = FloatSession(model, names)
    parts: dict[str, list[NDArray[np.float64]]] = {}
    for batch in samples.batches():
        for name, array in session.run(batch.arrays).items():
            if array.dtype.kind == "f":
                parts.setdefault(name, []).append(array.astype(np.float64).ravel())
    return {name: np.concatenate(each) for name, each in parts.items()}


def _round(graph: ir.Graph, value: ir.Value, grid: Quant) -> None:
    """Has a value's readers read what comes back from its codes."""
    bounds = (grid.lo - grid.zero_point, grid.hi - grid.zero_point)
    chain: list[tuple[str, tuple[float, ...]]] = [
        ("Div", (grid.scale,)), ("Round", ()), ("Clip", bounds), ("Mul", (grid.scale,))
    ]  # fmt: skip
    users, last, nodes = list(value.uses()), value, []
    for operator, numbers in chain:
        constants = []
        for at, number in enumerate(numbers):
            name = f"{value.name}/rounded/{operator}_{at}"
            tensor = ir.tensor(np.array(number, np.float32), name=name)
            constants.append(
                ir.Value(name=name, const_value=tensor, shape=ir.Shape(()), type=ir.TensorType(tensor.dtype))
            )
            graph.initializers[name] = constants[-1]
        nodes.append(ir.Node("", operator, [last, *constants], name=f"{value.name}/rounded/{operator}"))
        last = nodes[-1].outputs[0]
        last.name, last.shape, last.type = nodes[-1].name, value.shape, value.type
    for node, place in users:
        node.replace_input_with(place, last)
    maker = value.producer()
    assert maker is not None
    graph.insert_after(maker, nodes)


def _rewritten(model: FloatModel, steps: Mapping[_SplitGroup, float]) -> FloatModel:
    """The model with groups split, each by its step."""
    made = copy_model(model.model)
    twins = dict(zip(model.model.graph, made.graph, strict=True))
    for group, step in steps.items():
        for maker in group.makers:
            node = twins[maker.node]
            _repeat(node, 1, 0 if group.axis == 1 else 1)
            sums = node
            if group.axis != 1:
                sums = next(twins[each] for each in group.between if each.outputs[0].name == maker.summed)
            _offset(sums, maker.weights.shape[0] * maker.weights.shape[1], step / 4)
        for reader in group.readers:
            _repeat(twins[reader.node], 1, 1 if group.axis == 1 else 0, 0.5)
        for node in (*(maker.node for maker in group.makers), *group.between):
            _widen(twins[node].outputs[0], group.axis)
    _tidy(made.graph)
    return replace(model, model=made)


def _tidy(graph: ir.Graph) -> None:
    """Leaves out constants that nothing reads any more."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def _repeat(node: ir.Node, place: int, axis: int, factor: float = 1.0) -> None:
    """Every slice of a constant along an axis twice in a row, times a factor; its steps alike."""
    old = node.inputs[place]
    array = array_of(old)
    assert array is not None
    value = _constant(node, place, np.repeat(array, 2, axis) * np.float32(factor))
    steps = steps_of(old)
    if steps is not None:
        state_steps(value, np.repeat(steps, 2, axis) * np.float32(factor))


def _offset(node: ir.Node, channels: int, offset: float) -> None:
    """Biases of channels that stand twice in a row, above and below what they were."""
    place = 2
    if node.op_type != "Conv":
        place = next(at for at, value in enumerate(node.inputs) if array_of(value) is not None)
    array = array_of(input_at(node, place))
    old = np.zeros(channels) if array is None else np.broadcast_to(array.ravel(), channels)
    _constant(node, place, np.repeat(old, 2) + np.tile([offset, -offset], channels))


def _constant(node: ir.Node, place: int, array: NDArray[np.floating]) -> ir.Value:
    name = f"{node.outputs[0].name}/split_{place}"
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    while name in graph.initializers:  # a layer may both make and read what is split
        name += "_again"
    tensor = ir.tensor(np.ascontiguousarray(array, np.float32), name=name)
    value = ir.Value(
        name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.FLOAT)
    )
    graph.initializers[name] = value
    if place >= len(node.inputs):
        node.resize_inputs(place + 1)
    node.replace_input_with(place, value)
    return value


def _widen(value: ir.Value, axis: int) -> None:
    """A value with twice the channels and a name of its own: it is none of the model's."""
    shape = list(shape_of(value) or ())
    factors = factors_of(value)
    if factors is not None and factors.shape[axis] == shape[axis]:
        state_factors(value, np.repeat(factors, 2, axis))
    shape[axis] *= 2
    value.shape = ir.Shape(shape)
    value.name = f"{value.name}/split"
