"""Ranges a model itself states, in the metadata of its nodes (`in_ir`).

    layer_top_range   [min, max] of what a node makes, or one pair per output; also in an input's metadata
    weights_range     [min, max] of its weights, or one pair per output channel

The values are JSON. Biases lie on the scale of the sums, so `biases_range`, which is read elsewhere, adds
nothing here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tpuflow.calibration.ranges import Range
from tpuflow.errors import RangesError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

__all__ = ["stated_ranges", "stated_weights"]

VALUES, WEIGHTS = "layer_top_range", "weights_range"


def stated_ranges(model: ir.Model) -> dict[str, Range]:
    """The ranges of values the model states, by name, widened to hold zero.

    Raises:
        RangesError: What stands there is no range; the text names the node.
    """
    found: dict[str, Range] = {}
    for value in model.graph.inputs:
        pairs = _pairs(value.metadata_props, VALUES, f'input "{value.name}"')
        if pairs:
            found[value.name or ""] = _range(pairs[0])
    for node in model.graph:
        pairs = _pairs(node.metadata_props, VALUES, f'node "{node.name}"')
        if pairs and len(pairs) not in {1, len(node.outputs)}:
            raise RangesError(
                f'node "{node.name}": {len(pairs)} ranges in {VALUES} for {len(node.outputs)} outputs'
            )
        for value, pair in zip(node.outputs, pairs * len(node.outputs), strict=False):
            if value.name:
                found[value.name] = _range(pair)
    return found


def stated_weights(model: ir.Model) -> dict[str, Range]:
    """The ranges of weights the model states, by the name of the constant; axis 0 counts channels.

    Raises:
        RangesError: As for `stated_ranges`.
    """
    found: dict[str, Range] = {}
    for node in model.graph:
        pairs = _pairs(node.metadata_props, WEIGHTS, f'node "{node.name}"')
        weights = node.inputs[1] if len(node.inputs) > 1 else None
        if not pairs or weights is None or not weights.name:
            continue
        if len(pairs) == 1:
            found[weights.name] = _range(pairs[0])
        else:
            lows, highs = zip(*(_range(pair).pairs[0] for pair in pairs), strict=True)
            found[weights.name] = Range(lows, highs, 0)
    return found


def _pairs(metadata: Mapping[str, str], key: str, where: str) -> list[tuple[float, float]]:
    """One pair or a list of pairs, as a list."""
    if key not in metadata:
        return []
    try:
        content = json.loads(metadata[key])
        listed = content if isinstance(content[0], list) else [content]
        return [(float(low), float(high)) for low, high in listed]
    except (ValueError, TypeError, IndexError, KeyError):
        raise RangesError(
            f'{where}: {key} is "{metadata[key][:60]}", a pair [min, max] or a list of pairs is needed'
        ) from None


def _range(pair: tuple[float, float]) -> Range:
    return Range(min(pair[0], 0.0), max(pair[1], 0.0))
