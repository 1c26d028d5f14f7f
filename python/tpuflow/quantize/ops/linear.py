"""Convolutions and matrix products: exact sums, one requantisation per output channel.

The scale of the sum is that of the input times that of the channel's weights; the bias is stored at that
scale. A channel's weight scale is never so small that its bias would not fit, or that its factor to the
output would need more fraction bits than the machine has; a channel without weights gets the smallest scale
that satisfies both. Where the averages of a layer's operand are known, its bias takes back what the rounding
of weights adds on average (bias correction: Nagel et al., "Data-free quantization through weight equalization
and bias correction", 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from tpuflow.config import ConfigError
from tpuflow.errors import RangesError
from tpuflow.frontend.values import steps_of
from tpuflow.quantize import scheme
from tpuflow.quantize.blocks import in_blocks
from tpuflow.quantize.layout import Stored
from tpuflow.quantize.nodes import attribute, constant, float_constant, given, is_constant, shape_of
from tpuflow.quantize.plan import CLAMPS
from tpuflow.quantize.registry import UnsupportedNodeError, lowers
from tpuflow.quantize.scheme import Quant
from tpuflow.quantize.settings import BIASES, FLOAT_WEIGHTS, SCALE, WEIGHTS, WIDE_SUMS
from tpuflow.quantize.view import View
from tpuflow.quantize.weight_reach import weight_reach

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.config import QuantizeConfig
    from tpuflow.quantize.lowering import Lowering
    from tpuflow.quantize.plan import Step

Array = npt.NDArray[np.float64]
Weights = npt.NDArray[np.floating[Any]]
Codes = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Linear:
    """Constants and epilogue of a linear operator, as the graph takes them."""

    weights: int
    bias: int
    epilogue: dict[str, Any]
    target: Quant


def epilogue(context: Lowering, step: Step, factors: Array, target: Quant, *, wide: bool) -> dict[str, Any]:
    """Requantisation of sums of scale `factors` (one or per channel), to the output or through a table."""
    activation = step.activation
    if activation is None or activation.op_type in CLAMPS:
        rounding = context.rounding(list(factors / target.scale), target, activation, wide=wide)
        return rounding if target.is_float else {"requant": rounding}
    if target.is_float:
        return context.function(step, activation, target, target)
    middle = context.grids.intermediate(step)
    requant = context.requant(list(factors / middle.scale), middle, wide=wide)
    table = context.function(step, activation, middle, target)
    return {"requant": requant.fields(), "table": table}


def linear(
    context: Lowering,
    step: Step,
    stored: Stored,
    weights: Weights,
    axis: int,
    bias: Array,
    name: str,
    arrange: Callable[[Codes], Codes] = lambda codes: codes,
    *,
    stated: Array | None = None,
    mean: Array | None = None,
) -> Linear:
    """Quantises weights (output channels along `axis`) and bias (one per channel) of a step.

    `arrange` puts the codes, which are smaller than the weights, in the order the operator takes. Where the
    model states the weights as integers, `stated` holds their scales, one per channel, and they are kept.
    `mean`, which broadcasts to the weights, is the average of what each of them is multiplied with: biases
    take back what the rounding of weights adds on average.
    """
    config = context.config(step)
    target = context.grids.target(step)
    if target.is_float:
        shown = stored.grid.codes(_of_codes(context, step, weights, axis, config))
        return Linear(
            context.constant(name, arrange(shown), stored.grid),
            context.constant(f"{step.output.name}/bias", bias.astype(np.float32)),
            epilogue(context, step, np.ones(1), target, wide=False),
            target,
        )
    context.settings.honours(step.names, WEIGHTS, BIASES, SCALE)
    error = context.error(step.output, 1 if step.node.op_type == "Conv" else -1)
    if error is not None and config.bias_correction:
        bias = bias - error
    dtype: scheme.DType = (
        config.dtype if config.weight_bits is None else "int8" if config.weight_bits <= 8 else "int16"
    )
    wide = "int16" in {dtype, stored.grid.dtype}
    fused = step.activation is not None and step.activation.op_type not in CLAMPS
    end = context.grids.intermediate(step) if fused else target

    bias_bits = _bias_bits(context, step, wide=wide)
    largest = float(1 << (bias_bits - 1)) - 1.0
    fraction = math.ldexp(end.scale, (15 if wide else 14) - (47 if wide else 31))
    floor = np.maximum(np.abs(bias) / (largest / 2), fraction) / stored.grid.scale
    per_channel = config.per_channel or stated is not None
    zero = 0
    if config.weight_mode == "asymmetric" and stated is None:
        _check_asymmetric(step, config)
        codes, scales, zero = scheme.asymmetric_weights(
            weights, dtype, float(floor.max()), width=config.weight_bits, power_of_two=config.power_of_two
        )
    else:
        codes, scales = scheme.weights(
            weights,
            axis if per_channel else None,
            dtype,
            config.weight_mode,
            floor if per_channel else floor.max(),
            stated,
            width=config.weight_bits,
            power_of_two=config.power_of_two,
            reach=_reach(context, step, weights, axis if per_channel else None, config),
        )
    if mean is not None and config.bias_correction:
        about = codes if zero == 0 else codes.astype(np.int32) - zero
        bias = bias - scheme.mean_error(weights, about, scales, axis, mean)
    sums = stored.grid.scale * scales
    biases = scheme.codes(bias, sums, 0, -int(largest) - 1, int(largest), "int64" if wide else "int32")
    if config.bias_effective_bits is not None:
        biases = high_bits(biases, config.bias_effective_bits)
    kept = context.weights(name, arrange(codes), list(scales), zero)
    before = _bits_before_bias(context, step, sums, end.scale) if wide else None
    if before is not None:
        limits = np.iinfo(np.int32)
        biases = np.clip(biases >> before, limits.min, limits.max)
    return Linear(
        kept,
        context.constant(f"{step.output.name}/bias", biases),
        _twice_rounded(epilogue(context, step, sums, target, wide=wide), before),
        target,
    )


def _of_codes(context: Lowering, step: Step, weights: Weights, axis: int, config: QuantizeConfig) -> Weights:
    """Weights of a layer in floats: as they are, or what their codes stand for.

    Raises:
        ConfigError: The layer asks for another calibration strategy than the extrema.
    """
    if not config.weight_only:
        return weights
    context.settings.honours(step.names, WEIGHTS, SCALE, FLOAT_WEIGHTS)
    if config.weight_strategy != "extrema":
        raise ConfigError(f'"{step.names[0]}": weight_only needs weight_strategy = extrema')
    # Kernels have their channels in front; matrices have them last, each sum along the axis before.
    moved = weights if axis == 0 else np.swapaxes(weights, -1, -2)
    whole = (weights.shape[0], -1) if axis == 0 else (-1, moved.shape[-1])
    rows = moved.reshape(whole if config.per_channel or config.per_block else (1, -1))
    size = config.weight_block_size if config.per_block else None
    made = in_blocks(
        rows, config.weight_mode, config.weight_bits or 8, size, power_of_two=config.power_of_two
    )
    shown = made.floats().reshape(moved.shape)
    return shown if axis == 0 else np.swapaxes(shown, -1, -2)


def _bits_before_bias(context: Lowering, step: Step, sums: Array, scale: float) -> int | None:
    """By how many bits sums of scale `sums` are rounded before their biases, if `remain_shift` asks for it.

    The requantisation to `scale` keeps as many bits of its shift as that says.

    Raises:
        ConfigError: Channels have shifts of their own.
    """
    remain = context.config(step).remain_shift
    context.settings.honours(step.names, WIDE_SUMS)
    if remain is None:
        return None
    shifts = set(context.requant(list(sums / scale), context.grids.target(step), wide=True).shift)
    if len(shifts) > 1:
        raise ConfigError(
            f'"{step.names[0]}": remain_shift needs one shift for all channels: '
            "set unify_shifts = true or per_channel = false"
        )
    return max(0, shifts.pop() - remain)


def _twice_rounded(finish: dict[str, Any], before: int | None) -> dict[str, Any]:
    """An epilogue with so many bits of its shift before the biases."""
    if before is None:
        return finish
    requant = finish["requant"]
    left = requant | {"shift": [shift - before for shift in requant["shift"]]}
    return {"first_shift": before, **finish, "requant": left}


def _reach(
    context: Lowering, step: Step, weights: Weights, axis: int | None, config: QuantizeConfig
) -> Array | None:
    """How far the grids of a step's weights reach; None for the largest ones.

    Raises:
        RangesError: The model should state it and does not.
    """
    value = given(step.node, 1)
    try:
        return weight_reach(weights, axis, config, context.grids.stated(value))
    except RangesError as error:
        raise RangesError(f'layer "{step.names[0]}": {error}') from None


def _check_asymmetric(step: Step, config: QuantizeConfig) -> None:
    """What entries of single layers may combine, the whole configuration never does.

    Raises:
        ConfigError: The layer's weights cannot be asymmetric.
    """
    if config.per_channel or config.weight_strategy != "extrema":
        reason = "per_channel = false" if config.per_channel else "weight_strategy = extrema"
        raise ConfigError(f'layers: "{step.names[0]}": asymmetric weights need {reason}')


def _bias_bits(context: Lowering, step: Step, *, wide: bool) -> int:
    """Width of a layer's biases.

    Raises:
        ConfigError: An entry for this layer asks for more than 8-bit operands allow, unless it is lenient.
    """
    wanted = context.config(step).bias_bits
    if wide:
        return wanted or 48
    if (context.settings.stated(step.names, "bias_bits") or 0) > 32:
        context.settings.refuse(
            f'layers: "{step.names[0]}" has 8-bit operands: its bias holds at most 32 bits, not {wanted}'
        )
    return min(wanted or 32, 32)


def high_bits(biases: Codes, bits: int) -> Codes:
    """Biases without the low bits by which the widest of them exceeds `bits` bits, cut towards -inf."""
    low, high = min(-1, int(biases.min(initial=0))), max(1, int(biases.max(initial=0)))
    cut = 0
    while low < -1 << (bits - 1 + cut) or high > ((1 << (bits - 1)) - 1) << cut:
        cut += 1
    return (biases >> cut) << cut


def _weights(value: ir.Value | None) -> Weights | None:
    """A constant in its own precision: weights are large, and only read once."""
    array = constant(value)
    if array is None:
        return None
    if not np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float64)
    if not np.all(np.isfinite(array)):
        raise UnsupportedNodeError("weights are not finite")
    return cast("Weights", array)


def _stated(value: ir.Value | None, axis: int) -> Array | None:
    """The scales of weights the model states as 8-bit integers, channels along `axis`; None for others."""
    weights, steps = constant(value), steps_of(value)
    return None if weights is None or steps is None else scheme.stated_steps(weights, steps, axis)


def _constants(step: Step, channels: int) -> tuple[Weights, Array]:
    node = step.node
    weights = _weights(node.inputs[1])
    if weights is None:
        raise UnsupportedNodeError("weights must be constant", "W")
    if weights.ndim != 4:
        raise UnsupportedNodeError(f"weights of shape {list(weights.shape)} are not two-dimensional", "W")
    bias = float_constant(given(node, 2))
    if bias is None and given(node, 2) is not None:
        raise UnsupportedNodeError("bias must be constant", "B")
    return weights, np.zeros(channels) if bias is None else bias


def _window(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], pads: Sequence[int]
) -> dict[str, Any]:
    return {"kernel": list(kernel), "stride": list(stride), "dilation": list(dilation), "pads": list(pads)}


@lowers("Conv")
def convolution(context: Lowering, step: Step) -> None:
    """2-D convolution of any stride, dilation, padding and grouping."""
    node = step.node
    n, channels, height, width = shape_of(step.output)
    weights, bias = _constants(step, channels)
    stored = context.images(context.operand(node, 0))
    if attribute(node, "auto_pad", "NOTSET") not in {"NOTSET", ""}:
        raise UnsupportedNodeError("padding must be explicit", "auto_pad")
    kernel = weights.transpose(0, 2, 3, 1)
    stated = _stated(node.inputs[1], 0)
    mean = context.mean(context.operand(node, 0), 1)
    if mean is not None:  # [o, 1, 1, c / groups], as the channels of a group meet its kernels
        groups = attribute(node, "group", 1)
        mean = np.repeat(mean.reshape(groups, -1), channels // groups, axis=0)[:, np.newaxis, np.newaxis]
    constants = linear(context, step, stored, kernel, 0, bias, _weight_name(step), stated=stated, mean=mean)
    op = {
        "op": "conv",
        "input": stored.tensor,
        "weights": constants.weights,
        "bias": constants.bias,
        "window": _window(
            weights.shape[2:],
            attribute(node, "strides", (1, 1)),
            attribute(node, "dilations", (1, 1)),
            attribute(node, "pads", (0, 0, 0, 0)),
        ),
        "groups": attribute(node, "group", 1),
        "epilogue": constants.epilogue,
    }
    view = View.dense((n, channels, height, width), (0, 2, 3, 1))
    context.emit(step, op, (n, height, width, channels), view, constants.target)


@lowers("ConvTranspose")
def transposed_convolution(context: Lowering, step: Step) -> None:
    """Zeros between the operand's cells, then a convolution with the weights turned round."""
    node = step.node
    n, channels, height, width = shape_of(step.output)
    weights, bias = _constants(step, channels)
    groups = attribute(node, "group", 1)
    stride, dilation = attribute(node, "strides", (1, 1)), attribute(node, "dilations", (1, 1))
    pads, extra = attribute(node, "pads", (0, 0, 0, 0)), attribute(node, "output_padding", (0, 0))
    # ONNX holds [in, out / groups, kh, kw]; a convolution [out, kh, kw, in / groups], taps in reverse.
    size_in, per_group, kh, kw = weights.shape
    grouped = weights.reshape(groups, size_in // groups, per_group, kh, kw)[..., ::-1, ::-1]
    turned = grouped.transpose(0, 2, 3, 4, 1).reshape(channels, kh, kw, size_in // groups)

    value = context.operand(node, 0)
    stored = context.images(value)
    if max(stride) > 1:
        batch, rows, columns, depth = stored.shape
        spread = (batch, (rows - 1) * stride[0] + 1, (columns - 1) * stride[1] + 1, depth)
        op: dict[str, Any] = {"op": "insert_zeros", "input": stored.tensor, "stride": list(stride)}
        name = f"{step.output.name}/zeros"
        tensor = context.hidden_layer(name, op, spread, stored.grid, [node.name or ""])
        view = View.dense((batch, depth, *spread[1:3]), (0, 2, 3, 1))
        stored = Stored(tensor, spread, view, stored.quant)
    reach = [dilation[axis] * (kernel - 1) for axis, kernel in enumerate((kh, kw))]
    padded = [
        reach[0] - pads[0],
        reach[1] - pads[1],
        reach[0] - pads[2] + extra[0],
        reach[1] - pads[3] + extra[1],
    ]
    stored = _cropped(context, step, stored, [max(0, -amount) for amount in padded])
    stated = _stated(node.inputs[1], 1)
    if stated is not None:  # one scale per channel of a group, the same in all groups
        stated = np.tile(stated, groups)
    constants = linear(context, step, stored, turned, 0, bias, _weight_name(step), stated=stated)
    op = {
        "op": "conv",
        "input": stored.tensor,
        "weights": constants.weights,
        "bias": constants.bias,
        "window": _window((kh, kw), (1, 1), dilation, [max(0, amount) for amount in padded]),
        "groups": groups,
        "epilogue": constants.epilogue,
    }
    view = View.dense((n, channels, height, width), (0, 2, 3, 1))
    context.emit(step, op, (n, height, width, channels), view, constants.target)


def _cropped(context: Lowering, step: Step, stored: Stored, cut: Sequence[int]) -> Stored:
    """The `[n, h, w, c]` tensor without so many cells at top, left, bottom and right."""
    if not any(cut):
        return stored
    n, h, w, c = stored.shape
    rows, columns = h - cut[0] - cut[2], w - cut[1] - cut[3]
    if rows <= 0 or columns <= 0:
        raise UnsupportedNodeError("padding removes the whole operand", "pads")
    op = {
        "op": "rearrange",
        "input": stored.tensor,
        "dims": [n, rows, columns * c],
        "strides": [h * w * c, w * c, 1],
        "offset": cut[0] * w * c + cut[1] * c,
    }
    tensor = context.hidden_layer(f"{step.output.name}/cropped", op, (n, rows, columns, c), stored.grid)
    return Stored(
        tensor, (n, rows, columns, c), View.dense((n, c, rows, columns), (0, 2, 3, 1)), stored.quant
    )


def _weight_name(step: Step) -> str:
    value = step.node.inputs[1]
    return (value.name if value is not None else None) or f"{step.output.name}/weights"


@lowers("MatMul")
def matrix_product(context: Lowering, step: Step) -> None:
    """Product of matrices; either operand may be constant."""
    a, b = step.node.inputs[0], step.node.inputs[1]
    if a is None or b is None:
        raise UnsupportedNodeError("an operand is left out")
    if is_constant(a) and is_constant(b):
        raise UnsupportedNodeError("both operands are constant")
    if is_constant(b):
        _constant_right(context, step)
    elif is_constant(a):
        _constant_left(context, step)
    else:
        _both_computed(context, step)


def _column_bias(step: Step, columns: int) -> Array:
    bias = float_constant(step.bias)
    return np.zeros(columns) if bias is None else np.broadcast_to(bias.ravel(), (columns,))


def _constant_right(context: Lowering, step: Step) -> None:
    value = context.operand(step.node, 0)
    weights = _weights(step.node.inputs[1])
    if weights is None or weights.ndim < 2 or len(shape_of(value)) < 2:
        raise UnsupportedNodeError("operands must be matrices")
    if weights.ndim > 2 and math.prod(weights.shape[:-2]) == 1:
        weights = weights.reshape(weights.shape[-2:])
    columns = weights.shape[-1]
    bias = _column_bias(step, columns)
    if weights.ndim == 2 and _as_convolution(context, step, context.stored[value], weights, bias):
        return
    if weights.ndim == 2:
        stored = context.rows(value, len(shape_of(value)) - 1)
        if len(stored.shape) < 2:  # a row that is stored without its other axes
            stored = context.arranged(value)
        shape = (*stored.shape[:-1], columns)
        view = _with_last(stored, columns)
    else:
        lead = shape_of(step.node.outputs[0])[:-2]
        stored = _expanded(context, value, lead)
        weights = np.broadcast_to(weights, (*lead, *weights.shape[-2:]))
        shape = (*stored.shape[:-1], columns)
        view = View.dense(shape)
    stated = _stated(step.node.inputs[1], -1)
    mean = context.mean(value, -1) if weights.ndim == 2 else None
    constants = linear(
        context,
        step,
        stored,
        weights,
        weights.ndim - 1,
        bias,
        _weight_name(step),
        stated=stated,
        mean=None if mean is None else mean[:, np.newaxis],
    )
    op = {
        "op": "mat_mul",
        "a": stored.tensor,
        "b": constants.weights,
        "bias": constants.bias,
        "epilogue": constants.epilogue,
    }
    context.emit(step, op, shape, view, constants.target)


def _with_last(stored: Stored, columns: int) -> View:
    """The view of a value whose innermost axis `k = stored.shape[-1]` (its last) has become `columns`."""
    k = stored.shape[-1]
    axes = [
        tuple((extent, stride // k * columns) for extent, stride in loops) for loops in stored.view.axes[:-1]
    ]
    return View((*axes, ((columns, 1),) if columns > 1 else ()))


def _as_convolution(context: Lowering, step: Step, stored: Stored, weights: Weights, bias: Array) -> bool:
    """Lowers the product with a flattened image `[n, c*h*w]` as one window over the whole image.

    The image stays where it is; its order (channels last) is taken over by the rows of the weights.
    """
    if len(stored.shape) != 4 or math.prod(stored.shape[1:3]) == 1:
        return False
    n, h, w, c = stored.shape
    loops = stored.view.axes[-1]
    if not stored.view.covers(stored.elements) or math.prod(extent for extent, _ in loops) != h * w * c:
        return False
    by_stride = sorted(range(len(loops)), key=lambda i: -loops[i][1])
    step_in = 1
    for i in reversed(by_stride):
        if loops[i][1] != step_in:
            return False
        step_in *= loops[i][0]
    columns = weights.shape[1]
    split = [extent for extent, _ in loops]

    def as_kernel(codes: Codes) -> Codes:
        turned = codes.reshape(*split, columns).transpose(len(split), *by_stride)
        return turned.reshape(columns, h, w, c)

    stated = _stated(step.node.inputs[1], -1)
    mean = context.mean(context.operand(step.node, 0), -1)
    mean = None if mean is None else mean[:, np.newaxis]
    constants = linear(
        context, step, stored, weights, 1, bias, _weight_name(step), as_kernel, stated=stated, mean=mean
    )
    op = {
        "op": "conv",
        "input": stored.tensor,
        "weights": constants.weights,
        "bias": constants.bias,
        "window": _window((h, w), (1, 1), (1, 1), (0, 0, 0, 0)),
        "groups": 1,
        "epilogue": constants.epilogue,
    }
    view = View(
        (
            *(tuple((e, s // (h * w * c) * columns) for e, s in axis) for axis in stored.view.axes[:-1]),
            ((columns, 1),) if columns > 1 else (),
        )
    )
    context.emit(step, op, (n, 1, 1, columns), view, constants.target)
    return True


def _constant_left(context: Lowering, step: Step) -> None:
    """`A B` with constant `A` as `(B^T A^T)^T`: the views do the transpositions."""
    value = context.operand(step.node, 1)
    weights = _weights(step.node.inputs[0])
    rank = len(shape_of(step.node.outputs[0]))
    if weights is None or weights.ndim < 2 or len(shape_of(value)) < 2:
        raise UnsupportedNodeError("operands must be matrices")
    rows, depth = weights.shape[-2:]
    lead = tuple(range(rank - 2))
    if math.prod(weights.shape[:-2]) == 1:
        matrix = weights.reshape(rows, depth).T
    else:
        batch = shape_of(step.node.outputs[0])[:-2]
        matrix = np.broadcast_to(np.swapaxes(weights, -1, -2), (*batch, depth, rows))
    stored = _expanded(context, value, shape_of(step.node.outputs[0])[:-2], (*lead, rank - 1, rank - 2))
    name = (step.node.inputs[0].name if step.node.inputs[0] else None) or f"{step.output.name}/weights"
    stated = _stated(step.node.inputs[0], -2)
    constants = linear(context, step, stored, matrix, matrix.ndim - 1, np.zeros(rows), name, stated=stated)
    shape = (*stored.shape[:-1], rows)
    op = {
        "op": "mat_mul",
        "a": stored.tensor,
        "b": constants.weights,
        "bias": constants.bias,
        "epilogue": constants.epilogue,
    }
    view = View.dense(shape).transpose((*lead, rank - 1, rank - 2))
    context.emit(step, op, shape, view, constants.target)


def _expanded(
    context: Lowering, value: ir.Value, lead: Sequence[int], order: Sequence[int] | None = None
) -> Stored:
    """Matrices repeated along the axes `lead`, as a tensor with its axes in `order`."""
    shape = shape_of(value)
    if len(shape) < 2:
        raise UnsupportedNodeError("operands must be matrices")
    wanted = (*lead, *shape[-2:])
    if shape == wanted:
        return context.arranged(value, order)
    stored = context.stored[value]
    return context.arranged(value, order, stored=replace(stored, view=stored.view.expand(wanted)))


def _both_computed(context: Lowering, step: Step) -> None:
    lead = shape_of(step.node.outputs[0])[:-2]
    a, b = (_expanded(context, context.operand(step.node, i), lead) for i in (0, 1))
    wide = "int16" in {a.grid.dtype, b.grid.dtype}
    target = context.grids.target(step)
    factor = np.array([a.grid.scale * b.grid.scale])
    finish = epilogue(context, step, factor, target, wide=wide)
    if wide and not target.is_float:
        fused = step.activation is not None and step.activation.op_type not in CLAMPS
        end = context.grids.intermediate(step) if fused else target
        finish = _twice_rounded(finish, _bits_before_bias(context, step, factor, end.scale))
    op = {"op": "mat_mul", "a": a.tensor, "b": b.tensor, "epilogue": finish}
    shape = (*lead, a.shape[-2], b.shape[-1])
    context.emit(step, op, shape, View.dense(shape), target)
