"""Which grid every value is quantised on: the ranges, the configuration and the place in the network decide.

A value has the grid of its own range, except where an operator bounds it (`FIXED_RANGES`), where nothing
but a concatenation reads it (then it has that one's grid, so that codes are copied), and where 8 bits would
lose what the accumulator holds: around norms and softmax (see `wide`), and in what the network returns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.errors import TpuflowError
from tpuflow.lowering import scheme
from tpuflow.lowering.functions import FUNCTIONS
from tpuflow.lowering.int16_values import AVERAGES, added_values, head_values, int16_values
from tpuflow.lowering.neighbors import (
    CODES_PASS,
    Neighbors,
    added_numbers,
    introduced_numbers,
    padding,
    whole_numbers,
)
from tpuflow.lowering.nodes import attribute, constant, input_or_none, is_constant, sole_user
from tpuflow.lowering.plan import CLAMPS, LINEAR, Step
from tpuflow.lowering.registry import VIEWS, UnsupportedNodeError
from tpuflow.lowering.scheme import Quant
from tpuflow.lowering.settings import GRID, OF_CODES, RANGE, SCALE

if TYPE_CHECKING:
    from tpuflow.calibration import Range
    from tpuflow.config import QuantizeConfig
    from tpuflow.lowering.operators import FinishFields
    from tpuflow.lowering.settings import Settings

__all__ = [
    "CODES",
    "CODES_PASS",
    "FURTHER",
    "TRUTH",
    "Grids",
    "QuantizeError",
    "clamp",
    "code_grid",
    "float_clamp",
    "grid_of",
    "padding",
    "qinvariant",
    "stated_grid",
    "stated_input",
]

FIXED_RANGES: dict[str, tuple[float, float]] = {
    "Softmax": (0.0, 1.0),
    "Sigmoid": (0.0, 1.0),
    "HardSigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Softsign": (-1.0, 1.0),
}
"""Outputs whose bounds are known: samples that stay far from them must not cut what later inputs reach."""

SHARED_QUANT = frozenset({"Concat", "Where"})
"""Operators whose operands take the output's quantisation when nothing else reads them."""

FURTHER = 16.0
"""A grid that reaches so many times what is of use has too few codes for that."""

POINTS, BETWEEN = 1 << 14, 2.0**-9
"""Where a function is looked at for all it gives, and what it may give beyond between two such places."""


CODES = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})
"""Types of integers that fit a stored tensor."""


TRUTH = Quant("int8", 1.0, 0, 0, 1)
"""The grid of truth values."""


class QuantizeError(TpuflowError):
    """Ranges or configuration do not fit the model."""


