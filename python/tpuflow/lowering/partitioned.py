"""Lowering of a model in segments: device segments become graphs, what cannot be lowered goes to the host.

Whether a node can be lowered is known for certain only when it is tried, since it depends on its neighbours
and on the configuration. So all device segments are tried; where nodes are refused the model is divided
anew with them, and all the host had before, on the host. Each round moves at least one node, and nothing
moves back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tpuflow.calibration import Means, Range
from tpuflow.config import Config, LayerConfig
from tpuflow.errors import Finding, UnsupportedModelError
from tpuflow.frontend import FloatModel
from tpuflow.lowering.lowering import Graph, Lowering
from tpuflow.lowering.settings import Settings, without_effect
from tpuflow.lowering.walk import walk
from tpuflow.partitioning import Partitioned, PartitionedModel, partition

__all__ = ["quantize_segments"]


def quantize_segments(
    parts: PartitionedModel,
    ranges: Mapping[str, Range],
    config: Config,
    means: Mapping[str, Means],
    errors: Mapping[str, Means],
) -> Partitioned[Graph]:
    """Lowers every device segment.

    Raises:
        ModelError: Nothing is left for the device.
        QuantizeError: If a range is missing, empty or not finite.
        ConfigError: If an entry of the configuration matches nothing on the device or cannot be honoured.
    """
    known: list[Finding] = []
    while True:
        refused: list[Finding] = []
        graphs: list[Graph] = []
        lowerings: list[Lowering] = []
        _check_entries(parts, config, {finding.node for finding in known})
        for segment in parts.device:
            own = _applicable_entries(segment.network, config)
            lowerings.append(Lowering(segment.network.model, ranges, own, means, errors))
            try:
                graphs.append(walk(lowerings[-1], whole=False))
            except UnsupportedModelError as error:
                moved = list(_nodes(segment.network, error.findings))
                if not moved:  # none of what is wrong is a node's, so there is nothing to move
                    raise
                refused += moved
        if not refused:
            _check_effects(lowerings)
            return parts.with_networks(graphs)
        known += refused
        parts = partition(parts.model, known, parts.bound)


def _check_effects(lowerings: list[Lowering]) -> None:
    """Every key of an entry must have met, in one of the segments, a layer that can honour it."""
    all_settings = [lowering.settings for lowering in lowerings]
    for settings in all_settings:
        for entry, key in settings.idle():
            own = [each for each in all_settings if entry in each.entries]
            if all((entry, key) in each.idle() for each in own):
                settings.refuse(without_effect(entry, key))
    all_settings[0].check_rules({rule for settings in all_settings for rule in settings.met})


def _nodes(model: FloatModel, findings: tuple[Finding, ...]) -> Iterator[Finding]:
    """Findings about inputs and outputs become findings about the nodes that read or make them."""
    graph = model.model.graph
    for finding in findings:
        if finding.operator == "input":
            (value,) = (value for value in graph.inputs if value.name == finding.node)
            nodes = [use.node for use in value.uses()]
        elif finding.operator == "output":
            (value,) = (value for value in graph.outputs if value.name == finding.node)
            maker = value.producer()
            nodes = [] if maker is None else [maker]
        else:
            yield finding
            continue
        for node in nodes:
            yield Finding(node.name or "", node.op_type, f'tensor "{finding.node}"', finding.reason)


def _names(model: FloatModel) -> set[str]:
    """Names in a segment that entries of a configuration may match."""
    graph = model.model.graph
    names = {value.name for value in graph.inputs} | {node.name for node in graph}
    return {name for name in names | {value.name for node in graph for value in node.outputs} if name}


def _applicable_entries(model: FloatModel, config: Config) -> Config:
    names = _names(model)
    own = tuple(entry for entry in config.layers if any(map(entry.fits, names)))
    return config if own == tuple(config.layers) else config.model_copy(update={"layers": own})


def _check_entries(parts: PartitionedModel, config: Config, moved: set[str]) -> None:
    """Every entry must fit something the device computes, or would have if it could."""
    names = {name for segment in parts.device for name in _names(segment.network)} | moved
    if moved:  # what reads an input may be among it
        names |= {value.name or "" for value in parts.model.model.graph.inputs}

    def idle(entry: LayerConfig) -> bool:
        return not any(map(entry.fits, names))

    wrong = [entry.where for entry in config.layers if idle(entry)]
    if wrong:
        quoted = ", ".join(f'"{where}"' for where in wrong)
        Settings(config).refuse(f"layers: {quoted} matches no node and no tensor the device computes")
