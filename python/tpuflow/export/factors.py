"""A graph whose channels were scaled, and the float model scaled alike: every tensor has one scale again.

A tensor of such a graph states a scale per channel, `S f[c]`, and only the products are known. Factors
are powers of 2^(1/16), and the multipliers of a linear layer tell `S` closely enough to see which:

    S = s_in * s_w / (multiplier * 2^-shift)

From there they follow to all that shares them (see `refine.channels`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.errors import ModelError
from tpuflow.partitioning import device_networks
from tpuflow.ptq.channels import Channels, at_ids, note_ids
from tpuflow.ptq.equalization import STEPS, scale_channels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.frontend import FloatModel
    from tpuflow.lowering import Graph
    from tpuflow.lowering.lowering import Layer
    from tpuflow.partitioning import Partitioned

__all__ = ["Network", "StoredTensor", "multipliers", "with_one_scale"]


@dataclass(frozen=True)
class StoredTensor:
    """The fields of a graph's tensor that export reads."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: tuple[float, ...] | None
    zero_point: int
    is_constant: bool
    source_json: str | None

    @property
    def value(self) -> str:
        """Name of the model's value it stands for; empty for none."""
        return "" if self.source_json is None else str(json.loads(self.source_json)["name"])


@dataclass(frozen=True)
class Network:
    """A graph of such tensors."""

    tensors: tuple[StoredTensor, ...]
    layers: tuple[Layer, ...]
    graph: Graph

    def constant(self, index: int) -> NDArray[Any]:
        """Elements of a constant tensor."""
        return self.graph.constant(index)


def with_one_scale(model: FloatModel, graph: Graph | Partitioned[Graph]) -> tuple[FloatModel, list[Network]]:
    """The model with the factors the graph was made with, and the graph without them.

    Raises:
        ModelError: The factors of a tensor cannot be told.
    """
    networks = [_network(each) for each in device_networks(graph)]
    if not any(_is_scaled(tensor) for network in networks for tensor in network.tensors):
        return model, networks
    channels = Channels.of(model.model.graph, {finding.node for finding in model.findings})
    ids = {value.name: numbers.ravel() for value, numbers in channels.ids.items() if value.name}
    found = np.full(channels.count, np.nan)
    found[0] = 1.0
    plain = []
    for network in networks:
        makers = {layer.output: layer for layer in network.layers}
        tensors = list(network.tensors)
        order = [*(at for at, _ in enumerate(tensors) if at not in makers), *makers]
        for at in order:
            if _is_scaled(tensors[at]):
                tensors[at] = _one_scale(model, tensors, at, makers.get(at), ids, found)
        plain.append(replace(network, tensors=tuple(tensors)))
    return scale_channels(model, channels, np.where(np.isnan(found), 1.0, found)), plain


def _network(graph: Graph) -> Network:
    tensors = tuple(
        StoredTensor(
            tensor.name,
            tuple(tensor.shape),
            tensor.dtype,
            None if tensor.scale is None else tuple(tensor.scale),
            tensor.zero_point,
            tensor.is_constant,
            tensor.source_json,
        )
        for tensor in graph.tensors
    )
    return Network(tensors, tuple(graph.layers), graph)


def _is_scaled(tensor: StoredTensor) -> bool:
    return not tensor.is_constant and tensor.scale is not None and len(tensor.scale) > 1


def _one_scale(
    model: FloatModel,
    tensors: Sequence[StoredTensor],
    at: int,
    layer: Layer | None,
    ids: Mapping[str, NDArray[np.int64]],
    found: NDArray[np.float64],
) -> StoredTensor:
    """A tensor with one scale; the factors of its channels are noted in `found`."""
    tensor = tensors[at]
    assert tensor.scale is not None
    products, numbers = np.array(tensor.scale, np.float64), ids.get(tensor.value)
    if numbers is None or len(numbers) != len(products):
        raise ModelError(f'{model.label}: the channels of tensor "{tensor.value}" were scaled otherwise')
    before = at_ids(found, numbers)
    known = np.flatnonzero(~np.isnan(before))
    if len(known):
        scale = products[known[0]] / before[known[0]]
    else:
        near = None if layer is None else _near(layer, tensors)
        if near is None:
            raise ModelError(
                f'{model.label}: the channels of tensor "{tensor.value}" were scaled in a way that cannot be '
                "written as ONNX: build without smooth_quant and equalize"
            )
        scale = products[0] * 2.0 ** (-round(math.log2(products[0] / near) * STEPS) / STEPS)
    note_ids(found, numbers, products / scale)
    return replace(tensor, scale=(float(scale),))


def multipliers(epilogue: Mapping[str, Any]) -> list[float]:
    """Multipliers of an epilogue, one number or one per column; nothing for floats."""
    requant, first = epilogue.get("requant", {}), epilogue.get("first_shift") or 0
    pairs = zip(requant.get("multiplier", []), requant.get("shift", []), strict=True)
    return [math.ldexp(multiplier, -shift - first) for multiplier, shift in pairs]


def _near(layer: Layer, tensors: Sequence[StoredTensor]) -> float | None:
    """The scale of what a linear layer makes, as its multipliers have it; None for other layers."""
    epilogue = json.loads(layer.op_json).get("epilogue", {})
    ratios = [] if "table" in epilogue else multipliers(epilogue)
    weights = [tensors[index] for index in layer.operands if tensors[index].is_constant]
    source = tensors[layer.operands[0]]
    if not ratios or not weights or not weights[0].scale or not source.scale:
        return None
    place = int(np.argmax(epilogue["requant"]["multiplier"]))
    ratio = ratios[place]
    steps = weights[0].scale
    return source.scale[0] * steps[place if len(steps) > 1 else 0] / ratio if ratio else None
