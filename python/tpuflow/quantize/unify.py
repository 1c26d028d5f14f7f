"""Concatenations whose operands others read too: one range for all of them where theirs are close.

What nothing but a concatenation reads has its grid anyway (see `grids`). An operand with other readers keeps
its own, and is rescaled; where the scales differ by little (`unify_scales_for_concat_threshold`), giving
all of them the widest range costs less than the second rounding, and the concatenation copies codes.
Concatenations that share an operand, perhaps behind operators that only pass codes on, form one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpuflow.quantize.grids import CODES_PASS
from tpuflow.quantize.nodes import is_constant
from tpuflow.quantize.registry import VIEWS

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.quantize.grids import Grids
    from tpuflow.quantize.plan import Step
    from tpuflow.quantize.settings import Settings

__all__ = ["unified"]


def unified(
    steps: Sequence[Step], grids: Grids, settings: Settings
) -> Mapping[ir.Value, tuple[float, float]]:
    """The common range of every value that gets one; nothing where it is not asked for."""
    config = settings.defaults
    if not config.unify_scales_for_concat:
        return {}
    makers = {value: step for step in steps for node in step.nodes for value in node.outputs}
    groups: list[set[ir.Value]] = []
    for step in steps:
        if step.node.op_type != "Concat":
            continue
        operands = [value for value in step.node.inputs if value is not None and not is_constant(value)]
        members = {_origin(value, makers, config.unify_scales_for_concat_max_depth) for value in operands}
        members.add(step.output)
        apart = [group for group in groups if not group & members]
        groups = [*apart, members.union(*(group for group in groups if group & members))]
    found: dict[ir.Value, tuple[float, float]] = {}
    for group in groups:
        ranges = [grids.range_of(value) for value in group]
        own = {value: settings.of(_names(value, makers)) for value in group}
        scales = [grids.quant_of(value, own[value]).scale for value in group]
        # One grid for different types or modes is no question of their scales.
        kinds = {(each.dtype, each.activation_mode) for each in own.values()}
        if len(kinds) == 1 and max(scales) <= config.unify_scales_for_concat_threshold * min(scales):
            common = min(low for low, _ in ranges), max(high for _, high in ranges)
            found |= dict.fromkeys(group, common)
    return found


def _names(value: ir.Value, makers: Mapping[ir.Value, Step]) -> tuple[str, ...]:
    step = makers.get(value)
    return (value.name or "",) if step is None else step.names


def _origin(value: ir.Value, makers: Mapping[ir.Value, Step], depth: int) -> ir.Value:
    """The value whose codes another one has: what at most `depth` operators that pass codes on begin with."""
    for _ in range(depth):
        step = makers.get(value)
        if step is None or not (step.node.op_type in VIEWS or step.node.op_type in CODES_PASS):
            break
        first = step.node.inputs[0]
        if first is None or is_constant(first):
            break
        value = first
    return value
