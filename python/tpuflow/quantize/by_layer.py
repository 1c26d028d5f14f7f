"""Settings by layer, as `tpuflow build` writes them beside a program to be edited and given back.

One object per layer, by its name in the model: every field in which layers may differ, with what an entry of
the configuration says and `null` where none does; and, only to be looked at, what came of it:

    "conv1": {"dtype": null, "weight_bits": 16, ..., "just_for_display": {
        "quantization_info": {"conv1_out": {"scale": 0.02, "zerop": -128, "qbits": 8, ...}},
        "optimization_info": {"nodes": ["conv1", "relu1"], "operator": "conv"},
        "brief_info": {"layer_id": 3, "layer_type": "Relu"}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.config import SHOWN, Config, LayerConfig, layer_names, scoped
from tpuflow.config.registry import registry
from tpuflow.partition import device_networks

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.calibrate import Ranges
    from tpuflow.partition import Partitioned
    from tpuflow.quantize.lowering import Graph, Tensor

__all__ = ["by_layer"]


def by_layer(
    graph: Graph | Partitioned[Graph], model: ir.Model, config: Config, ranges: Ranges | None = None
) -> dict[str, dict[str, Any]]:
    """Settings and results of every layer that computes a node of the model.

    Args:
        graph: What was made of the model.
        model: The whole normalised model.
        config: What it was made with.
        ranges: The ranges it was made with, to be shown.
    """
    config = scoped(config, model)
    keys = [entry.name for entry in registry() if entry.per_layer]
    numbers = {name: number for number, name in enumerate(layer_names(model))}
    types = {node.name: node.op_type for node in model.graph}
    found: dict[str, dict[str, Any]] = {}
    for network in device_networks(graph):
        for layer in network.layers:
            names = [name for name in layer.nodes if name in types]
            if not names:
                continue
            output = network.tensors[layer.output]
            said = _said(config.layers, [*names, output.name])
            tensors = [network.tensors[index] for index in (*layer.operands, layer.output)]
            entry = found.setdefault(names[-1], {key: said.get(key) for key in keys})
            shown = entry.setdefault(SHOWN, {"quantization_info": {}})
            shown["quantization_info"] |= dict(_quantisation(tensors, ranges))
            shown["optimization_info"] = {"nodes": names, "operator": layer.op, "macs": layer.macs}
            shown["brief_info"] = {"layer_id": numbers[names[-1]], "layer_type": types[names[-1]]}
    return found


def _said(entries: tuple[LayerConfig, ...], names: list[str]) -> dict[str, Any]:
    """What the entries that fit say, the last one of each key."""
    said: dict[str, Any] = {}
    for entry in entries:
        if any(map(entry.fits, names)):
            said |= entry.overrides()
    return said


def _quantisation(tensors: list[Tensor], ranges: Ranges | None) -> Iterator[tuple[str, dict[str, Any]]]:
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
        source = None if tensor.source_json is None else json.loads(tensor.source_json)["name"]
        seen = ranges.tensors.get(source) if ranges is not None and source is not None else None
        if seen is not None:
            facts |= {
                "fmin": min(low for low, _ in seen.pairs),
                "fmax": max(high for _, high in seen.pairs),
            }
        yield tensor.name, facts
