"""Quantisation that the model itself states: QuantizeLinear and DequantizeLinear.

A value that is quantised and dequantised in the model is stored on the grid stated there: the producer writes
it directly where nothing else reads it, otherwise a `Rescale` converts. Codes the network takes or returns
are those of the model. Unsigned codes are stored as signed
ones with the zero point moved by half the range, which is the same grid.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuflow.lowering.grids import stated_grid
from tpuflow.lowering.registry import UnsupportedNodeError, lowers

if TYPE_CHECKING:
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step


@lowers("QuantizeLinear")
def quantize(context: Lowering, step: Step) -> None:
    """The operand's codes on the stated grid."""
    context.stored[step.output] = context.requantize(context.operand(step.node, 0), stated_grid(step.node))


@lowers("DequantizeLinear")
def dequantize(context: Lowering, step: Step) -> None:
    """The same codes, as the numbers they stand for here."""
    value = context.operand(step.node, 0)
    stored, grid = context.stored[value], stated_grid(step.node)
    if stored.grid.dtype != grid.dtype:
        raise UnsupportedNodeError("codes have another type than the operand is stored in")
    context.stored[step.output] = replace(stored, quant=grid)
    target = context.grids.target(step)
    if target.is_float:
        context.stored[step.output] = context.requantize(step.output, target)
