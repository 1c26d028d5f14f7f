"""Truth values computed at run time: comparisons of numbers, connectives of truths.

A truth value is an int8 code, 0 or 1, in networks of codes and of floats alike. Comparisons bring codes to a
common scale first, as other functions of two operands do; of truths, the smaller is their conjunction, the
larger their disjunction, and what equals 0 is the negation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.lowering.fixed_point import Requant
from tpuflow.lowering.grids import TRUTH
from tpuflow.lowering.layout import natural_order
from tpuflow.lowering.nodes import constant, is_constant, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.ops.elementwise import alignment, laid_out, placed_operands
from tpuflow.lowering.registry import UnsupportedNodeError, lowers
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.operators import FloatFields, RequantFields
    from tpuflow.lowering.plan import Step

KINDS = {"Less": "less", "LessOrEqual": "less_or_equal", "Equal": "equal"}
AS_IT_IS = Requant((1,), (0,), 0, 0, 1).fields()
"""Results that are 0 or 1 already."""


@lowers(*KINDS)
def comparison(context: Lowering, step: Step) -> None:
    """1 where it holds, else 0."""
    a, b, shape, view = placed_operands(context, step, slack=0.5)
    ka = kb = 1
    requant: RequantFields | FloatFields = {"float": {}}
    if not a.grid.is_float:
        ka, kb, _ = alignment(a.grid.scale, b.grid.scale, 1.0)
        requant = AS_IT_IS
    kind = KINDS[step.node.op_type]
    op = Op.binary(kind=kind, a=a.tensor, b=b.tensor, ka=ka, kb=kb, requant=requant)
    context.emit(step, op, shape, view, TRUTH)


@lowers("And", "Or")
def connective(context: Lowering, step: Step) -> None:
    """The smaller or larger of two truths; a constant one decides or changes nothing, element by element."""
    node, out = step.node, shape_of(step.output)
    computed = [value for value in node.inputs if value is not None and not is_constant(value)]
    if not computed:
        raise UnsupportedNodeError("all operands are constant")
    order = natural_order(context.stored[computed[0]].view.expand(out))
    shape = tuple(out[axis] for axis in order)
    view = View.dense(out, order)
    operands = []
    for value in node.inputs:
        if value is None:
            raise UnsupportedNodeError("an operand is left out")
        array = constant(value)
        operands.append(
            context.truths(value, order, out)
            if array is None
            else context.constant(
                value.name or "truth", laid_out(array.astype(np.float64), shape, view).astype(np.int8), TRUTH
            )
        )
    op = Op.binary(
        kind="min" if node.op_type == "And" else "max",
        a=operands[0],
        b=operands[1],
        ka=1,
        kb=1,
        requant=AS_IT_IS,
    )
    context.emit(step, op, shape, view, TRUTH)


@lowers("Not")
def negation(context: Lowering, step: Step) -> None:
    """1 where the operand is 0."""
    stored = context.whole_tensor(context.operand(step.node, 0))
    zero = context.constant(f"{step.output.name}/zero", np.zeros(1, np.int8), TRUTH)
    op = Op.binary(kind="equal", a=stored.tensor, b=zero, ka=1, kb=1, requant=AS_IT_IS)
    context.emit(step, op, stored.shape, stored.view, TRUTH)
