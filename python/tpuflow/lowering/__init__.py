"""Lowering: a normalised float model, ranges and a configuration become the integer `Graph`.

    graph = lower(model, ranges, config)

`plan` groups nodes into layers; `walk` visits them, and `lowering` represents every value as a `view` of a
stored tensor (`layout`), `ports` adds inputs and outputs; `registry` finds the function in `ops/` that
emits an operator's layer, as an `Op` of the graph (`operators`); `grids` chooses scales and zero points,
`scheme` quantises arrays, `sums` weights and biases of linear layers; `tables` samples functions,
`fixed_point` computes multipliers; `settings` looks up the configuration of a layer. New operators are
added to `ops/`, new quantisation modes to `scheme`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, overload

from tpuflow.config import Config, resolve_layers
from tpuflow.errors import UnsupportedModelError
from tpuflow.frontend import FloatModel
from tpuflow.frontend.values import factors_of
from tpuflow.lowering import ops
from tpuflow.lowering.by_layer import by_layer
from tpuflow.lowering.fallback import as_target_has
from tpuflow.lowering.grids import QuantizeError
from tpuflow.lowering.int16_values import added_values, int16_values
from tpuflow.lowering.lowering import Graph, Lowering
from tpuflow.lowering.partitioned import quantize_segments
from tpuflow.lowering.registry import supported_operators
from tpuflow.lowering.walk import walk
from tpuflow.partitioning import Partitioned, PartitionedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from tpuflow.calibration import Range, Ranges

__all__ = [
    "Graph",
    "QuantizeError",
    "added_values",
    "by_layer",
    "int16_values",
    "lower",
    "ops",
    "supported_operators",
]

logger = logging.getLogger(__name__)


@overload
def lower(
    model: FloatModel | ir.Model, ranges: Ranges | None = None, config: Config | None = None
) -> Graph: ...


@overload
def lower(
    model: PartitionedModel, ranges: Ranges | None = None, config: Config | None = None
) -> Partitioned[Graph]: ...


def lower(
    model: FloatModel | ir.Model | PartitionedModel,
    ranges: Ranges | None = None,
    config: Config | None = None,
) -> Graph | Partitioned[Graph]:
    """Lowers a normalised float model; of a model in segments every device segment.

    Args:
        model: As the frontend leaves it, or its normalised form: closed operator set, static shapes,
            constants as initialisers; or such a model in segments.
        ranges: A range for every value that becomes codes; networks in floats need none. Where they hold
            means of what linear layers read, biases make up for the average error of the weights; where they
            hold errors of last layers' sums, biases take these back if they were measured with this very
            configuration; if not, a warning says so.
        config: Types, grids and exceptions by name; int8 with asymmetric activations by default.

    Returns:
        The verified graph; layouts channels-last, batch that of the model. Of a model in segments the same
        segments in graphs, but that nodes of the device which cannot be lowered have gone to the host.

    Raises:
        UnsupportedModelError: Listing every node that cannot be lowered.
        QuantizeError: If a range is missing, empty or not finite.
        ConfigError: If an entry of the configuration matches nothing or cannot be honoured.
        RangesError: If means or errors have another length than their tensor.
    """
    config = config or Config()
    if ranges is not None:
        ranges = ranges.without_foreign_errors(config, logger.warning)
    bounds: Mapping[str, Range] = {} if ranges is None else ranges.tensors
    means = {} if ranges is None else ranges.means
    errors = {} if ranges is None else ranges.errors
    whole = model.model if isinstance(model, PartitionedModel | FloatModel) else model
    if ranges is not None and ranges.factors and not _is_divided(whole):
        raise QuantizeError(
            "ranges are those of a network whose channels were divided by factors: give that network, "
            "`tpuflow.ptq.with_factors(model, ranges.factors)`"
        )
    normalized = whole.model if isinstance(whole, FloatModel) else whole
    config = as_target_has(resolve_layers(config, normalized), normalized)
    if isinstance(model, PartitionedModel):
        return quantize_segments(model, bounds, config, means, errors)
    if isinstance(model, FloatModel) and model.findings:
        raise UnsupportedModelError(f"{model.label}: whole, without `tpuflow.partition`", model.findings)
    graph = model.model if isinstance(model, FloatModel) else model
    return walk(Lowering(graph, bounds, config, means, errors))


def _is_divided(model: FloatModel | ir.Model) -> bool:
    """Whether any value was divided by factors."""
    graph = model.model.graph if isinstance(model, FloatModel) else model.graph
    return any(factors_of(value) is not None for node in graph for value in node.outputs)
