"""Floor, Ceil and Round: of 16 bits one exact rounding, of 8 bits a table.

A table of 16-bit codes has too few words for all the places where such a function jumps. On a grid of steps
of `2^-n` it is arithmetic: the multiplication by `2^-n` rounds to the nearest whole number, halves to even,
which is `Round`; and what is added first keeps everything in between from being nearer to another one.

    floor(q 2^-n) = round((2 q - (2^n - 1)) 2^-(n+1))        ceil: + instead of -
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.lowering.functions import NEAR
from tpuflow.lowering.operators import Op
from tpuflow.lowering.ops.unary import table
from tpuflow.lowering.plan import TO_WHOLE
from tpuflow.lowering.registry import lowers
from tpuflow.lowering.scheme import Quant

if TYPE_CHECKING:
    from tpuflow.lowering.layout import StoredValue
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step

TOWARDS = {"Floor": -1, "Ceil": 1, "Round": 0}


@lowers(*sorted(TO_WHOLE))
def to_whole(context: Lowering, step: Step) -> None:
    """A rounding where the grid of the operand allows it, else a table."""
    stored = context.whole_tensor(context.operand(step.node, 0))
    target = context.grids.target(step)
    halvings = _halvings(stored.grid)
    if halvings is None or target.is_float or step.shift:
        table(context, step)
        return
    whole = Quant("int16", 1.0, stored.grid.zero_point, stored.grid.lo, stored.grid.hi)
    op = _rounding(context, step, stored, halvings, whole)
    if whole.scale == target.scale and whole.dtype == target.dtype:
        context.emit(step, op, stored.shape, stored.view, whole)
        return
    numbers = context.hidden_layer(f"{step.output.name}/whole", op, stored.shape, whole)
    requant = context.requant([1.0 / target.scale], target, wide=True)
    op = Op.rescale(input=numbers, requant=requant.fields())
    context.emit(step, op, stored.shape, stored.view, target)


def _halvings(grid: Quant) -> int | None:
    """`n` of a 16-bit grid with a step of `2^-n`, at most 1; None of others."""
    if grid.dtype != "int16":
        return None
    exponent = round(math.log2(grid.scale))
    exact = abs(math.ldexp(grid.scale, -exponent) - 1) <= NEAR
    return -exponent if exact and -15 <= exponent <= 0 else None


def _rounding(context: Lowering, step: Step, stored: StoredValue, halvings: int, whole: Quant) -> Op:
    towards = TOWARDS[step.node.op_type]
    if not towards:
        requant = context.requant([2.0**-halvings], whole, wide=True)
        return Op.rescale(input=stored.tensor, requant=requant.fields())
    offset = np.full(1, towards * ((1 << halvings) - 1), np.int16)
    added = context.constant(f"{step.output.name}/offset", offset, Quant("int16", 1.0, 0, 0, 0))
    requant = context.requant([2.0 ** -(halvings + 1)], whole, wide=True)
    return Op.binary(kind="add", a=stored.tensor, b=added, ka=2, kb=1, requant=requant.fields())
