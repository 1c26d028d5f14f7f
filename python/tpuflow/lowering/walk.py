"""The walk over a normalised float model, step by step, and what it does around the lowering of each.

Inputs come first, then the steps of the plan in the model's order, then outputs. A step whose operands could
not be made is passed over: what is wrong before it is already listed, and all that is wrong is told at once.
Operators that only regroup, permute, cut or repeat elements change the view of a stored value and emit
nothing; the others are lowered by the function the registry has for them, with operands in the kind of
numbers, codes or floats, that the step computes in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import onnx_ir as ir

from tpuflow.errors import Finding, UnsupportedModelError
from tpuflow.lowering import scheme
from tpuflow.lowering.fixed_point import FactorError
from tpuflow.lowering.grids import CODES_PASS
from tpuflow.lowering.nodes import is_constant, operator, shape_of
from tpuflow.lowering.ports import Ports
from tpuflow.lowering.registry import LOWERINGS, VIEWS, UnsupportedNodeError

if TYPE_CHECKING:
    from tpuflow.lowering.lowering import Graph, Lowering
    from tpuflow.lowering.plan import Step

__all__ = ["walk"]

BOOL = ir.DataType.BOOL
LARGEST = 1 << 30
"""Elements of a tensor that a graph may hold; none of its steps then leaves 32 bits."""

CONVERTS = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear"})
"""Operators that go from one kind of element to another by themselves."""


def walk(context: Lowering, *, whole: bool = True) -> Graph:
    """Lowers the model; not `whole` if it is a part, in which entries may lack what they are for.

    Raises:
        UnsupportedModelError: Listing every node that cannot be lowered.
        QuantizeError: If a range is missing or useless.
        ConfigError: If an entry of the configuration fits nothing or has no effect.
    """
    values = [value.name for value in context.graph.inputs if value.name]
    context.settings.check_matches([*values, *(name for step in context.steps for name in step.names)])
    elsewhere = list(_floats_elsewhere(context))
    if elsewhere:
        raise UnsupportedModelError(context.graph.name or "model", elsewhere)
    findings: list[Finding] = []
    ports = Ports(context)
    for value in context.graph.inputs:
        try:
            ports.add_input(value)
        except UnsupportedNodeError as error:
            findings.append(Finding(value.name or "", "input", error.attribute, error.reason))
    for step in context.steps:
        _lower(context, step, findings)
        context.step = None
        for value in (value for node in step.nodes for value in node.outputs):
            ports.write_rows(value)
    if findings:
        raise UnsupportedModelError(context.graph.name or "model", findings)
    for value in context.graph.outputs:
        try:
            ports.add_output(value)
        except UnsupportedNodeError as error:
            findings.append(Finding(value.name or "", "output", error.attribute, error.reason))
    if findings:
        raise UnsupportedModelError(context.graph.name or "model", findings)
    ports.declare_states()
    if whole:
        context.settings.check_effects()
    return context.builder.finish()


def _floats_elsewhere(context: Lowering) -> Iterator[Finding]:
    """Nodes an entry wants in floats the target does not have: the host has them."""
    target = context.settings.target
    for step in context.steps:
        dtype = context.settings.explicit(step.names, "dtype")
        if dtype is None or not scheme.is_float(dtype) or target.allows(step.node.op_type, dtype):
            continue
        reason = f'{dtype} asked for, which target "{target.name}" lacks: the CPU of the host has it'
        for node in step.nodes:
            yield Finding(node.name or "", operator(node), None, reason)


def _lower(context: Lowering, step: Step, findings: list[Finding]) -> None:
    node = step.node
    reads = [value for member in step.nodes for value in member.inputs]
    made = {value for member in step.nodes for value in member.outputs}
    outside = [value for value in reads if value is not None and value not in made and not is_constant(value)]
    if any(value not in context.stored for value in outside):
        return  # An earlier node could not be lowered and is already listed.
    context.step = step
    try:
        if math.prod(shape_of(step.output)) > LARGEST:
            raise UnsupportedNodeError(f"its output has the shape {list(shape_of(step.output))}: too large")
        if node.op_type in VIEWS and not (node.op_type in LOWERINGS and len(outside) > 1):
            _view(context, step)
        elif node.op_type in LOWERINGS:
            with _of_one_kind(context, step, outside):
                LOWERINGS[node.op_type](context, step)
            if node.op_type in CODES_PASS:
                context.convert_output(step)
        else:
            raise UnsupportedNodeError("operator cannot be quantised")
    except UnsupportedNodeError as error:
        findings.append(Finding(node.name or "", operator(node), error.attribute, error.reason))
    except FactorError as error:
        findings.append(Finding(node.name or "", operator(node), None, str(error)))


@contextmanager
def _of_one_kind(context: Lowering, step: Step, operands: Sequence[ir.Value]) -> Iterator[None]:
    """While a step is lowered, floats stand in for codes, or codes for floats, as it computes in them."""
    passes = step.node.op_type in CODES_PASS or step.node.op_type in CONVERTS
    dtype = context.grids.dtype_of(step)
    found = {value: context.stored[value] for value in operands}
    for value, stored in found.items():
        if passes or stored.quant is None or stored.grid.dtype == dtype or value.dtype == BOOL:
            continue
        if scheme.is_float(dtype):
            context.stored[value] = context.requantize(value, scheme.floating(dtype))
        elif stored.grid.is_float:
            config = context.settings.of(step.names).model_copy(update={"dtype": dtype})
            context.stored[value] = context.requantize(
                value, context.grids.own_quant(step.names, value, config)
            )
    yield
    context.stored.update(found)


def _view(context: Lowering, step: Step) -> None:
    node, value = step.node, context.operand(step.node, 0)
    source = context.stored[value]
    view = VIEWS[node.op_type](node, source.view)
    if view is None:
        source = context.rearrange(value)
        view = VIEWS[node.op_type](node, source.view)
        if view is None:
            raise UnsupportedNodeError("elements cannot be addressed in steps")
    context.alias(step, view, source)