class Grids:
    """Chooses grids for the steps of one network."""

    def __init__(
        self, ranges: Mapping[str, Range], settings: Settings, steps: Mapping[ir.Node, Step]
    ) -> None:
        self._ranges = ranges
        self._neighbors = Neighbors(ranges)
        self._settings = settings
        self._steps = steps
        usual = settings.defaults
        self._wide = int16_values(steps, norms=usual.int16_normalization, softmax=usual.int16_softmax)
        if usual.int16_heads and usual.output_dtype == "int16":
            self._wide |= head_values(steps)
        if usual.int16_residual_additions:
            self._wide |= added_values(steps)
        self._whole_numbers = whole_numbers(steps)
        self._final: dict[ir.Value, bool] = {}
        self._dtypes: dict[ir.Value, scheme.DType] = {}
        self._targets: dict[ir.Value, Quant] = {}
        self._shared_ranges: Mapping[ir.Value, tuple[float, float]] = {}

    @property
    def shared_ranges(self) -> Mapping[ir.Value, tuple[float, float]]:
        """Ranges of values that share a scale with others, instead of their own."""
        return self._shared_ranges

    @shared_ranges.setter
    def shared_ranges(self, ranges: Mapping[ir.Value, tuple[float, float]]) -> None:
        self._shared_ranges = ranges
        self._targets.clear()

    def has_fixed_range(self, value: ir.Value) -> bool:
        """Whether the operator that makes a value bounds it."""
        producer = value.producer()
        return producer is not None and producer.op_type in FIXED_RANGES

    def range_of(self, value: ir.Value) -> tuple[float, float]:
        """The calibrated range; of an operator with bounds of its own, what it may give.

        Raises:
            QuantizeError: If there is none, or it is not finite.
        """
        producer = value.producer()
        if producer is not None and self.has_fixed_range(value):
            return self._range_within_bounds(producer)
        stated = self._ranges.get(value.name or "")
        if stated is None:
            raise QuantizeError(f'tensor "{value.name}" has no range: calibrate this model again')
        # One range of a tensor that may have been calibrated per channel: activations have one scale.
        found = min(low for low, _ in stated.pairs), max(high for _, high in stated.pairs)
        brought = () if producer is None else introduced_numbers(producer)  # they may occur, however rarely
        found = min(found[0], *brought, found[0]), max(found[1], *brought, found[1])
        if (bounds := self._neighbors.range_beside_masks(value)) is not None:
            found = max(found[0], min(bounds[0], 0.0)), found[1]
        low, high = self._neighbors.kept_range(value)
        if high - low >= scheme.SMALLEST_SPAN:
            found = max(found[0], min(low, 0.0)), min(found[1], max(high, 0.0))
        distinguished = self._neighbors.distinguished_range(value) or (-math.inf, math.inf)
        kept = min(distinguished[0], 0.0), max(distinguished[1], 0.0)
        if max(-found[0], found[1]) > FURTHER * max(-kept[0], kept[1]):
            found = max(found[0], kept[0]), min(found[1], kept[1])
        if not (math.isfinite(found[0]) and math.isfinite(found[1])):
            raise QuantizeError(
                f'tensor "{value.name}" has the range {found[0]} to {found[1]}, which is not finite'
            )
        if found[1] - found[0] < scheme.SMALLEST_SPAN:
            known = scheme.SMALLEST_SPAN <= kept[1] - kept[0] < math.inf
            return kept if known else self._neighbors.neighbor_range(value) or found
        if found[0] > found[1]:
            raise QuantizeError(f'tensor "{value.name}" has an empty range, {found[0]} to {found[1]}')
        return found

    def stated_range(self, value: ir.Value | None) -> Range | None:
        """The range of a constant, where ranges hold one."""
        return None if value is None else self._ranges.get(value.name or "")

    def _range_within_bounds(self, node: ir.Node) -> tuple[float, float]:
        """The range of an operator with bounds over the whole grid of its operand.

        A share is largest where one element of a row is at the upper end and all others at the lower one.
        """
        low, high = FIXED_RANGES[node.op_type]
        operand = node.inputs[0]
        if operand is None or operand.name not in self._ranges:
            return low, high
        reach = self._headroom_factor(operand, self._settings.defaults)
        first, last = (end * reach for end in self.range_of(operand))
        if node.op_type == "Softmax":
            size = None if operand.shape is None else operand.shape[attribute(node, "axis", -1)]
            if not isinstance(size, int) or self._steps[node].mask is not None:
                return low, high
            return low, 1.0 / (1.0 + (size - 1) * math.exp(first - last))
        least, largest = FUNCTIONS[node.op_type](node)(np.array([first, last]))
        return max(low, float(least)), min(high, float(largest))

    def target(self, step: Step) -> Quant:
        """The quantisation of a step's output: of the concatenation it ends in, else of its own range."""
        passed: list[ir.Value] = []
        following: Step | None = step
        while following is not None and (known := self._targets.get(following.output)) is None:
            passed.append(following.output)
            following, known = self._grid_source(following)
        assert known is not None, "the last step has a grid of its own"
        self._targets.update(dict.fromkeys(passed, known))
        return known

    def _grid_source(self, step: Step) -> tuple[Step, None] | tuple[None, Quant]:
        """The step whose output a step's own has the quantisation of; where there is none, that one."""
        if step.output.dtype == ir.DataType.BOOL:
            return None, TRUTH
        dtype = self.dtype_of(step)
        if scheme.is_float(dtype):
            self._settings.note_overridden(step.names, *OF_CODES)
            return None, scheme.floating(dtype)
        value, source = step.output, step.output
        while (user := sole_user(value)) is not None:
            follower = self._steps[user]
            if user.op_type in SHARED_QUANT and user not in follower.nodes[1:] and follower.mask is not user:
                if self.dtype_of(follower) != dtype:
                    break
                return follower, None
            if user.op_type == "QuantizeLinear":
                return None, stated_grid(user)
            passes = user.op_type in VIEWS or user.op_type in CODES_PASS
            if (fill := padding(user)) is not None and not self._in_range(value, fill):
                source = follower.output
                break
            if not passes or user.inputs[0] is not value or self._settings.explicit(follower.names, "dtype"):
                break
            value = follower.output
        allowed = self._settings.within_target(step.names, step.node.op_type)
        return None, self.own_quant(step.names, source, allowed.model_copy(update={"dtype": dtype}))

    def _in_range(self, value: ir.Value, number: float) -> bool:
        low, high = self.range_of(value)
        return not math.isfinite(number) or min(low, 0.0) <= number <= max(high, 0.0)

    def dtype_of(self, step: Step) -> scheme.DType:
        """The element type of a step's output, unless it only passes codes on.

        Raises:
            ConfigError: If the target does not allow what the configuration asks for.
        """
        if step.output not in self._dtypes:
            names = step.names
            dtype: scheme.DType = self._settings.of(names).dtype
            self._dtypes[step.output] = self._settings.target.element_type(
                step.node.op_type, names[0] if names else "", self._preferred_dtype(step, dtype), dtype
            )
        return self._dtypes[step.output]

    def _preferred_dtype(self, step: Step, dtype: scheme.DType) -> scheme.DType:
        """The element type that suits a step whose configuration says `dtype`."""
        if self._settings.explicit(step.names, "dtype") or scheme.is_float(dtype):
            return dtype
        if step.output in self._wide:
            return "int16"
        final = dtype == "int8" and self._is_final(step.output)
        return self._settings.defaults.output_dtype if final else dtype

    def _is_final(self, value: ir.Value) -> bool:
        """Whether a value is all or part of what the network returns, and nothing else.

        Sums that are averaged before they are returned count too, but not what a Relu is applied to first.
        """
        passed: list[ir.Value] = []
        while (found := self._final.get(value)) is None:
            passed.append(value)
            if value.is_graph_output():
                found = not value.uses()
                break
            user, maker = sole_user(value), value.producer()
            sums = maker is not None and (maker.op_type in LINEAR or maker.op_type == "Add")
            if user is None or not (
                user.op_type in SHARED_QUANT or user.op_type in VIEWS or (sums and user.op_type in AVERAGES)
            ):
                found = False
                break
            value = user.outputs[0]
        self._final.update(dict.fromkeys(passed, found))
        return found

    def own_quant(self, names: Sequence[str], value: ir.Value, config: QuantizeConfig) -> Quant:
        """The quantisation from a value's own range, for the layer known by `names`, which notes its keys."""
        if scheme.is_float(config.dtype):
            self._settings.note_overridden(names, *OF_CODES)
        else:
            calibrated = () if self.has_fixed_range(value) else (RANGE,)
            self._settings.honors(names, GRID, SCALE, *calibrated)
        return self.quant_of(value, config)

    def quant_of(self, value: ir.Value, config: QuantizeConfig) -> Quant:
        """The quantisation that follows from a value's own range."""
        if scheme.is_float(config.dtype):
            return scheme.floating(config.dtype)
        low, high = self.shared_ranges.get(value) or self.range_of(value)
        wide = config.dtype == "int16" and not self.has_fixed_range(value)
        grid = grid_of(*self._int16_range(value, config), config) if wide else grid_of(low, high, config)
        if value in self.shared_ranges or config.power_of_two:
            return grid
        if numbers := self._whole_numbers.get(value):
            return scheme.dividing(grid, numbers)
        added = [abs(number) for number in added_numbers(value)] if wide else []
        return scheme.holding(grid, max((each for each in added if each <= max(-low, high)), default=0.0))

    def _headroom_factor(self, value: ir.Value, config: QuantizeConfig) -> float:
        """How many times its calibrated range the 16-bit grid of a value reaches."""
        if self.has_fixed_range(value):
            return 1.0
        stated = None if value in self.shared_ranges else self._ranges.get(value.name or "")
        return 1.0 + (config.headroom_16 - 1.0) * (1.0 if stated is None else stated.margin)

    def _int16_range(self, value: ir.Value, config: QuantizeConfig) -> tuple[float, float]:
        """Range and margin that the 16-bit grid of a value holds, but nothing its function never gives."""
        low, high = self.shared_ranges.get(value) or self.range_of(value)
        reach = self._headroom_factor(value, config)
        node = value.producer()
        if node is None or node.op_type not in FUNCTIONS or value in self.shared_ranges or node.domain:
            return low * reach, high * reach
        operand = node.inputs[0]
        if operand is None or operand.name not in self._ranges or any(map(_is_computed, node.inputs[1:])):
            return low * reach, high * reach
        furthest = self._headroom_factor(operand, config)
        first, last = (end * furthest for end in self.range_of(operand))
        with np.errstate(all="ignore"):
            image = FUNCTIONS[node.op_type](node)(np.append(np.linspace(first, last, POINTS), 0.0))
        least, largest = float(image.min()), float(image.max())
        if not (math.isfinite(least) and math.isfinite(largest)):
            return low * reach, high * reach
        between = (largest - least) * BETWEEN
        return max(low * reach, min(low, least - between)), min(high * reach, max(high, largest + between))

    def intermediate(self, step: Step) -> Quant:
        """The symmetric 16-bit quantisation of what a step's fused function reads."""
        value = step.before_activation
        self._settings.honors(step.names, RANGE)
        low, high = self.range_of(value)
        magnitude = max(-low, high) * self._headroom_factor(value, self._settings.defaults)
        form = scheme.Format("int16", power_of_two=self._settings.defaults.power_of_two)
        return scheme.symmetric(magnitude, form)


