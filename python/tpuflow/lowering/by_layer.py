"""Settings by layer, as `tpuflow build` writes them beside a program to be edited and given back.

One object per layer, by its name in the model: every field in which layers may differ, with what an entry of
the configuration says and `null` where none does; and, only to be looked at, what came of it:

    "conv1": {"dtype": null, "weight_bits": 16, ..., "just_for_display": {
        "quantization_info": {"conv1_out": {"scale": 0.02, "zerop": -128, "qbits": 8, ...}},
        "optimization_info": {"nodes": ["conv1", "relu1"], "operator": "conv"},
        "brief_info": {"layer_id": 3, "layer_type": "Relu", "similarity": 0.9998, "MSE": 1.2e-05}}}

With `layer_settings = "values"` of the section `output` all values that hold stand there, not only those that
differ, in the names and the convention of text files: scales are multipliers, `q = round(x * scale - zerop)`.

Inputs of the network come first: they, too, may differ. Where samples are at hand, cosine similarity to float
and mean squared error stand with every tensor, and with the layer those of its output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tpuflow.config import FLOATS, SHOWN, Config, LayerConfig, layer_names, resolve_layers
from tpuflow.config.models import SECTIONS
from tpuflow.config.section import is_per_layer
from tpuflow.config.spellings import GRIDS
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
    config = resolve_layers(config, model)
    keys = [
        key
        for section in SECTIONS.values()
        if section is not LayerConfig
        for key, field in section.model_fields.items()
        if is_per_layer(field)
    ]
    published = config.output.layer_settings == "values"

    def settings(names: list[str], *, weights: bool) -> dict[str, Any]:
        if published:
            return _published_values(config, names, weights=weights)
        said = _last_entries(config.layers, names)
        return {key: said.get(key) for key in keys}

    def quantization(tensors: list[Tensor]) -> Iterator[tuple[str, dict[str, Any]]]:
        facts = _quantization(tensors, ranges, alike)
        if not published:
            return facts
        constants = {each.name for each in tensors if each.is_constant}
        return ((name, _as_multiplier(each, config, weights=name in constants)) for name, each in facts)

    numbers = {name: number for number, name in enumerate(layer_names(model))}
    types = {node.name: node.op_type for node in model.graph}
    found: dict[str, dict[str, Any]] = {}
    known = {value.name for value in model.graph.inputs}
    for network in device_networks(graph):
        stored = network.tensors
        for tensor in (stored[index] for index in network.inputs):
            name = _model_tensor(tensor)
            if name in known and name is not None and name not in found:
                found[name] = settings([name], weights=False) | {
                    SHOWN: {
                        "quantization_info": dict(quantization([tensor])),
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
            tensors = [stored[index] for index in (*layer.operands, layer.output)]
            weights = any(each.is_constant and each.scale is not None for each in tensors)
            entry = found.setdefault(names[-1], settings([*names, output.name], weights=weights))
            shown = entry.setdefault(SHOWN, {"quantization_info": {}})
            shown["quantization_info"] |= dict(quantization(tensors))
            shown["optimization_info"] = {"nodes": names, "operator": layer.op, "macs": layer.macs}
            shown["brief_info"] = {
                "layer_id": numbers[names[-1]],
                "layer_type": types[names[-1]],
                **_similarity(output, alike),
            }
    return found


def _published_values(config: Config, names: list[str], *, weights: bool) -> dict[str, Any]:
    """Every value that holds for a layer, by the names of text files; those of weights where it has some."""
    quantize = config.quantization(*names)
    calibrate = config.calibration(*names)
    if quantize.dtype in FLOATS:
        return {"trigger_float_op": f"{quantize.dtype}_preferred"}
    grids = {grid: name for name, grid in GRIDS.items()}
    granularity = "channel" if quantize.per_channel else "tensor"
    found: dict[str, Any] = {
        "q_mode_activation": f"per_tensor_{grids[quantize.activation_mode]}",
        "q_bits_activation": quantize.grid_bits,
        "q_strategy_activation": calibrate.strategy,
        "running_statistic_momentum": calibrate.momentum,
        "histc_bins": calibrate.bins,
        "lut_items_in_bits": quantize.table_bits,
        "force_dtype_int": quantize.force_dtype_int,
        "force_shift_positive": quantize.force_shift_positive,
    }
    if weights:
        found |= {
            "q_mode_weight": f"per_{granularity}_{grids[quantize.weight_mode]}",
            "q_bits_weight": quantize.weight_width,
            "q_strategy_weight": quantize.weight_strategy,
        }
        if quantize.bias_bits is not None:
            found["q_bits_bias"] = quantize.bias_bits
    return found


def _as_multiplier(facts: dict[str, Any], config: Config, *, weights: bool) -> dict[str, Any]:
    """The entry of a tensor with its scale as codes per unit, and positive codes from 0 on."""
    if "scale" not in facts:
        return facts
    scale, zero = facts["scale"], facts["zerop"]
    bits, dtype = facts["qbits"], facts["dtype"]
    one = not isinstance(scale, list)
    found = {
        **facts,
        "scale": 1 / scale if one else [1 / each for each in scale],
        "zerop": -zero,
        "dtype": f"Dtype.{dtype.upper()}",
    }
    if zero == facts["qmin"] and config.quantize.unsigned and config.quantize.activation_mode != "asymmetric":
        return found | {"zerop": 0, "qmin": 0, "qmax": (1 << bits) - 1, "dtype": f"Dtype.U{dtype.upper()}"}
    restricted = config.quantize.weight_mode == "symmetric_restricted"
    if weights and restricted and zero == 0 and dtype != "int32":
        found["qmin"] = -facts["qmax"]
    return found


def _last_entries(entries: tuple[LayerConfig, ...], names: list[str]) -> dict[str, Any]:
    """The last value of each key in the entries that match."""
    said: dict[str, Any] = {}
    for entry in entries:
        if any(map(entry.fits, names)):
            said |= entry.overrides()
    return said


def _model_tensor(tensor: Tensor) -> str | None:
    """The model's tensor it stands for."""
    if tensor.source_json is None:
        return None
    name: str = json.loads(tensor.source_json)["name"]
    return name


def _similarity(tensor: Tensor, alike: Mapping[str, TensorSimilarity] | None) -> dict[str, float]:
    found = None if alike is None else alike.get(_model_tensor(tensor) or "")
    return {} if found is None else {"similarity": found.cosine, "MSE": found.mse}


def _quantization(
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
        source = _model_tensor(tensor)
        seen = ranges.tensors.get(source) if ranges is not None and source is not None else None
        if seen is not None:
            facts |= {
                "fmin": min(low for low, _ in seen.pairs),
                "fmax": max(high for _, high in seen.pairs),
            }
        yield tensor.name, facts | _similarity(tensor, alike)
