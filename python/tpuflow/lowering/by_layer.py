"""Settings by layer, as `tpuflow build` writes them beside a program to be edited and given back.

One object per layer, by its name in the model: every field in which layers may differ, with what an entry of
the configuration says and `null` where none does; and, only to be looked at, what came of it:

    "conv1": {"dtype": null, "weight_bits": 16, ..., "just_for_display": {
        "quantization_info": {"conv1_out": {"scale": 0.02, "zerop": -128, "qbits": 8, ...}},
        "optimization_info": {"nodes": ["conv1", "relu1"], "operator": "conv"},
        "brief_info": {"layer_id": 3, "layer_type": "Relu", "similarity": 0.9998, "MSE": 1.2e-05}}}

Inputs of the network come first: they, too, may differ. Where samples are at hand, cosine similarity to float
and mean squared error stand with every tensor, and with the layer those of its output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tpuflow.config import SHOWN, Config, LayerConfig, layer_names, scoped
from tpuflow.config.models import SECTIONS
from tpuflow.config.section import is_per_layer
from tpuflow.partitioning import device_networks

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.calibration import Ranges
    from tpuflow.lowering.lowering import Graph, Tensor
    from tpuflow.partitioning import Partitioned

__all__ = ["by_layer"]


class TensorSimilarity(Protocol):
    """How alike a tensor is to that of float."""

    @property
    def cosine(self) -> float:
        """Cosine similarity."""

    @property
    def mse(self) -> float:
        """Mean squared error."""


def by_layer(
    graph: Graph | Partitioned[Graph],
    model: ir.Model,
    config: Config,
    ranges: Ranges | None = None,
    alike: Mapping[str, TensorSimilarity] | None = None,
) -> dict[str, dict[str, Any]]:
    """Settings and results of every input, and every layer that computes a node of the model.

    Args:
        graph: What was made of the model.
        model: The whole normalised model.
        config: What it was made with.
        ranges: The ranges it was made with, to be shown.
        alike: TensorSimilarity to float of the model's tensors, to be shown.
    """
    config = scoped(config, model)
    keys = [
        key
        for section in SECTIONS.values()
        if section is not LayerConfig
        for key, field in section.model_fields.items()
        if is_per_layer(field)
    ]
    numbers = {name: number for number, name in enumerate(layer_names(model))}
    types = {node.name: node.op_type for node in model.graph}
    found: dict[str, dict[str, Any]] = {}
    known = {value.name for value in model.graph.inputs}
    for network in device_networks(graph):
        stored = network.tensors
        for tensor in (stored[index] for index in network.inputs):
            name = _named(tensor)
            if name in known and name is not None and name not in found:
                said = _said(config.layers, [name])
                found[name] = {key: said.get(key) for key in keys} | {
                    SHOWN: {
                        "quantization_info": dict(_quantisation([tensor], ranges, alike)),
                        "optimization_info": {"nodes": [], "operator": "input", "macs": 0},
                        "brief_info": {"layer_id": numbers[name], "layer_type": "Input"}
                        | _similarity(tensor, alike),
                    }
                }
        for layer in network.layers:
            names = [name for name in layer.nodes if name in types]
            if not names:
                continue
            output = stored[layer.output]
            said = _said(config.layers, [*names, output.name])
            tensors = [stored[index] for index in (*layer.operands, layer.output)]
            entry = found.setdefault(names[-1], {key: said.get(key) for key in keys})
            shown = entry.setdefault(SHOWN, {"quantization_info": {}})
            shown["quantization_info"] |= dict(_quantisation(tensors, ranges, alike))
            shown["optimization_info"] = {"nodes": names, "operator": layer.op, "macs": layer.macs}
            shown["brief_info"] = {
                "layer_id": numbers[names[-1]],
                "layer_type": types[names[-1]],
                **_similarity(output, alike),
            }
    return found


def _said(entries: tuple[LayerConfig, ...], names: list[str]) -> dict[str, Any]:
    """What the entries that fit say, the last one of each key."""
    said: dict[str, Any] = {}
    for entry in entries:
        if any(map(entry.fits, names)):
            said |= entry.overrides()
    return said


def _named(tensor: Tensor) -> str | None:
    """The model's tensor it stands for."""
    if tensor.source_json is None:
        return None
    name: str = json.loads(tensor.source_json)["name"]
    return name


def _similarity(tensor: Tensor, alike: Mapping[str, TensorSimilarity] | None) -> dict[str, float]:
    found = None if alike is None else alike.get(_named(tensor) or "")
    return {} if found is None else {"similarity": found.cosine, "MSE": found.mse}


def _quantisation(
    tensors: list[Tensor], ranges: Ranges | None, alike: Mapping[str, TensorSimilarity] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    for tensor in tensors:
        facts: dict[str, Any] = {"dtype": tensor.dtype, "shape": tensor.shape}
        if tensor.scale is not None:
            limits = np.iinfo(tensor.dtype)
            one = len(tensor.scale) == 1
            facts |= {
                "scale": tensor.scale[0] if one else tensor.scale,
                "zerop": tensor.zero_point,
                "qbits": limits.bits,
                "qmin": int(limits.min),
                "qmax": int(limits.max),
                "qinvariant": one and tensor.scale == [1.0] and tensor.zero_point == 0,
            }
        source = _named(tensor)
        seen = ranges.tensors.get(source) if ranges is not None and source is not None else None
        if seen is not None:
            facts |= {
                "fmin": min(low for low, _ in seen.pairs),
                "fmax": max(high for _, high in seen.pairs),
            }
        yield tensor.name, facts | _similarity(tensor, alike)