def _is_computed(value: ir.Value | None) -> bool:
    return value is not None and not is_constant(value)


def grid_of(low: float, high: float, config: QuantizeConfig) -> Quant:
    """The grid a configuration asks for, of numbers observed in `[low, high]`."""
    form = scheme.Format(config.dtype, config.activation_mode, config.grid_bits, config.power_of_two)
    return scheme.activation(low, high, form, unsigned=config.unsigned and not config.force_dtype_int)


def qinvariant(config: QuantizeConfig) -> Quant:
    """The grid on which numbers are their own codes."""
    half = 1 << (config.grid_bits - 1)
    return Quant(config.dtype, 1.0, 0, -half, half - 1)


def stated_grid(node: ir.Node) -> Quant:
    """The grid of a QuantizeLinear or DequantizeLinear node, as signed codes.

    Raises:
        UnsupportedNodeError: If it differs by channel or block, or has a type other than 8 or 16 bits.
    """
    scale, zero = constant(node.inputs[1]), constant(input_or_none(node, 2))
    if scale is None or scale.size != 1 or (zero is not None and zero.size != 1):
        raise UnsupportedNodeError("one scale and zero point per tensor", "y_scale")
    codes = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    zero_point = 0 if zero is None else int(zero.item())
    return _grid_of_type(codes, float(np.float32(scale.item())), zero_point, "y_zero_point")


