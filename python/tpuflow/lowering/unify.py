"""Concatenations whose operands others read too: one range for all of them where theirs are close.

What nothing but a concatenation reads has its grid anyway (see `grids`). An operand with other readers keeps
its own, and is rescaled; where the scales differ by little (`unify_scales_for_concat_threshold`), giving
all of them the widest range costs less than the second rounding, and the concatenation copies codes.
Concatenations that share an operand, perhaps behind operators that only pass codes on, form one group.
Operands of other operators may be given one grid as well, by rules with a method each (`config.unify`).

What an input holds of earlier runs and what the network adds to it always share a grid (`cache_ranges`): rows
of a cache are read as they were written. What the steps of a recurrence compute alike shares one too
(`recurrence_ranges`): then the constants of a step are those of all, stored and loaded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.calibration import Means
from tpuflow.config import UnifyRule
from tpuflow.frontend.rewrites.recurrent import RECURRENCE
from tpuflow.frontend.values import state_output
from tpuflow.lowering import scheme
from tpuflow.lowering.grids import CODES_PASS, grid_of
from tpuflow.lowering.nodes import is_constant, shape_of
from tpuflow.lowering.registry import VIEWS

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.config import QuantizeConfig
    from tpuflow.lowering.grids import Grids
    from tpuflow.lowering.plan import Step
    from tpuflow.lowering.settings import Settings

__all__ = ["cache_ranges", "means_over_steps", "recurrence_ranges", "recurrent_values", "unified_ranges"]


@dataclass
class _Group:
    """Values that are to share a grid.

    Attributes:
        values: Of operands, as far up as their codes come from, and the results of concatenations.
        rule: That of the last operator that joined them.
        step: That operator.
    """

    values: set[ir.Value]
    rule: UnifyRule
    step: Step


def cache_ranges(steps: Sequence[Step], grids: Grids) -> Mapping[ir.Value, tuple[float, float]]:
    """The common range of every cache: of an input, what it is joined with, and both."""
    makers = {value: step for step in steps for node in step.nodes for value in node.outputs}
    found: dict[ir.Value, tuple[float, float]] = {}
    for step in steps:
        values = [*_operands(step), step.output]
        inputs = [value for value in values if value.is_graph_input()]
        kept = any(state_output(value) is not None for value in inputs)
        returned = kept or any(value.is_graph_output() for value in values)
        if (
            step.node.op_type != "Concat"
            or not inputs
            or not returned
            or scheme.is_float(grids.dtype_of(step))
        ):
            continue
        ranges = [grids.range_of(value) for value in values]
        common = min(low for low, _ in ranges), max(high for _, high in ranges)
        found |= dict.fromkeys(values, common)
        if kept:
            # New rows are appended as they are, so what they are made of has their codes already.
            found |= dict.fromkeys([_origin(value, makers, 0) for value in values], common)
    return found


def recurrent_values(steps: Sequence[Step]) -> list[list[ir.Value]]:
    """Values that the steps of a recurrence compute alike, a list for each such result of a step.

    What only passes codes on has those of its operand and is left out.
    """
    alike: dict[str, list[ir.Value]] = {}
    for step in steps:
        maker = step.output.producer()
        mark = None if maker is None else maker.metadata_props.get(RECURRENCE)
        if mark is not None and step.node.op_type not in VIEWS and step.node.op_type not in CODES_PASS:
            alike.setdefault(mark, []).append(step.output)
    return list(alike.values())


def means_over_steps(known: Mapping[str, Means], alike: Sequence[Sequence[ir.Value]]) -> Mapping[str, Means]:
    """Means by value's name, where what is computed alike has the mean of all of theirs."""
    found = dict(known)
    for values in alike:
        names = [value.name or "" for value in values]
        means = {name: known[name] for name in names if name in known}
        if len({(each.axis, len(each.values)) for each in means.values()}) == 1:
            axis = next(iter(means.values())).axis
            common = np.mean([each.values for each in means.values()], axis=0)
            found |= dict.fromkeys(means, Means(axis, tuple(common.tolist())))
    return found


