"""Warnings about a network's numbers although it builds: one line each, with the remedy."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibration.masks import Masks
from tpuflow.config import FLOATS, QuantizeConfig
from tpuflow.errors import TpuflowError
from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.evaluation.layer_errors import SAMPLES, LayerError, layer_errors
from tpuflow.ptq import Recipe

if TYPE_CHECKING:
    from tpuflow.config import Config
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph
    from tpuflow.ptq import CalibratedModel, CalibrationData

__all__ = ["AccuracyError", "AccuracyWarning", "accuracy_warnings", "refuse"]

LOST_DB = 20.0
"""Most decibels a layer may lose beyond what its types explain."""

ELEMENTS = 1 << 27
"""Elements of outputs that are looked at, about: of large ones fewer samples."""

LEAST_DB = 6.0
"""An output that is expected to have less has little to do with float; `compare` fails there as well."""

CLIPPED = 1.05
"""A result that reaches so many times what its grid holds is clipped."""


class AccuracyError(TpuflowError):
    """A network built under `--strict` gave a warning about its numbers."""

    exit_status = 3


@dataclass(frozen=True)
class AccuracyWarning:
    """One thing that is wrong.

    Attributes:
        kind: `layer`, `int16`, `output` or `constant_input`.
        name: The layer, network, output or input.
        text: What is wrong and what to do about it.
    """

    kind: str
    name: str
    text: str

    def to_json(self) -> dict[str, str]:
        """Everything as plain values."""
        return asdict(self)


def refuse(found: list[AccuracyWarning]) -> None:
    """Raises if there are warnings.

    Raises:
        AccuracyError: Naming the first.
    """
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise AccuracyError(f"{found[0].text}{more}: an error under --strict")


def accuracy_warnings(
    original: FloatModel, state: CalibratedModel, graph: AnyGraph, config: Config, data: CalibrationData
) -> list[AccuracyWarning]:
    """Everything that is wrong, inputs first; nothing where there are no samples to tell by.

    Args:
        original: The float model as it was imported.
        state: The model and ranges the graph was made of.
        graph: The graph.
        config: What it was made with.
        data: What it was calibrated by.
    """
    if state.ranges is None or not data.readable:
        return []
    found = [] if data.generated else _constant_inputs(original, data.samples)
    largest = sum(math.prod(port.shape) for port in original.outputs)
    few = data.samples.spread(max(1, min(SAMPLES, ELEMENTS // max(1, largest))))
    if config.quantize.dtype == "int16":
        found += _worse_than_int8(original, state, graph, config, few)
    if not data.generated:
        found += _lost_outputs(original, state, graph, config, few)
    bits = config.quantize.weight_bits or (16 if config.quantize.dtype == "int16" else 8)
    masks = Masks.of(original.model.graph)
    honest = [
        each
        for each in layer_errors(original, graph, few, bits)
        if each.reach <= max(masks.far(each.tensor), each.held)  # what grids leave out on purpose
    ]
    return found + [_layer(each) for each in _first_to_lose(honest)]


def _first_to_lose(layers: list[LayerError]) -> list[LayerError]:
    """Layers that lose much, but for those that read what such a layer made: its grid is theirs as well."""
    spoilt, found = set[str](), []
    for each in layers:
        if each.lost_db > LOST_DB:
            if spoilt.isdisjoint(each.reads):
                found.append(each)
            spoilt.add(each.tensor)
    return found


def _layer(found: LayerError) -> AccuracyWarning:
    if found.reach > CLIPPED * found.held:
        why = (
            f"its values reach {found.reach:.4g}, its grid holds {found.held:.4g}: calibrate with "
            "samples that reach as far"
        )
    else:
        why = 'give it more bits or floats by an entry of "layers" in --config'
    text = (
        f'layer "{found.nodes[0]}": {found.found_db:.1f} dB by itself, its types give '
        f"{found.expected_db:.1f} dB; {why}"
    )
    return AccuracyWarning("layer", found.nodes[0], text)


def _constant_inputs(model: FloatModel, samples: Samples) -> list[AccuracyWarning]:
    """Inputs all of whose elements are one number in all samples."""
    first: dict[str, Any] = {}
    varies: set[str] = set()
    for row in samples.rows():
        for port in model.inputs:
            array = row[port.name]
            if array.size and port.name not in varies:
                value = first.setdefault(port.name, array.flat[0])
                if not np.all(array == value):
                    varies.add(port.name)
    return [
        AccuracyWarning(
            "constant_input",
            name,
            f'input "{name}": {value:g} throughout calibration, other values may be lost; calibrate with '
            "samples in which it varies",
        )
        for name, value in first.items()
        if name not in varies and np.issubdtype(np.asarray(value).dtype, np.number)
    ]


def _lost_outputs(
    model: FloatModel, state: CalibratedModel, graph: AnyGraph, config: Config, samples: Samples
) -> list[AccuracyWarning]:
    """Outputs that have little to do with float, by what is expected of them or, failing that, by samples."""
    if state.estimate is not None:
        likely = {name: each.high_db for name, each in state.estimate.outputs.items()}
    else:
        evaluator = Evaluator(model, samples)
        powers = evaluator.by_sample(evaluator.outputs(graph))
        likely = {
            name: 10 * math.log10(signal.sum() / noise.sum())
            for name, (noise, signal) in powers.items()
            if noise.sum() > 0 and signal.sum() > 0
        }
    wider = "floats" if config.quantize.dtype == "int16" else "--dtype int16 or floats"
    return [
        AccuracyWarning(
            "output",
            name,
            f'output "{name}": {found:.1f} dB beside float is expected; use {wider}, or find the layer by '
            "`tpuflow compare`",
        )
        for name, found in likely.items()
        if found < LEAST_DB
    ]


def _worse_than_int8(
    model: FloatModel, state: CalibratedModel, graph: AnyGraph, config: Config, samples: Samples
) -> list[AccuracyWarning]:
    """Whether the same network with 8 bits is closer to float."""
    if any(entry.overrides(QuantizeConfig).get("dtype") in FLOATS for entry in config.layers):
        return []
    narrow = config.quantize.model_copy(update={"dtype": "int8"})
    evaluator = Evaluator(model, samples)
    own = evaluator.sqnr_db(graph)
    twin = evaluator.sqnr_db(Recipe(config.model_copy(update={"quantize": narrow})).graph(state))
    if not own < twin:
        return []
    text = (
        f'network "{model.model.graph.name}": {own:.1f} dB with int16, {twin:.1f} dB with int8; use int8, or '
        "find the layer by `tpuflow compare`"
    )
    return [AccuracyWarning("int16", model.model.graph.name or "", text)]
