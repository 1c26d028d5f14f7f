"""The parts of layers of exact sums: codes of weights, biases, and one requantisation per output channel.

The scale of the sum is that of the input times that of the channel's weights; the bias is stored at that
scale. A channel's weight scale is never so small that its bias would not fit, or that its factor to the
output would need more fraction bits than the machine has; a channel without weights gets the smallest scale
that satisfies both. Where the averages of a layer's operand are known, its bias corrects what the rounding
of weights adds on average (bias correction: Nagel et al., "Data-free quantization through weight equalization
and bias correction", 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from tpuflow.config import ConfigError
from tpuflow.errors import RangesError
from tpuflow.lowering import scheme
from tpuflow.lowering.blocks import in_blocks
from tpuflow.lowering.grids import float_clamp
from tpuflow.lowering.layout import StoredValue
from tpuflow.lowering.nodes import constant, input_or_none
from tpuflow.lowering.packed import Packed, pack, packed_codes
from tpuflow.lowering.plan import CLAMPS
from tpuflow.lowering.registry import UnsupportedNodeError
from tpuflow.lowering.scheme import Quant
from tpuflow.lowering.settings import BIASES, BLOCKS, FLOAT_WEIGHTS, SCALE, WEIGHTS, WIDE_SUMS
from tpuflow.lowering.weight_reach import weight_reach

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.config import QuantizeConfig
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.operators import EpilogueFields, FloatFields, RequantFields
    from tpuflow.lowering.plan import Step

__all__ = [
    "Array",
    "Codes",
    "Linear",
    "LinearParameters",
    "Sums",
    "Weights",
    "bits_before_bias",
    "epilogue",
    "high_bits",
    "linear",
    "sums",
    "weights_of",
    "with_first_shift",
]

Array = npt.NDArray[np.float64]
Weights = npt.NDArray[np.floating[Any]]
Codes = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Linear:
    """Constants and epilogue of a linear operator, as the graph takes them."""

    weights: int
    bias: int
    epilogue: EpilogueFields | FloatFields
    target: Quant


@dataclass(frozen=True)
class Sums:
    """The sums of a linear operator and how they are rounded, before any of it is in the graph.

    Attributes:
        weights: Codes, or floats, in the order of the weights they are made of.
        scales: Of the weights, one or one per channel; None for floats.
        zero_point: Of the weights.
        biases: One per channel.
        factors: Scales of the sums.
        before: Bits by which they are rounded before the biases, if any.
        wide: Whether an operand has 16 bits.
        target: What the sums become.
        packed: The codes of 4 bits that weights of one matrix are made of, if they are.
    """

    weights: Codes | Weights
    scales: list[float] | None
    zero_point: int
    biases: npt.NDArray[Any]
    factors: Array
    before: int | None
    wide: bool
    target: Quant
    packed: Packed | None = None

    def constants(
        self, context: Lowering, step: Step, name: str, weights: Codes | Weights, *, times: int = 1
    ) -> Linear:
        """Puts `weights` (all of them or some, in the order the operator takes) and biases into the graph.

        Channels come `times` over, one set behind the other.
        """
        factors = np.tile(self.factors, times) if self.factors.size > 1 else self.factors
        if self.packed is not None:
            kept = context.packed_weights(name, self.packed)
        else:
            scales = self.scales * times if self.scales and len(self.scales) > 1 else self.scales
            kept = context.shared_constant(name, weights, scales, self.zero_point)
        bias = context.shared_constant(f"{step.output.name}/bias", np.tile(self.biases, times))
        finish = epilogue(context, step, factors, self.target, wide=self.wide)
        return Linear(kept, bias, with_first_shift(finish, self.before), self.target)


def epilogue(
    context: Lowering, step: Step, factors: Array, target: Quant, *, wide: bool
) -> EpilogueFields | FloatFields:
    """Requantisation of sums of scale `factors` (one or per channel), to the output or through a table."""
    activation = step.activation
    if activation is None or activation.op_type in CLAMPS:
        if target.is_float:
            return {"float": float_clamp(activation)}
        return {
            "requant": context.requant(list(factors / target.scale), target, activation, wide=wide).fields()
        }
    if target.is_float:
        return context.float_function(step, activation, target)
    middle = context.grids.intermediate(step)
    requant = context.requant(list(factors / middle.scale), middle, wide=wide)
    table = context.code_function(step, activation, middle, target)
    return {"requant": requant.fields(), "table": table}


@dataclass(frozen=True)
class LinearParameters:
    """Weights and bias of a linear operator as the model has them.

    Attributes:
        weights: Output channels along `axis`.
        axis: Of the output channels.
        bias: One per channel.
        stated: Where the model states the weights as integers, their scales, one per channel; they are kept.
        steps: Where it states them in blocks, one scale for each.
        is_matrix: Right operand of a product, of two axes: may be of 4 bits in blocks.
        mean: Broadcasts to the weights: the average of what each of them is multiplied with. Biases correct
            what the rounding of weights adds on average.
    """

    weights: Weights
    axis: int
    bias: Array
    stated: Array | None = None
    steps: npt.NDArray[Any] | None = None
    is_matrix: bool = False
    mean: Array | None = None


def linear(
    context: Lowering,
    step: Step,
    stored: StoredValue,
    real: LinearParameters,
    name: str,
    arrange: Callable[[Any], Codes | Weights] = lambda codes: codes,
) -> Linear:
    """Quantises weights and bias of a step, as `sums` does, and puts them into the graph.

    `arrange` puts the codes, which are smaller than the weights, in the order the operator takes.
    """
    made = sums(context, step, stored, real)
    return made.constants(context, step, name, arrange(made.weights))


def sums(context: Lowering, step: Step, stored: StoredValue, real: LinearParameters) -> Sums:
    """Quantises weights and bias of a step."""
    config = context.config(step)
    target = context.grids.target(step)
    bias = real.bias
    if target.is_float:
        shown = stored.grid.codes(_of_codes(context, step, real.weights, real.axis, config))
        return Sums(shown, None, 0, bias.astype(np.float32), np.ones(1), None, wide=False, target=target)
    context.settings.honors(step.names, WEIGHTS, BIASES, SCALE)
    error = context.error(step.output, 1 if step.node.op_type == "Conv" else -1)
    if error is not None and config.bias_correction:
        bias = bias - error
    if real.is_matrix:
        context.settings.honors(step.names, BLOCKS)
    by_block = real.is_matrix and is_by_block(context, step, real.weights, real.steps)
    dtype: scheme.DType = config.dtype
    if by_block or config.weight_bits is not None:
        dtype = "int8" if by_block or (config.weight_bits or 8) <= 8 else "int16"
    by_channel = (
        config.weight_mode == "asymmetric" and config.per_channel and real.stated is None and not by_block
    )
    if by_channel:
        _check_channels(step, config)
        dtype = "int16"
    wide = "int16" in {dtype, stored.grid.dtype}
    fused = step.activation is not None and step.activation.op_type not in CLAMPS
    end = context.grids.intermediate(step) if fused else target

    largest = float(1 << (_bias_bits(context, step, wide=wide) - 1)) - 1.0
    fraction = math.ldexp(end.scale, (15 if wide else 14) - (47 if wide else 31))
    floor = np.maximum(np.abs(bias) / (largest / 2), fraction) / stored.grid.scale
    packed = _packed_weights(context, step, real.weights, real.steps, floor) if by_block else None
    codes, scales, zero = (
        (packed.elements(), packed.columns, 0)
        if packed is not None
        else _weight_codes(context, step, real, dtype, floor, by_channel=by_channel)
    )
    if config.weight_clusters is not None:
        codes = _cluster(step, codes, config.weight_clusters, packed)
    if real.mean is not None and config.bias_correction:
        about = codes if zero == 0 else codes.astype(np.int32) - zero
        bias = bias - scheme.mean_error(real.weights, about, scales, real.axis, real.mean)
    factors = stored.grid.scale * scales
    biases = scheme.codes(bias, factors, 0, -int(largest) - 1, int(largest), "int64" if wide else "int32")
    if config.bias_effective_bits is not None:
        biases = high_bits(biases, config.bias_effective_bits)
    before = bits_before_bias(context, step, factors, end.scale) if wide else None
    if before is not None:
        limits = np.iinfo(np.int32)
        biases = np.clip(biases >> before, limits.min, limits.max)
    return Sums(
        codes,
        list(scales),
        zero,
        biases,
        factors,
        before,
        wide=wide,
        target=target,
        packed=packed,
    )


def weights_of(value: ir.Value | None) -> Weights | None:
    """A constant in its own precision: weights are large, and only read once.

    Raises:
        UnsupportedNodeError: Some are infinite or no numbers.
    """
    array = constant(value)
    if array is None:
        return None
    if not np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float64)
    if not np.all(np.isfinite(array)):
        raise UnsupportedNodeError("weights are not finite")
    return cast("Weights", array)


def is_by_block(context: Lowering, step: Step, weights: Weights, steps: npt.NDArray[Any] | None) -> bool:
    """Whether a matrix of a layer in integers becomes codes of 4 bits in blocks."""
    if context.grids.target(step).is_float:
        return False
    return context.config(step).per_block or packed_codes(weights, steps) is not None


def _weight_codes(
    context: Lowering,
    step: Step,
    real: LinearParameters,
    dtype: scheme.DType,
    floor: Array,
    *,
    by_channel: bool,
) -> tuple[Codes, Array, int]:
    """Codes, scales and zero point of weights that are not packed, with no scale below `floor`.

    Zero points by channel are taken off the codes.
    """
    config = context.config(step)
    if by_channel:
        width = config.weight_bits or 8
        return *scheme.asymmetric_channels(
            real.weights, real.axis, floor, width, power_of_two=config.power_of_two
        ), 0
    form = scheme.Format(dtype, config.weight_mode, config.weight_bits, config.power_of_two)
    if config.weight_mode == "asymmetric" and real.stated is None:
        _check_asymmetric(step, config)
        return scheme.asymmetric_weights(real.weights, form, float(floor.max()))
    axis = real.axis if config.per_channel or real.stated is not None else None
    codes, scales = scheme.weights(
        real.weights,
        axis,
        form,
        floor=floor if axis is not None else floor.max(),
        stated=real.stated,
        reach=_reach(context, step, real.weights, axis, config),
    )
    return codes, scales, 0


def _packed_weights(
    context: Lowering, step: Step, weights: Weights, steps: npt.NDArray[Any] | None, floor: Array
) -> Packed | None:
    """Weights of 4 bits in blocks: those the model states, or those the configuration asks for."""
    config = context.config(step)
    floors = np.broadcast_to(floor, weights.shape[1:])
    tied = context.tables.get(step.node.inputs[1]) if step.node.inputs[1] is not None else None
    if tied is not None and tied.codes.shape == weights.shape and np.all(tied.columns >= floors):
        return tied
    found = packed_codes(weights, steps, floors)
    if config.per_block:
        found = found or pack(weights, config.weight_block_size, floors)
    return found


def _of_codes(context: Lowering, step: Step, weights: Weights, axis: int, config: QuantizeConfig) -> Weights:
    """Weights of a layer in floats: as they are, or what their codes stand for.

    Raises:
        ConfigError: The layer asks for another calibration strategy than the extrema.
    """
    if not config.weight_only:
        return weights
    context.settings.honors(step.names, WEIGHTS, SCALE, FLOAT_WEIGHTS, BLOCKS)
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


def bits_before_bias(context: Lowering, step: Step, factors: Array, scale: float) -> int | None:
    """By how many bits sums of scale `factors` are rounded before their biases, if `remain_shift` says so.

    The requantisation to `scale` keeps as many bits of its shift as that says.

    Raises:
        ConfigError: Channels have shifts of their own.
    """
    remain = context.config(step).remain_shift
    context.settings.honors(step.names, WIDE_SUMS)
    if remain is None:
        return None
    shifts = set(context.requant(list(factors / scale), context.grids.target(step), wide=True).shift)
    if len(shifts) > 1:
        raise ConfigError(
            f'"{step.names[0]}": remain_shift needs one shift for all channels: '
            "set unify_shifts = true or per_channel = false"
        )
    return max(0, shifts.pop() - remain)


def with_first_shift(
    finish: EpilogueFields | FloatFields, before: int | None
) -> EpilogueFields | FloatFields:
    """An epilogue with so many bits of its shift before the biases."""
    if before is None or "float" in finish:
        return finish
    requant = finish["requant"]
    left: RequantFields = {**requant, "shift": [shift - before for shift in requant["shift"]]}
    return {**finish, "first_shift": before, "requant": left}


def _reach(
    context: Lowering, step: Step, weights: Weights, axis: int | None, config: QuantizeConfig
) -> Array | None:
    """How far the grids of a step's weights reach; None for the largest ones.

    Raises:
        RangesError: The model should state it and does not.
    """
    value = input_or_none(step.node, 1)
    try:
        return weight_reach(weights, axis, config, context.grids.stated_range(value))
    except RangesError as error:
        raise RangesError(f'layer "{step.names[0]}": {error}') from None


def _check_asymmetric(step: Step, config: QuantizeConfig) -> None:
    """Refuses combinations that only entries of single layers can make.

    Raises:
        ConfigError: The layer's weights cannot be asymmetric.
    """
    if config.weight_strategy != "extrema":
        raise ConfigError(f'layers: "{step.names[0]}": asymmetric weights need weight_strategy = extrema')


def _check_channels(step: Step, config: QuantizeConfig) -> None:
    """That weights less their zero points fit 16 bits.

    Raises:
        ConfigError: They do not.
    """
    _check_asymmetric(step, config)
    if (config.weight_bits or scheme.bits(config.dtype if config.dtype == "int16" else "int8")) > 15:
        raise ConfigError(f'"{step.names[0]}": weights with a zero point per channel have at most 15 bits')


def _cluster(step: Step, codes: Codes, count: int, packed: Packed | None) -> Codes:
    """Weights that take so many codes.

    Raises:
        ConfigError: They are packed, or have more than 8 bits.
    """
    if packed is not None or codes.dtype != np.int8:
        raise ConfigError(
            f'"{step.names[0]}": weight_clusters is for weights of at most 8 bits, one scale a channel'
        )
    return scheme.cluster_codes(codes, count)


def _bias_bits(context: Lowering, step: Step, *, wide: bool) -> int:
    """Width of a layer's biases.

    Raises:
        ConfigError: An entry for this layer asks for more than 8-bit operands allow, unless it is lenient.
    """
    wanted = context.config(step).bias_bits
    if wide:
        return wanted or 48
    if (context.settings.explicit_only(step.names, "bias_bits") or 0) > 32:
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
