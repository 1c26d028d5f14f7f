"""Everything that prevents a model from being built, found at once, before any work is done.

    open axes        inputs whose shape the model leaves open: with an assumed size the rest is looked at
    operators        outside the closed set, with attributes or types out of range; what cannot be quantised
    sizes            constants beyond the memory of the machine
    ranges           values the saved ranges do not know

Nothing is calibrated, scheduled or run: layers are lowered with a made-up range. `segments` divides the model
between device and host, by lowering as well.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from tpuflow.calibration import Range, Ranges
from tpuflow.compiler.program import machine_text
from tpuflow.config import Config
from tpuflow.errors import Finding, GraphError, UnsupportedModelError
from tpuflow.frontend import FloatModel, load
from tpuflow.frontend.source import Source, read
from tpuflow.lowering import Graph, lower
from tpuflow.partitioning import Partitioned, partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Audit", "audit", "obstacles", "segments"]

IMAGE_SIDE, OTHER = 224, 16
"""Sizes assumed for open axes: of images, and of anything else."""
MADE_UP = Range(-1.0, 1.0)


@dataclass(frozen=True)
class Audit:
    """The findings of a pre-flight check.

    Attributes:
        findings: One per problem.
        cut_points: Tensors before which everything is supported.
    """

    findings: tuple[Finding, ...]
    cut_points: tuple[str, ...]


def audit(
    source: Source,
    *,
    machine: str = "128x128_asic",
    config: Config | None = None,
    ranges: Ranges | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    **options: Any,
) -> Audit:
    """Looks at a whole model.

    Args:
        source: The model.
        machine: What it is to be built for: a preset or a file.
        config: What to quantise how.
        ranges: Saved ranges to be used.
        input_shapes: Shapes of inputs the model leaves open.
        options: Further arguments of `tpuflow.load`.

    Raises:
        ModelError: If the model cannot be read, or contradicts itself or the options.
    """
    config = config or Config()
    model, _ = read(source)
    shapes, findings = _open_axes(model, dict(input_shapes or {}))
    findings += _sizes(model, machine, config)
    cut_points: tuple[str, ...] = ()
    try:
        loaded = load(source, input_shapes=shapes, **config.loading, **options)
        findings += _lowering_findings(loaded, config, ranges)
    except UnsupportedModelError as error:
        findings += error.findings
        cut_points = error.cut_points
    return Audit(tuple(findings), cut_points)


def obstacles(
    source: Source, machine: str, config: Config, input_shapes: Mapping[str, Sequence[int]]
) -> tuple[Finding, ...]:
    """Findings that prevent a build even with the host: open axes, and too many constants.

    Raises:
        ModelError: If the model cannot be read.
    """
    model, _ = read(source)
    _, findings = _open_axes(model, dict(input_shapes))
    return tuple(findings + _sizes(model, machine, config))


def _open_axes(
    model: ir.Model, shapes: dict[str, Sequence[int]]
) -> tuple[dict[str, Sequence[int]], list[Finding]]:
    """Shapes for all inputs, and one finding for each that had to be assumed."""
    findings = []
    for value in model.graph.inputs:
        name = value.name or ""
        if name in shapes or value.shape is None:
            continue
        dims = list(value.shape)
        opened = [axis for axis, size in enumerate(dims) if axis and not isinstance(size, int)]
        if not opened:
            continue
        image = len(dims) == 4
        sizes = [
            size if isinstance(size, int) else 1 if axis == 0 else IMAGE_SIDE if image and axis > 1 else OTHER
            for axis, size in enumerate(dims)
        ]
        shapes[name] = sizes
        written = ",".join(map(str, sizes))
        axes = "axis" if len(opened) == 1 else "axes"
        listed = ", ".join(map(str, opened))
        reason = f"{axes} {listed} without a fixed size: give --input-shape {name}={written}"
        findings.append(Finding(name, "input", "shape", reason))
    return shapes, findings


def _sizes(model: ir.Model, machine: str, config: Config) -> list[Finding]:
    """Constants that the machine's memory cannot hold, one by one, and all of them together."""
    ddr = tomllib.loads(machine_text(machine))["ddr"]
    capacity = ddr["capacity_bytes"] * ddr["channels"]
    width = {"int8": 1, "f32": 4}.get(config.quantize.dtype, 2)
    found, total = [], 0
    for name, value in model.graph.initializers.items():
        size = 0 if value.const_value is None else value.const_value.size * width
        total += size
        if size > capacity:
            reason = f"{size} bytes exceed the {capacity} of the machine's DDR: take a larger --machine"
            found.append(Finding(name, "constant", "size", reason))
    if total > capacity and not found:
        reason = f"all constants, {total} bytes, exceed the {capacity} of the machine's DDR: cut the model"
        found.append(Finding(model.graph.name or "model", "constants", "size", reason))
    return found


def _lowering_findings(model: FloatModel, config: Config, ranges: Ranges | None) -> list[Finding]:
    """Findings of lowering, with placeholder ranges where there are none."""
    findings = [
        Finding(name, "tensor", "range", "has no range: calibrate this model again")
        for name in _float_names(model)
        if ranges is not None and name not in ranges.tensors
    ]
    try:
        lower(model, _with_placeholder_ranges(model, ranges), config)
    except UnsupportedModelError as error:
        findings += error.findings
    except GraphError as error:
        findings.append(Finding(model.model.graph.name or "model", "graph", None, str(error)))
    return findings


def segments(model: FloatModel, config: Config, ranges: Ranges | None = None) -> Partitioned[Graph]:
    """The segments of device and host that `build` makes of a model loaded with `host=True`.

    They are those of lowering itself, which sends further nodes to the host; with ranges made up where there
    are none.

    Raises:
        UnsupportedModelError: What is wrong is no node's, so that the host cannot help.
        ModelError: Nothing is left for the device.
    """
    return lower(partition(model), _with_placeholder_ranges(model, ranges), config)


def _with_placeholder_ranges(model: FloatModel, ranges: Ranges | None) -> Ranges:
    """Ranges for all floats of a model; those that are not known are made up."""
    made_up = dict.fromkeys(_float_names(model), MADE_UP)
    return Ranges(tensors=made_up | ({} if ranges is None else dict(ranges.tensors)))


def _float_names(model: FloatModel) -> list[str]:
    graph = model.model.graph
    values = [value for node in graph for value in node.outputs] + list(graph.inputs)
    return [value.name for value in values if value.name and value.dtype == ir.DataType.FLOAT]
