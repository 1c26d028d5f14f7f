"""Functions of one variable: clamps, slopes and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tpuflow.lowering.fixed_point import approximate
from tpuflow.lowering.functions import FUNCTIONS, gate
from tpuflow.lowering.grids import grid_of
from tpuflow.lowering.nodes import attribute, float_constant, is_constant, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.plan import GATED, TO_WHOLE
from tpuflow.lowering.registry import UnsupportedNodeError, lowers
from tpuflow.lowering.tables import SampledFunction

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.lowering.layout import StoredValue
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step
    from tpuflow.lowering.scheme import Quant

Array = npt.NDArray[np.float64]

SLOPED = frozenset({"LeakyRelu", "PRelu"})


@lowers("Relu", "Clip")
def lower_clamp(context: Lowering, step: Step) -> None:
    """A change of scale whose clamp is the function."""
    stored = context.whole_tensor(context.operand(step.node, 0))
    target = context.grids.target(step)
    requant = context.rounding(
        [stored.grid.scale / target.scale], target, step.node, wide=stored.grid.dtype == "int16"
    )
    op = Op.rescale(input=stored.tensor, requant=requant)
    context.emit(step, op, stored.shape, stored.view, target)


@lowers("LeakyRelu", "PRelu")
def lower_leaky_relu(context: Lowering, step: Step) -> None:
    """One factor for positive, one (per channel) for negative numbers."""
    node = step.node
    value = context.operand(node, 0)
    if node.op_type == "LeakyRelu":
        stored, slopes = context.whole_tensor(value), np.array([attribute(node, "alpha", 0.01)], np.float64)
    else:
        stored, slopes = _slopes(context, value, float_constant(node.inputs[1]))
    target = context.grids.target(step)
    if target.is_float:
        negative = [float(np.float32(slope)) for slope in slopes]
        op = Op.p_relu(input=stored.tensor, slopes={"float": {"negative": negative}})
        context.emit(step, op, stored.shape, stored.view, target)
        return
    wide = stored.grid.dtype == "int16"
    factor = stored.grid.scale / target.scale
    bits = context.rules.multiplier_bits
    pairs = [approximate(abs(float(s)) * factor, bits, 47 if wide else 31) if s else (0, 0) for s in slopes]
    op = Op.p_relu(
        input=stored.tensor,
        slopes={
            "positive": context.requant([factor], target, wide=wide).fields(),
            "negative_multiplier": [
                int(m if s >= 0 else -m) for (m, _), s in zip(pairs, slopes, strict=True)
            ],
            "negative_shift": [n for _, n in pairs],
        },
    )
    context.emit(step, op, stored.shape, stored.view, target)


def _slopes(context: Lowering, value: ir.Value, slope: Array | None) -> tuple[StoredValue, Array]:
    """The operand with the axis along which slopes differ last, and its slopes."""
    if slope is None:
        raise UnsupportedNodeError("slopes must be constant", "slope")
    if np.all(slope == slope.ravel()[0]):
        return context.whole_tensor(value), slope.ravel()[:1]
    rank = len(shape_of(value))
    extents = (1,) * (rank - slope.ndim) + slope.shape
    axes = [axis for axis, extent in enumerate(extents) if extent > 1]
    if len(axes) != 1:
        raise UnsupportedNodeError("slopes must differ along one axis only", "slope")
    return context.rows(value, axes[0]), slope.ravel()


@lowers(*(name for name in FUNCTIONS if name not in SLOPED | TO_WHOLE))
def table(context: Lowering, step: Step) -> None:
    """Any other function: a table over the operand's codes."""
    node = step.node
    if node.op_type == "Pow":
        exponent = node.inputs[1]
        if not is_constant(exponent) or exponent is None or exponent.const_value is None:
            raise UnsupportedNodeError("exponent must be constant")
        if exponent.const_value.size != 1:
            raise UnsupportedNodeError("exponent must be one number")
    stored = context.whole_tensor(context.operand(node, 0))
    target = context.grids.target(step)
    apart = context.settings.defaults.swish_layer_mode == "product"
    if node.op_type in GATED and apart and not target.is_float:
        _product(context, step, stored, target)
        return
    op = Op.unary(input=stored.tensor, function=context.function(step, node, stored.grid, target))
    context.emit(step, op, stored.shape, stored.view, target)


def _product(context: Lowering, step: Step, stored: StoredValue, target: Quant) -> None:
    """A gated function as it is written: the gate by a table, then its product with the operand."""
    between = grid_of(0.0, 1.0, context.config(step).model_copy(update={"dtype": stored.grid.dtype}))
    entries = context.table(step, SampledFunction(gate(step.node), stored.grid, between))
    name = f"{step.output.name}/gate"
    op = Op.unary(input=stored.tensor, function=entries)
    factor = context.hidden_layer(name, op, stored.shape, between, [step.node.name or ""])
    wide = stored.grid.dtype == "int16"
    requant = context.rounding([stored.grid.scale * between.scale / target.scale], target, wide=wide)
    op = Op.binary(kind="mul", a=stored.tensor, b=factor, ka=1, kb=1, requant=requant)  # fmt: skip
    context.emit(step, op, stored.shape, stored.view, target)
