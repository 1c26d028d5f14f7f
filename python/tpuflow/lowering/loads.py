"""What a byte of constants costs beside the array's time, as far as shapes of the model tell."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tpuflow.lowering.nodes import is_constant, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir

    from tpuflow.lowering.plan import Step

__all__ = ["bytes_worth_a_cycle"]

CHANNELS = 44
"""Bytes of constants that both channels of the external memory bring in a cycle, about."""
USUAL, BINDING = 16.0, 3.0
"""Bytes worth a cycle of the array: where it takes longer than the loads, and where these take longer."""


def bytes_worth_a_cycle(steps: Iterable[Step], side: int) -> float:
    """Bytes of constants that may be added for a cycle less of the array: few where loads take longer."""
    rows = 0
    weights: dict[ir.Value, int] = {}
    for step in steps:
        node = step.node
        constants = [value for value in node.inputs[:2] if value is not None and is_constant(value)]
        if node.op_type not in {"Conv", "MatMul"} or len(constants) != 1:
            continue
        shape, result = shape_of(constants[0]), shape_of(step.output)
        columns = shape[0] if node.op_type == "Conv" else shape[-1]
        terms = math.prod(shape) // max(columns, 1)
        rows += math.prod(result) // max(columns, 1) * math.ceil(terms / side) * math.ceil(columns / side)
        weights[constants[0]] = math.prod(shape)
    return BINDING if sum(weights.values()) / CHANNELS > rows else USUAL
