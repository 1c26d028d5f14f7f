"""Quantisation that the model itself states: QuantizeLinear and DequantizeLinear.

A value that is quantised and dequantised in the model is stored on the grid stated there: the producer writes
it directly where nothing else reads it, otherwise a `Rescale` converts. Unsigned codes are stored as signed
ones with the zero point moved by half the range, which is the same grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuflow.quantize.grids import stated_grid
from tpuflow.quantize.registry import UnsupportedNodeError, lowers

if TYPE_CHECKING:
    from tpuflow.quantize.lowering import Lowering
    from tpuflow.quantize.plan import Step


@lowers("QuantizeLinear")
def quantise(context: Lowering, step: Step) -> None:
    """The operand's codes on the stated grid."""
    value = context.operand(step.node, 0)
    if step.output.is_graph_output():
        raise UnsupportedNodeError("a network returns numbers: the codes must be dequantised")
    context.stored[step.output] = context.requantised(value, stated_grid(step.node))


@lowers("DequantizeLinear")
def dequantise(context: Lowering, step: Step) -> None:
    """The same codes, as numbers."""
    value = context.operand(step.node, 0)
    stored = context.stored[value]
    if value.producer() is None:
        raise UnsupportedNodeError("codes as network input: start the network behind this node")
    if stored.quant != stated_grid(step.node):
        raise UnsupportedNodeError("scale and zero point differ from those the operand was quantised with")
    context.stored[step.output] = stored
