"""Operands of linear layers in samples, and how they are stored: ground all layer-wise methods share.

A layer is `y = W x`; `x` are columns of its operand at positions spread evenly over samples (see `layers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.config import Config, QuantizeConfig
from tpuflow.frontend.activations import ActivationSession
from tpuflow.lowering.grids import grid_of
from tpuflow.ptq.layers import LinearLayer, linear_layers

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.calibration import Ranges
    from tpuflow.config.chain import GlobalMethod
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.lowering.scheme import Quant

__all__ = [
    "Operand",
    "chosen_layers",
    "fake_quantize",
    "largest_code",
    "operand_grid",
    "operands_of",
    "settings_of",
]

Array = NDArray[np.float64]

MEMORY = 512 << 20
"""Bytes of activations held at a time."""

COLUMNS, ELEMENTS = 1024, 1 << 22
"""Columns of a layer at most, and elements of them."""


@dataclass(frozen=True)
class Operand:
    """A value that linear layers read.

    Attributes:
        name: Its name.
        layers: Its readers, each with what its weights meet, `[groups, columns, k]`.
    """

    name: str
    layers: tuple[tuple[LinearLayer, NDArray[np.float32]], ...]


def settings_of(config: Config, *names: str) -> QuantizeConfig:
    """How a layer or tensor of these names is stored."""
    changes: dict[str, Any] = {}
    for entry in config.layers:
        if any(map(entry.fits, names)):
            changes |= entry.overrides(QuantizeConfig)
    return config.quantize.model_copy(update=changes)


def largest_code(layer: LinearLayer, config: Config) -> int | None:
    """The largest code of a layer's weights; None where they are not to be refined."""
    settings = settings_of(config, *layer.names)
    bits = settings.weight_bits or {"int8": 8}.get(settings.dtype, 16)
    if settings.dtype not in {"int8", "int16"} or not settings.per_channel or bits > 8:
        return None
    return int((1 << (bits - 1)) - 1)


def operand_grid(name: str, ranges: Ranges, config: Config) -> Quant | None:
    """The grid an operand is stored on; None where it has no range, or is stored as floats."""
    found, settings = ranges.tensors.get(name), settings_of(config, name)
    if found is None or settings.dtype not in {"int8", "int16"}:
        return None
    low, high = min(low for low, _ in found.pairs), max(high for _, high in found.pairs)
    return grid_of(low, high, settings)


def fake_quantize(values: NDArray[np.float32], grid: Quant | None) -> NDArray[np.float32]:
    """Numbers as they come back from their codes."""
    if grid is None:
        return values
    found = values / np.float32(grid.scale)  # all that follows happens in this memory
    np.rint(found, out=found)
    np.clip(found, grid.lo - grid.zero_point, grid.hi - grid.zero_point, out=found)
    found *= np.float32(grid.scale)
    return found


def chosen_layers(model: FloatModel, config: Config, method: GlobalMethod) -> list[tuple[LinearLayer, int]]:
    """The layers a method is for, each with its largest code."""
    hosted = {finding.node for finding in model.findings}
    numbers = {node: at for at, node in enumerate(model.model.graph, len(model.model.graph.inputs))}
    found = []
    for layer in linear_layers(model.model.graph):
        largest = largest_code(layer, config)
        fits = method.fits(layer.node.op_type, *layer.names, number=numbers[layer.node])
        if largest is not None and not layer.is_stated and layer.name not in hosted and fits:
            found.append((layer, largest))
    return found


def operands_of(model: ir.Model, layers: list[LinearLayer], samples: Samples) -> Iterator[Operand]:
    """Operands of layers, in order, as the float model computes them for samples."""
    readers: dict[str, list[LinearLayer]] = {}
    for layer in layers:
        readers.setdefault(layer.operand, []).append(layer)
    given = {value.name for value in model.graph.inputs}
    session = ActivationSession(model, memory_bytes=MEMORY, wanted=set(readers) - given)
    parts: dict[LinearLayer, list[NDArray[np.float32]]] = {layer: [] for layer in layers}
    most = {
        layer: max(1, min(COLUMNS, ELEMENTS // layer.weights[..., 0, :].size) // samples.count)
        for layer in layers
    }
    for batch in samples.batches():
        found: dict[str, NDArray[np.float32]] = {
            name: array for name, array in batch.arrays.items() if name in readers
        }
        for values in session.run(batch.arrays) if set(readers) - given else ():
            found |= {name: array for name, array in values.items() if name in readers}
            for name, array in found.items():
                for layer in readers[name]:
                    columns = layer.columns(array, most[layer] * batch.count)
                    parts[layer].append(columns)
            found = {}
        for name, array in found.items():
            for layer in readers[name]:
                parts[layer].append(layer.columns(array, most[layer] * batch.count))
    for name, own in readers.items():
        yield Operand(name, tuple((layer, np.concatenate(parts[layer], axis=1)) for layer in own))