def integer_grid(value: ir.Value) -> Quant:
    """The grid on which integers of 8 or 16 bits stand for themselves.

    Raises:
        UnsupportedNodeError: If they have another width.
    """
    return _grid_of_type(value, 1.0, 0, "to")


def _grid_of_type(codes: ir.Value | None, scale: float, zero_point: int, attribute: str) -> Quant:
    kind = str(np.dtype(codes.dtype.numpy())) if codes is not None and codes.dtype is not None else "uint8"
    if kind not in {"int8", "uint8", "int16", "uint16"}:
        raise UnsupportedNodeError(f"codes of type {kind}", attribute)
    dtype: scheme.DType = "int8" if kind.endswith("int8") else "int16"
    half = 1 << (scheme.bits(dtype) - 1)
    return Quant(dtype, scale, zero_point - (half if kind.startswith("u") else 0), -half, half - 1)


def code_grid(value: ir.Value) -> Quant | None:
    """The grid of integers of 8 or 16 bits a network takes: None where they are indices.

    Operators that only move them may stand in between.
    """
    for use in value.uses():
        node = use.node
        if node.op_type == "DequantizeLinear" and use.idx == 0:
            return stated_grid(node)
        if node.op_type == "Cast" and is_number(node.outputs[0]) and value.dtype in CODES:
            return integer_grid(value)
        moves = node.op_type in VIEWS or node.op_type in CODES_PASS or node.op_type in SHARED_QUANT
        if moves and use.idx == 0 and (found := code_grid(node.outputs[0])) is not None:
            return found
    return None


def stated_input(value: ir.Value) -> Quant | None:
    """The grid the model itself quantises an input on, before it does anything but move it."""
    while (user := sole_user(value)) is not None and user.inputs[0] is value:
        if user.op_type == "QuantizeLinear":
            return stated_grid(user)
        if user.op_type not in VIEWS:
            return None
        value = user.outputs[0]
    return None


def is_number(value: ir.Value) -> bool:
    """Whether a value is of a floating type."""
    return value.dtype is not None and value.dtype.is_floating_point()


def float_clamp(activation: ir.Node | None) -> FinishFields:
    """The bounds of Relu, Clip or nothing, as the finish of a float operator holds them."""
    if activation is None or activation.op_type not in CLAMPS:
        return {}
    low, high = (float(np.float32(bound)) for bound in bounds(activation))
    low = min(low, high)  # as ONNX has it
    finish: FinishFields = {}
    if math.isfinite(low):
        finish["lo"] = low
    if math.isfinite(high):
        finish["hi"] = high
    return finish


def clamp(activation: ir.Node | None, quant: Quant) -> tuple[int, int]:
    """Smallest and largest code after Relu, Clip or nothing."""
    if activation is None or activation.op_type not in CLAMPS:
        return quant.lo, quant.hi
    low, high = bounds(activation)
    lo = quant.lo if low == -math.inf else quant.code(low)
    hi = quant.hi if high == math.inf else quant.code(high)
    return min(lo, hi), hi


def bounds(node: ir.Node) -> tuple[float, float]:
    """Lower and upper limit of a Relu or Clip node.

    Raises:
        UnsupportedNodeError: If a limit is computed at run time.
    """
    if node.op_type == "Relu":
        return 0.0, math.inf
    limits = [float(attribute(node, "min", -math.inf)), float(attribute(node, "max", math.inf))]
    for index in (1, 2):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            continue
        if not is_constant(value) or value.const_value is None:
            raise UnsupportedNodeError("limits must be constant", ("min", "max")[index - 1])
        limits[index - 1] = float(np.asarray(value.const_value.numpy()).item())
    return limits[0], limits[1]
