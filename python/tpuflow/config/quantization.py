"""The section `quantize`: how tensors are stored.

How ranges become grids, that is: which are found how, the section `calibrate` says. What an entry of `layers`
must meet as well as this section does is checked by functions both call.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tpuflow.config.section import Aliases, FormerNames, PerLayer, Section
from tpuflow.config.strategies import known_strategy
from tpuflow.config.unify import UnifyRule, parsed_unify

__all__ = ["FLOATS", "DType", "QuantizeConfig", "check_widths", "with_type", "without_winograd"]

DType = Literal["int8", "int16", "float16", "bfloat16", "float32"]
"""Element types of activations: integer codes on a grid, or floats, which need none."""

FLOATS = frozenset({"float16", "bfloat16", "float32"})
"""Types whose tensors need no ranges."""

ActivationMode = Literal["asymmetric", "symmetric_full", "symmetric_restricted"]
WeightMode = Literal["symmetric_restricted", "symmetric_full", "asymmetric"]


def with_type(content: dict[str, Any]) -> dict[str, Any]:
    """A width of activations says which type holds them."""
    bits = content.get("activation_bits")
    if isinstance(bits, int) and content.get("dtype") is None:
        content["dtype"] = "int8" if bits <= 8 else "int16"
    return content


def _operators(value: Any) -> Any:
    """Operators from a list; true means all, false none."""
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], bool):
        value = value[0]
    if isinstance(value, bool):
        return ("*",) if value else ()
    return value


class QuantizeConfig(Section):
    """How tensors are stored, for the whole network."""

    dtype: Annotated[DType, PerLayer()] = "int8"
    """Element type of activations, and of weights unless `weight_bits` says otherwise. Of floating types only
    `fuse_tables` and `weight_only` have an effect."""
    fallback: Annotated[Literal["int8", "int16"] | None, PerLayer()] = None
    """Element type of layers whose float type the target does not have, and which then need samples. Unset:
    that is an error, or runs on the host where an entry asks for it."""
    output_dtype: Literal["int8", "int16"] = "int16"
    """Element type of what a network returns, where its layers are int8: the sums have the bits, so the last
    rounding need not be the coarsest. Operators that only pass codes on keep theirs."""
    int16_normalization: Annotated[bool, FormerNames("wide_norms")] = True
    """Operands of norms have 16 bits where their layers are int8, and so have the sums they come from."""
    int16_softmax: Annotated[bool, FormerNames("wide_softmax")] = True
    """Operands and results of softmax have 16 bits where their layers are int8."""
    int16_heads: Annotated[bool, FormerNames("wide_tails")] = True
    """Sums of last layers, and all that is computed of them for the outputs, have 16 bits as well, where
    these have, but for what averages read: boxes of offsets, for example, which no layer reads again."""
    int16_residual_additions: Annotated[bool, FormerNames("wide_sums")] = False
    """Sums that nothing but additions read have 16 bits, where their layers are int8: the parts of a residual
    are rounded to 8 bits once, when they have been added."""
    activation_bits: Annotated[int | None, PerLayer(), Aliases("q_bits_activation"), Field(ge=8, le=16)] = (
        None
    )
    """Width of the grid of activations, at most that of their type; alone it chooses the type: int8 for 8,
    else int16. Unset: all of the type."""
    activation_mode: Annotated[ActivationMode, PerLayer()] = "asymmetric"
    """Grid of activations; 16-bit ones with both signs are symmetric in any case, and `asymmetric` spends all
    codes on those that are never negative."""
    unsigned: Annotated[bool, PerLayer()] = False
    """Symmetric grids of tensors that are never negative spend all codes on positive numbers."""
    force_dtype_int: Annotated[bool, PerLayer()] = False
    """Symmetric grids have negative codes even where nothing is negative, whatever `unsigned` says."""
    power_of_two: Annotated[bool, PerLayer()] = False
    """Scales of activations and weights are powers of two, so that rescaling is a shift alone."""
    weight_bits: Annotated[int | None, PerLayer(), Aliases("q_bits_weight"), Field(ge=2, le=16)] = None
    """Width of weights; unset: that of `dtype`. Up to 8 bits are stored as int8, more as int16; 2 and 3 bits
    are for layers with `weight_only`."""
    weight_clusters: Annotated[int | None, PerLayer(), Field(ge=2, le=255)] = None
    """Weights of at most 8 bits take at most so many of their codes in a layer, those that change them least.
    Unset: all."""
    weight_mode: Annotated[WeightMode, PerLayer()] = "symmetric_restricted"
    """Grid of weights. An asymmetric one has one zero point with `per_channel = false`; with a zero point per
    channel, weights are stored as int16 without it, at the price of a second pass of the array."""
    weight_strategy: Annotated[
        str, PerLayer(), Aliases("calibration_strategy_for_weight", "q_strategy_weight")
    ] = "extrema"
    """Calibration strategy of weights, one of those of activations: per channel, or per tensor."""
    per_channel: Annotated[bool, PerLayer()] = True
    """One weight scale per output channel; otherwise one per tensor."""
    weight_only: Annotated[bool, PerLayer()] = False
    """Linear layers in floats have weights that stand for codes of `weight_bits` bits (unset: 8), each
    channel's with a scale of their own. Programs hold the floats these codes stand for."""
    per_block: Annotated[bool, PerLayer()] = False
    """One scale per block of a channel's weights, where layers have `weight_only`, or where matrix products
    have weights of 4 bits: programs hold these packed, the machine expands them to int8 on their way in."""
    weight_block_size: Annotated[int, PerLayer(), Field(ge=1)] = 256
    """Weights in a block; the last one of a channel is as long as what is left."""
    bias_correction: Annotated[bool, PerLayer()] = True
    """Biases make up for what the rounding of weights adds to sums on average, and those of last layers for
    the mean error of outputs."""
    bias_bits: Annotated[int | None, PerLayer(), Aliases("q_bits_bias"), Field(ge=16, le=48)] = None
    """Width of biases. Layers of 8-bit operands hold at most 32 bits. Unset: 32, or 48 where an operand has
    16 bits."""
    bias_effective_bits: Annotated[int | None, PerLayer(), Field(ge=16, le=48)] = None
    """Of a layer's biases only so many high bits are kept, the lower ones are 0. Unset: all."""
    remain_shift: Annotated[int | None, PerLayer(), Field(ge=0, le=32)] = None
    """Sums of 16-bit operands are rounded to 32 bits before their biases are added; so many bits of the
    requantisation's shift are left for after that. Channels need one shift then. Unset: one rounding."""
    multiplier_bits: Annotated[int, PerLayer(), Field(ge=2, le=15)] = 15
    """Width of the multiplier of a requantisation."""
    unify_shifts: Annotated[bool, PerLayer(), Aliases("unify_shifts_for_aiff")] = False
    """All channels of a requantisation share one shift, at the price of bits of small multipliers."""
    force_shift_positive: Annotated[bool, PerLayer()] = False
    """Requantisations never shift to the left: factors too large for that saturate."""
    table_bits: Annotated[int, PerLayer(), Aliases("lut_items_in_bits"), Field(ge=8, le=16)] = 10
    """A function of a 16-bit operand takes `2^table_bits` equal steps where they suffice, otherwise
    segments of different steps with at most four times as many words."""
    headroom_16: float = Field(default=2.0, ge=1.0, le=16.0)
    """How many times the calibrated range 16-bit grids reach: a clipped peak costs more than a bit. Grids of
    inputs whose samples all reach about as far do less; by fewer than 8 samples all reach three times as far
    beyond."""
    array_columns: int = Field(default=128, ge=1, le=1024)
    """Columns of the array. Convolutions and products of fewer results compute neighbouring pixels beside
    each other until they are full; 1: never. `tpuflow build` takes those of its machine."""
    resize_degrade_to_nearest: Annotated[bool, PerLayer()] = False
    """Bilinear and cubic resizing takes the nearest cell instead."""
    with_winograd: Annotated[bool, PerLayer()] = False
    """Winograd convolutions, which the machine does not have: only false; a text file may say true, which
    changes nothing."""
    unify_scales_for_concat: bool = False
    """Operands of a concatenation that others read too get one scale, where theirs are close."""
    unify_scales_for_concat_threshold: float = Field(default=1.05, ge=1.0)
    """Scales are close where the largest is at most so many times the smallest."""
    unify_scales_for_concat_max_depth: int = Field(default=20, ge=1)
    """How many operators that only pass codes on may stand between an operand and what makes its codes."""
    unify_scales_for_multi_inputs_operators: str = ""
    """Operands of these operators get one scale: `[(operator, depth, threshold, method), ...]`. Depth (0: no
    limit) and threshold are as for concatenations; the method is `min` (the widest grid), `max` (steps as
    fine as the finest), `avg`, `out` (the result's grid), `first`, `largest` (that operand's) or `skip`."""
    scales_by_step: bool = False
    """Values of a recurrence get a scale of their own at every step, and layers constants of their own, which
    all steps share otherwise."""
    qinvariant: Annotated[tuple[int | str, ...], Aliases("set_qinvariant_for_start_nodes")] = ()
    """Inputs, by number or name, whose values are their codes: scale 1, zero point 0."""
    target: str = "any"
    """Target of the layers: the name of a built-in target, or a TOML or JSON file."""
    quant_input: bool = False
    """Inputs are taken as the codes they are stored in, without a cast from floats."""
    quant_output: bool = False
    """Outputs are given as the codes they are stored in, without a cast to floats."""
    quant_inputs: tuple[int | str, ...] = ()
    """Inputs, by number or name, that alone are taken as codes (`quant_input`: all)."""
    quant_outputs: tuple[int | str, ...] = ()
    """Outputs, by number or name, that alone are given as codes (`quant_output`: all)."""
    fuse_tables: bool = True
    """Functions behind a linear operator read its 16-bit intermediate; otherwise the stored tensor."""
    swish_layer_mode: Literal["function", "product"] = "function"
    """`x * sigmoid(x)` and its hard form: one function of x, or the product of the stored x and its stored
    gate, as they are written. In floats they are the same."""
    bypass: bool = False
    """For debugging: no layer is quantised, all compute in float32, whatever else is said of them."""
    fake_quant_operators: Annotated[tuple[str, ...], Aliases("fake_quant_operators_for_debug")] = ()
    """For debugging: operators of these types compute in float32, whatever else is said of them."""
    fake_quant_scopes: Annotated[tuple[tuple[int, int], ...], Aliases("fake_quant_scopes_for_debug")] = ()
    """For debugging: layers of these ranges of numbers, inputs first, compute in float32."""
    cast_dtypes: Annotated[tuple[str, ...], Aliases("cast_dtypes_for_lib"), BeforeValidator(_operators)] = ()
    """Operators whose element type is that of the target where it forbids the one that is asked for: a list
    of types, or true for all."""
    lenient: bool = False
    """Entries of `layers` without effect are warned about; otherwise they are errors."""

    @classmethod
    def complete(cls, content: dict[str, Any]) -> dict[str, Any]:
        """See `Section.complete`."""
        return with_type(content)

    @field_validator("weight_strategy")
    @classmethod
    def _require_known(cls, name: str) -> str:
        return known_strategy(name)

    @field_validator("with_winograd")
    @classmethod
    def _no_winograd(cls, wanted: bool) -> bool:  # noqa: FBT001 - pydantic calls it so
        return without_winograd(wanted=wanted)

    @field_validator("unify_scales_for_multi_inputs_operators")
    @classmethod
    def _known_rules(cls, text: str) -> str:
        parsed_unify(text)
        return text

    @property
    def unify_rules(self) -> tuple[UnifyRule, ...]:
        """The rules of `unify_scales_for_multi_inputs_operators`."""
        return parsed_unify(self.unify_scales_for_multi_inputs_operators)

    @model_validator(mode="after")
    def _makes_sense(self) -> QuantizeConfig:
        check_widths(self.dtype, self.activation_bits)
        if self.weight_bits is not None and self.weight_bits < 4 and not self.weight_only:
            raise ValueError(
                f"weight_bits = {self.weight_bits}: codes have 4 to 16 bits, unless weight_only = true"
            )
        if self.per_block and not self.weight_only:
            _check_blocks(self.weight_bits, self.weight_block_size)
        if not self.weight_only:
            _check_weights(self.weight_mode, self.weight_strategy)
        if "weight_block_size" in self.model_fields_set and not self.per_block:
            raise ValueError("weight_block_size has no effect without per_block = true")
        for key in ("unify_scales_for_concat_threshold", "unify_scales_for_concat_max_depth"):
            if key in self.model_fields_set and not self.unify_scales_for_concat:
                raise ValueError(f"{key} has no effect without unify_scales_for_concat = true")
        return self

    @property
    def weight_width(self) -> int:
        """Width of weights that are codes."""
        return self.weight_bits or (8 if self.dtype == "int8" else 16)

    @property
    def grid_bits(self) -> int:
        """Width of the grid of activations that are codes."""
        whole = 8 if self.dtype == "int8" else 16
        return whole if self.activation_bits is None else min(whole, self.activation_bits)


def without_winograd(*, wanted: bool) -> bool:
    """`wanted`, which must be false.

    Raises:
        ValueError: It is not.
    """
    if wanted:
        raise ValueError("the machine has no Winograd convolution: leave it out")
    return wanted


def _check_blocks(bits: int | None, size: int) -> None:
    if bits != 4:
        raise ValueError("per_block needs weight_bits = 4, or weight_only = true for layers in floats")
    if size not in {16, 32, 64, 128}:
        raise ValueError(
            f"weight_block_size = {size}: weights of 4 bits have blocks of 16, 32, 64 or 128 rows"
        )


def _check_weights(mode: str, strategy: str) -> None:
    if mode == "asymmetric" and strategy != "extrema":
        raise ValueError(f"weight_strategy = {strategy} is for symmetric weights")


def check_widths(dtype: str | None, bits: int | None) -> None:
    """That elements of a type may have codes of so many bits.

    Raises:
        ValueError: They may not.
    """
    if bits is None or dtype is None:
        return
    if dtype in FLOATS:
        raise ValueError(f"activation_bits = {bits} has no meaning for {dtype}")
    if (bits > 8) != (dtype == "int16"):
        raise ValueError(f"activation_bits = {bits} contradicts dtype = {dtype}")