def recurrence_ranges(
    steps: Sequence[Step], alike: Sequence[Sequence[ir.Value]], grids: Grids
) -> Mapping[ir.Value, tuple[float, float]]:
    """The common range of what the steps of a recurrence compute alike."""
    makers = {value: step for step in steps for node in step.nodes for value in node.outputs}
    found: dict[ir.Value, tuple[float, float]] = {}
    for values in alike:
        codes = [value for value in values if not scheme.is_float(grids.dtype_of(makers[value]))]
        if codes:
            lows, highs = zip(*map(grids.range_of, codes), strict=True)
            found |= dict.fromkeys(codes, (min(lows), max(highs)))
    # What is put together from the steps takes their codes as they are.
    for step in steps if found else ():
        if step.node.op_type != "Concat":
            continue
        origins = {_origin(value, makers, 0) for value in _operands(step)}
        common = {found.get(value) for value in origins}
        if len(origins) > 1 and len(common) == 1 and None not in common:
            found[step.output] = found[origins.pop()]
    return found


def unified_ranges(
    steps: Sequence[Step], grids: Grids, settings: Settings
) -> Mapping[ir.Value, tuple[float, float]]:
    """The common range of every value that gets one; nothing where it is not asked for."""
    makers = {value: step for step in steps for node in step.nodes for value in node.outputs}
    found: dict[ir.Value, tuple[float, float]] = {}
    for group in _groups(steps, settings, makers):
        own = {value: settings.of(_names(value, makers)) for value in group.values}
        scales = [grids.quant_of(value, own[value]).scale for value in group.values]
        # One grid for different types or modes is no question of their scales.
        kinds = {(each.dtype, each.activation_mode) for each in own.values()}
        if len(kinds) == 1 and max(scales) <= group.rule.threshold * min(scales):
            some = next(iter(own.values()))
            found |= dict.fromkeys(group.values, _common(group, grids, scales, some))
    return found


def _groups(steps: Sequence[Step], settings: Settings, makers: Mapping[ir.Value, Step]) -> list[_Group]:
    """Groups of values under a rule; operators that share a value are in one."""
    config = settings.defaults
    rules = list(config.unify_rules)
    if config.unify_scales_for_concat:
        depth, threshold = config.unify_scales_for_concat_max_depth, config.unify_scales_for_concat_threshold
        rules.append(UnifyRule("Concat", depth, threshold, "min"))
    groups: list[_Group] = []
    for step in steps if rules else ():
        operands = _operands(step)
        rule = next((each for each in rules if each.fits(step.node.op_type)), None)
        if rule is None or (len(operands) < 2 and step.node.op_type != "Concat"):
            continue
        settings.met.add(rule)
        if rule.method == "skip":
            continue
        members = {_origin(value, makers, rule.depth) for value in operands}
        if step.node.op_type == "Concat":
            members.add(step.output)
        met = [group for group in groups if group.values & members]
        groups = [group for group in groups if not group.values & members]
        groups.append(_Group(members.union(*(group.values for group in met)), rule, step))
    return groups


def _common(
    group: _Group, grids: Grids, scales: Sequence[float], config: QuantizeConfig
) -> tuple[float, float]:
    """The range of a group, by its rule."""
    operands = _operands(group.step)
    if group.rule.method in {"out", "first", "largest"}:
        by_size = sorted(operands, key=lambda value: -math.prod(shape_of(value)))
        named = {"out": group.step.output, "first": operands[0], "largest": by_size[0]}
        return grids.range_of(named[group.rule.method])
    ranges = [grids.range_of(value) for value in group.values]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if group.rule.method == "min":
        return low, high
    # Codes per unit are one over the step.
    codes = [1 / scale for scale in scales]
    wanted = max(codes) if group.rule.method == "max" else sum(codes) / len(codes)
    narrower = 1 / (wanted * grid_of(low, high, config).scale)
    return low * narrower, high * narrower


def _operands(step: Step) -> list[ir.Value]:
    return [value for value in step.node.inputs if value is not None and not is_constant(value)]


def _names(value: ir.Value, makers: Mapping[ir.Value, Step]) -> tuple[str, ...]:
    step = makers.get(value)
    return (value.name or "",) if step is None else step.names


def _origin(value: ir.Value, makers: Mapping[ir.Value, Step], depth: int) -> ir.Value:
    """The value whose codes another one has: what at most `depth` operators that pass codes on begin with.

    A depth of 0 stands for any number.
    """
    for _ in range(depth or len(makers)):
        step = makers.get(value)
        if step is None or not (step.node.op_type in VIEWS or step.node.op_type in CODES_PASS):
            break
        first = step.node.inputs[0]
        if first is None or is_constant(first):
            break
        value = first
    return value
