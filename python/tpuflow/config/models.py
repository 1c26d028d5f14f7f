"""Every field of a configuration, with default, limits and meaning, as frozen models.

An unknown key is an error that suggests the nearest known one, and so are fields that contradict each other.
An entry of `layers` that matches nothing, or asks for what a layer cannot do, is an error where the network
is quantised, since only there it is known.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, create_model, field_validator, model_validator

from tpuflow.config.chain import GlobalMethod, parsed_chain
from tpuflow.config.judging import EvaluateConfig
from tpuflow.config.naming import OutputConfig
from tpuflow.config.preprocess import PreprocessConfig
from tpuflow.config.schedule import ScheduleConfig
from tpuflow.config.section import Also, ConfigError, PerLayer, Section, also, is_per_layer
from tpuflow.config.spellings import COMPOUNDS, PRESETS, QUANT_TYPES
from tpuflow.config.strategies import STRATEGIES, parsed_strategy, parsed_trim
from tpuflow.config.unify import UnifyRule, parsed_unify

__all__ = [
    "FLOATS",
    "SECTIONS",
    "STRATEGIES",
    "CalibrationConfig",
    "Config",
    "DType",
    "LayerConfig",
    "QuantizeConfig",
]

DType = Literal["int8", "int16", "float16", "bfloat16", "float32"]
"""Element types of activations: integer codes on a grid, or floats, which need none."""

FLOATS = frozenset({"float16", "bfloat16", "float32"})
"""Types whose tensors need no ranges."""

ActivationMode = Literal["asymmetric", "symmetric_full", "symmetric_restricted"]
WeightMode = Literal["symmetric_restricted", "symmetric_full", "asymmetric"]


def _typed(content: dict[str, Any]) -> dict[str, Any]:
    """A width of activations says which type holds them."""
    bits = content.get("activation_bits")
    if isinstance(bits, int) and content.get("dtype") is None:
        content["dtype"] = "int8" if bits <= 8 else "int16"
    return content


class QuantizeConfig(Section):
    """How tensors are stored, for the whole network."""

    dtype: Annotated[DType, PerLayer()] = "int8"
    """Element type of activations, and of weights unless `weight_bits` says otherwise. Of floating types only
    `fuse_tables` and `weight_only` have an effect."""
    output_dtype: Literal["int8", "int16"] = "int16"
    """Element type of what a network returns, where its layers are int8: the sums have the bits, so the last
    rounding need not be the coarsest. Operators that only pass codes on keep theirs."""
    wide_norms: bool = True
    """What norms read has 16 bits, where its layers are int8, and so has what is added up for it."""
    wide_softmax: bool = True
    """What softmax reads and gives has 16 bits, where its layers are int8."""
    activation_bits: Annotated[int | None, PerLayer(), Also("q_bits_activation"), Field(ge=8, le=16)] = None
    """Width of the grid of activations, at most that of their type; alone it chooses the type: int8 for 8,
    else int16. Unset: all of the type."""
    activation_mode: Annotated[ActivationMode, PerLayer()] = "asymmetric"
    """Grid of activations; 16-bit activations are symmetric in any case."""
    unsigned: Annotated[bool, PerLayer()] = False
    """Symmetric grids of tensors that are never negative spend all codes on positive numbers."""
    force_dtype_int: Annotated[bool, PerLayer()] = False
    """Symmetric grids have negative codes even where nothing is negative, whatever `unsigned` says."""
    power_of_two: Annotated[bool, PerLayer()] = False
    """Scales of activations and weights are powers of two, so that rescaling is a shift alone."""
    weight_bits: Annotated[int | None, PerLayer(), Also("q_bits_weight"), Field(ge=4, le=16)] = None
    """Width of weights; unset: that of `dtype`. Up to 8 bits are stored as int8, more as int16."""
    weight_mode: Annotated[WeightMode, PerLayer()] = "symmetric_restricted"
    """Grid of weights; an asymmetric one has a single zero point, so it goes with `per_channel = false`."""
    weight_strategy: Annotated[
        str, PerLayer(), Also("calibration_strategy_for_weight", "q_strategy_weight")
    ] = "extrema"
    """Calibration strategy of weights, one of those of activations: per channel, or per tensor."""
    per_channel: Annotated[bool, PerLayer()] = True
    """One weight scale per output channel; otherwise one per tensor."""
    weight_only: Annotated[bool, PerLayer()] = False
    """Linear layers in floats have weights that stand for codes of `weight_bits` bits (unset: 8), each
    channel's with a scale of their own. Programs hold the floats these codes stand for."""
    per_block: Annotated[bool, PerLayer()] = False
    """One scale per block of a channel's weights, where layers have `weight_only`."""
    weight_block_size: Annotated[int, PerLayer(), Field(ge=1)] = 256
    """Weights in a block; the last one of a channel is as long as what is left."""
    bias_correction: Annotated[bool, PerLayer()] = True
    """Biases make up for what the rounding of weights adds to sums on average, and those of last layers for
    the mean error of outputs."""
    bias_bits: Annotated[int | None, PerLayer(), Also("q_bits_bias"), Field(ge=16, le=48)] = None
    """Width of biases. Layers of 8-bit operands hold at most 32 bits. Unset: 32, or 48 where an operand has
    16 bits."""
    bias_effective_bits: Annotated[int | None, PerLayer(), Field(ge=16, le=48)] = None
    """Of a layer's biases only so many high bits are kept, the lower ones are 0. Unset: all."""
    remain_shift: Annotated[int | None, PerLayer(), Field(ge=0, le=32)] = None
    """Sums of 16-bit operands are rounded to 32 bits before their biases are added; so many bits of the
    requantisation's shift are left for after that. Channels need one shift then. Unset: one rounding."""
    multiplier_bits: Annotated[int, PerLayer(), Field(ge=2, le=15)] = 15
    """Width of the multiplier of a requantisation."""
    unify_shifts: Annotated[bool, PerLayer(), Also("unify_shifts_for_aiff")] = False
    """All channels of a requantisation share one shift, at the price of bits of small multipliers."""
    force_shift_positive: Annotated[bool, PerLayer()] = False
    """Requantisations never shift to the left: factors too large for that saturate."""
    table_bits: Annotated[int, PerLayer(), Also("lut_items_in_bits"), Field(ge=8, le=16)] = 10
    """A function of a 16-bit operand is sampled at `2^table_bits + 1` points."""
    headroom_16: float = Field(default=2.0, ge=1.0, le=16.0)
    """How many times the calibrated range 16-bit grids reach: a clipped peak costs more than a bit."""
    resize_degrade_to_nearest: Annotated[bool, PerLayer()] = False
    """Bilinear and cubic resizing takes the nearest cell instead."""
    with_winograd: Annotated[bool, PerLayer()] = False
    """Winograd convolutions, which the machine does not have: only false."""
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
    qinvariant: Annotated[tuple[int | str, ...], Also("set_qinvariant_for_start_nodes")] = ()
    """Inputs, by number or name, whose values are their codes: scale 1, zero point 0."""
    target: str = "any"
    """What the layers may be: the name of a built-in target, or a TOML or JSON file."""
    quant_input: bool = False
    """Inputs are taken as the codes they are stored in, without a cast from floats."""
    quant_output: bool = False
    """Outputs are given as the codes they are stored in, without a cast to floats."""
    fuse_tables: bool = True
    """Functions behind a linear operator read its 16-bit intermediate; otherwise the stored tensor."""
    swish_layer_mode: Literal["function", "product"] = "function"
    """`x * sigmoid(x)` and its hard form: one function of x, or the product of the stored x and its stored
    gate, as they are written. In floats they are the same."""
    fake_quant_operators: Annotated[tuple[str, ...], Also("fake_quant_operators_for_debug")] = ()
    """For debugging: operators of these types compute in float32, whatever else is said of them."""
    fake_quant_scopes: Annotated[tuple[tuple[int, int], ...], Also("fake_quant_scopes_for_debug")] = ()
    """For debugging: layers of these ranges of numbers, inputs first, compute in float32."""
    lenient: bool = False
    """Entries of `layers` without effect are warned about; otherwise they are errors."""

    @classmethod
    def completed(cls, content: dict[str, Any]) -> dict[str, Any]:
        """See `Section.completed`."""
        return _typed(content)

    @field_validator("weight_strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        return _known_strategy(name)

    @field_validator("with_winograd")
    @classmethod
    def _no_winograd(cls, wanted: bool) -> bool:  # noqa: FBT001 - pydantic calls it so
        return _without_winograd(wanted=wanted)

    @field_validator("unify_scales_for_multi_inputs_operators")
    @classmethod
    def _known_rules(cls, text: str) -> str:
        parsed_unify(text)
        return text

    @property
    def unify_rules(self) -> tuple[UnifyRule, ...]:
        """What `unify_scales_for_multi_inputs_operators` says."""
        return parsed_unify(self.unify_scales_for_multi_inputs_operators)

    @model_validator(mode="after")
    def _makes_sense(self) -> QuantizeConfig:
        _check_widths(self.dtype, self.activation_bits)
        if self.per_block and not self.weight_only:
            raise ValueError("blocks are for weights of layers in floats: per_block needs weight_only = true")
        if not self.weight_only:
            _check_weights(self.weight_mode, self.weight_strategy, per_channel=self.per_channel)
        if "weight_block_size" in self.model_fields_set and not self.per_block:
            raise ValueError("weight_block_size has no effect without per_block = true")
        for key in ("unify_scales_for_concat_threshold", "unify_scales_for_concat_max_depth"):
            if key in self.model_fields_set and not self.unify_scales_for_concat:
                raise ValueError(f"{key} has no effect without unify_scales_for_concat = true")
        return self

    @property
    def grid_bits(self) -> int:
        """Width of the grid of activations that are codes."""
        whole = 8 if self.dtype == "int8" else 16
        return whole if self.activation_bits is None else min(whole, self.activation_bits)


def _without_winograd(*, wanted: bool) -> bool:
    if wanted:
        raise ValueError("the machine has no Winograd convolution: leave it out")
    return wanted


def _check_weights(mode: str, strategy: str, *, per_channel: bool) -> None:
    if mode == "asymmetric" and per_channel:
        raise ValueError("asymmetric weights have one zero point: they need per_channel = false")
    if mode == "asymmetric" and strategy != "extrema":
        raise ValueError(f"weight_strategy = {strategy} is for symmetric weights")


def _check_widths(dtype: str | None, bits: int | None) -> None:
    if bits is None or dtype is None:
        return
    if dtype in FLOATS:
        raise ValueError(f"activation_bits = {bits} has no meaning for {dtype}")
    if (bits > 8) != (dtype == "int16"):
        raise ValueError(f"activation_bits = {bits} contradicts dtype = {dtype}")


class CalibrationConfig(Section):
    """How ranges of activations are found."""

    strategy: Annotated[
        str, PerLayer(), Also("calibration_strategy_for_activation", "q_strategy_activation")
    ] = "mse"
    """Calibration strategy, which may carry numbers: `extrema`, `mean`, `mse`, `mae` (least magnitudes of
    errors), `lp[p]` (least p-th powers of them), `[R]percentile` (R times the extrema), `pct[p]` (a true
    percentile), `[N]std`, `[N]kld`, `[R]aciq_laplace`, `[R]aciq_gauss`, `weighted_scale_param[r1,r2,r3,r4]`,
    `in_ir` (ranges the model states in its metadata). None weighs errors by second derivatives."""
    percentile: Annotated[float, PerLayer(), Field(gt=0, le=100)] = 99.99
    """Share of a tensor's values, in percent of all, that stay unclipped (`pct` without a number)."""
    momentum: Annotated[float, PerLayer(), Also("running_statistic_momentum"), Field(ge=0, lt=1)] = 0.9
    """Weight of the past in a running range, `run = m * run + (1 - m) * batch` (`mean`)."""
    batch_size: Annotated[int, Also("calibration_batch_size"), Field(ge=1)] = 1
    """Batches of the model that make one step of a running range (`mean`)."""
    trim_infinity: Annotated[str, PerLayer(), Also("trim_infinity_before_statistic")] = ""
    """What is done to values before they count: `clip(a,b)` holds them within a and b; `second(a,b)` holds
    them within the extrema of those strictly between a and b. Unset: nothing."""
    z_threshold: Annotated[float, PerLayer(), Field(ge=0, allow_inf_nan=False)] = 0
    """Values further from a tensor's mean than so many of its standard deviations are left out before its
    range is chosen; 0: none are."""
    bins: Annotated[int, PerLayer(), Also("histc_bins"), Field(ge=2, le=65536)] = 2048
    """Least number of histogram bins from zero to the largest magnitude, a power of two."""
    count_all: bool = False
    """Histograms count every value. Else, of a tensor with more than 65536 values a batch, a quarter at
    fixed places stands for all but the largest; extrema are always those of all values, and so is what `pct`
    reads."""
    bits: int = Field(default=8, ge=2, le=16)
    """Width of the codes the range is meant for (`mse`, `kld`); unset in a whole configuration: that of the
    tensor's `dtype`."""
    symmetric: bool = False
    """Whether the zero point will be fixed at 0 (`mse`); unset in a whole configuration: whether the tensor's
    grid is symmetric."""
    unsigned: bool = False
    """Whether symmetric grids of tensors that are never negative have positive codes only (`mse`); unset in a
    whole configuration: as for the tensor's grid."""
    clip_weight: Annotated[float, PerLayer(), Field(ge=1, allow_inf_nan=False)] = 16
    """How often squared errors of clipped values count (`mse`); 1 is the plain mean."""
    statistic_file: str = ""
    """Ranges come from the statistics saved in this file; samples are not read, unless
    `ignore_missing_statistic` is set and it lacks tensors."""
    ignore_missing_statistic: bool = False
    """Tensors that file lacks are watched in samples, with a warning; else they are an error."""
    save_statistic_info: str = ""
    """File to save the statistics of every tensor in, to be edited and read again with `statistic_file`."""
    shuffle: Annotated[bool, Also("calibration_shuffe", "calibration_shuffle")] = False
    """Samples are taken in another order, which running ranges depend on."""
    shuffle_seed: int = Field(default=0, ge=0)
    """Seed of that order."""
    no_data: Literal["generated", "zeros"] = "generated"
    """What stands in for samples where there are none."""
    equalize: bool = True
    """Channels are scaled within the float network, which computes the same, where that brings the outputs of
    samples closer to float. It needs samples: of ranges alone nothing is equalised."""
    tune: bool = True
    """Ranges are tuned on what their readers make of them (`auto_tune`) where that brings outputs closer to
    float on samples held out. It needs samples, and that neither a strategy nor methods are chosen."""
    global_calibration: str = "none"
    """Methods that follow once ranges are known, joined by `&`: `equalize`, `smooth_quant[alpha]`,
    `easy_quant[batches,epochs,alpha,beta,nsteps,ngroups]`, `auto_tune[batches,candidates]`,
    `svd_quant[mode,alpha,beta,nsteps,thresh]`, `gptq`, `adaround[Conv]`, `adaquant_zy{blocks.*}`; each with
    its numbers and its scope in brackets, or names in braces. One that brings outputs no closer to float is
    undone."""
    memory_mib: int = Field(default=512, ge=1)
    """Activations held at a time; a model with more of them is run in segments."""

    @field_validator("strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        return _known_strategy(name)

    @field_validator("global_calibration")
    @classmethod
    def _chain(cls, text: str) -> str:
        parsed_chain(text)
        return text

    @property
    def chain(self) -> tuple[GlobalMethod, ...]:
        """The methods of global calibration, in order."""
        return parsed_chain(self.global_calibration)

    @field_validator("trim_infinity")
    @classmethod
    def _trims(cls, text: str) -> str:
        parsed_trim(text)
        return text

    @property
    def method(self) -> tuple[str, tuple[float, ...]]:
        """The strategy without its numbers, and its numbers."""
        return parsed_strategy(self.strategy)

    @field_validator("bins")
    @classmethod
    def _halves(cls, bins: int) -> int:
        return _power_of_two(bins)

    @property
    def codes(self) -> tuple[int, int]:
        """Smallest and largest signed code of `bits`."""
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1


def _power_of_two(bins: int) -> int:
    if bins & (bins - 1):
        raise ValueError(f"{bins} is not a power of two, which bins must be to widen without loss")
    return bins


def _known_strategy(name: str) -> str:
    parsed_strategy(name)
    return name


if TYPE_CHECKING:

    class _Overrides(Section):
        pass

else:
    # The fields in which layers may differ, unset: there is no second list of them.
    _Overrides = create_model(
        "_Overrides",
        __base__=Section,
        **{
            name: (
                Annotated[(field.annotation | None, *field.metadata)],
                Field(default=None),
            )
            for section in (QuantizeConfig, CalibrationConfig)
            for name, field in section.model_fields.items()
            if is_per_layer(field)
        },
    )

SELECTORS = ("match", "names", "operators", "ids", "regex")


class LayerConfig(_Overrides):
    """What differs for some layers and tensors; unset fields stay as they are.

    One of the first five fields says which layers.
    """

    match: str | None = Field(default=None, min_length=1)
    """Shell pattern (`*`, `?`, `[...]`) on names of nodes and tensors."""
    names: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Names of nodes and tensors, letter by letter."""
    operators: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Operator types of the normalised model, such as Conv."""
    ids: tuple[tuple[int, int], ...] | None = Field(default=None, min_length=1)
    """Ranges of layers by number, first and last: inputs first, then the nodes of the normalised model."""
    regex: str | None = Field(default=None, min_length=1)
    """Regular expression that fits whole names of nodes or tensors."""

    @classmethod
    def completed(cls, content: dict[str, Any]) -> dict[str, Any]:
        """See `Section.completed`."""
        return _typed(content)

    @field_validator("strategy", "weight_strategy", check_fields=False)
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        return None if name is None else _known_strategy(name)

    @field_validator("trim_infinity", check_fields=False)
    @classmethod
    def _trims(cls, text: str | None) -> str | None:
        parsed_trim(text or "")
        return text

    @field_validator("bins", check_fields=False)
    @classmethod
    def _halves(cls, bins: int | None) -> int | None:
        return None if bins is None else _power_of_two(bins)

    @field_validator("with_winograd", check_fields=False)
    @classmethod
    def _no_winograd(cls, wanted: bool | None) -> bool | None:  # noqa: FBT001 - pydantic calls it so
        return None if wanted is None else _without_winograd(wanted=wanted)

    @model_validator(mode="after")
    def _makes_sense(self) -> LayerConfig:
        given = [name for name in SELECTORS if getattr(self, name) is not None]
        if len(given) != 1:
            told = " and ".join(given) or "none"
            raise ValueError(
                f"one of {', '.join(SELECTORS)} says which layers an entry is for, there is {told}"
            )
        if not self.overrides():
            raise ValueError(f'layers entry "{self.where}" sets nothing')
        for low, high in self.ids or ():
            if not 0 <= low <= high:
                raise ValueError(f"ids {low} to {high} are no range of layers")
        if self.regex is not None:
            try:
                re.compile(self.regex)
            except re.error as error:
                raise ValueError(f'"{self.regex}" is no regular expression: {error}') from None
        values = self.overrides()
        _check_widths(values.get("dtype"), values.get("activation_bits"))
        return self

    @property
    def where(self) -> str:
        """Which layers the entry is for, as text."""
        if self.ids is not None:
            return ", ".join(f"({low},{high})" for low, high in self.ids)
        listed = self.names or self.operators
        return ", ".join(listed) if listed else self.match or self.regex or ""

    def overrides(self, section: type[Section] | None = None) -> dict[str, Any]:
        """The fields that are set, of all sections or of one, without what says which layers."""
        found = self.model_dump(exclude=set(SELECTORS), exclude_none=True)
        if section is None:
            return found
        own = section.model_fields
        return {key: value for key, value in found.items() if key in own and is_per_layer(own[key])}

    def stated(self) -> dict[str, Any]:
        """The fields that are set one by one: what a preset sets goes together, and need not all matter."""
        found = self.overrides()
        presets = [preset for preset in QUANT_TYPES.values() if preset and preset.items() <= found.items()]
        implied = {key for preset in presets for key in preset}
        return {key: value for key, value in found.items() if key not in implied}

    def fits(self, name: str) -> bool:
        """Whether the entry is for a node or tensor of that name; case counts.

        Entries by operator and number fit names once `scoped` has looked them up.
        """
        if self.names is not None:
            return name in self.names
        if self.regex is not None:
            return re.fullmatch(self.regex, name) is not None
        return self.match is not None and fnmatchcase(name, self.match)


class Config(Section):
    """A whole configuration."""

    quantize: QuantizeConfig = QuantizeConfig()
    """Defaults of every layer."""
    calibrate: CalibrationConfig = CalibrationConfig()
    """Calibration."""
    layers: tuple[LayerConfig, ...] = ()
    """Exceptions by layer, in order; later entries win."""
    preprocess: PreprocessConfig | None = None
    """Preparation of images inside the program; without this section there is none."""
    schedule: ScheduleConfig = ScheduleConfig()
    """What a schedule may do, in place of what its level allows."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """What results are judged by."""
    output: OutputConfig = OutputConfig()
    """Names of what is written."""

    @model_validator(mode="after")
    def _refines_what_it_can(self) -> Config:
        modes = {self.quantize.weight_mode, *(entry.overrides().get("weight_mode") for entry in self.layers)}
        if self.calibrate.chain and "asymmetric" in modes:
            raise ValueError(
                "global_calibration refines symmetric weights: it cannot go with asymmetric ones"
            )
        return self

    @property
    def needs_ranges(self) -> bool:
        """Whether any layer may have codes."""
        dtypes = [self.quantize.dtype, *(entry.overrides().get("dtype", "float32") for entry in self.layers)]
        return not FLOATS.issuperset(dtypes)

    @property
    def tunes(self) -> bool:
        """Whether ranges may be tuned: wanted, and nobody chose how else they are found."""
        chosen = "strategy" in self.calibrate.model_fields_set or self.calibrate.chain
        return (
            self.calibrate.tune
            and not chosen
            and not any(e.overrides(CalibrationConfig) for e in self.layers)
        )

    def calibration(self, *names: str) -> CalibrationConfig:
        """How a tensor is calibrated for the grid it will have.

        Width and symmetry follow from `quantize` and the entries of `layers` that fit; what the section
        `calibrate` says about them itself holds for every tensor. A tensor in floats is calibrated for the
        codes it is cast to: those of the network, or the narrowest of single layers.

        Args:
            names: Of the tensor and the nodes it comes from; without any, the defaults of the network.
        """
        fitting = [entry for entry in self.layers if any(map(entry.fits, names))]
        grid = self._quantized_by(fitting)
        if grid.dtype in FLOATS:
            others = [self._quantized_by([entry]) for entry in self.layers]
            readers = others if self.quantize.dtype in FLOATS else [self.quantize]
            codes = (reader for reader in readers if reader.dtype not in FLOATS)
            grid = min(codes, key=lambda reader: reader.grid_bits, default=grid)
        follows = {
            "bits": grid.grid_bits,
            "symmetric": grid.dtype == "int16" or grid.activation_mode != "asymmetric",
            "unsigned": grid.unsigned and not grid.force_dtype_int,
        }
        stated = self.calibrate.model_fields_set
        changes = {key: value for key, value in follows.items() if key not in stated}
        for entry in fitting:
            changes |= entry.overrides(CalibrationConfig)
        return self.calibrate.model_copy(update=changes)

    def _quantized_by(self, entries: Sequence[LayerConfig]) -> QuantizeConfig:
        """How layers are quantised for which these entries hold, the last one first."""
        own = {key: value for entry in entries for key, value in entry.overrides(QuantizeConfig).items()}
        return self.quantize.model_copy(update=own)

    @classmethod
    def parse(cls, content: Mapping[str, Any], source: str = "configuration") -> Config:
        """Checks nested plain values.

        Raises:
            ConfigError: With every problem, each naming its key.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ConfigError(f"{source}: " + "; ".join(_problems(error))) from None


SECTIONS: Mapping[str, type[BaseModel]] = {
    "quantize": QuantizeConfig,
    "calibrate": CalibrationConfig,
    "layers": LayerConfig,
    "preprocess": PreprocessConfig,
    "schedule": ScheduleConfig,
    "evaluate": EvaluateConfig,
    "output": OutputConfig,
}
"""What stands in which section of a file."""


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys that may stand where `location` does, by all their names."""
    model = SECTIONS.get(str(location[0]), Config) if len(location) > 1 else Config
    fields = model.model_fields
    others = [name for field in fields.values() for name in also(field)]
    foreign = [*COMPOUNDS, *PRESETS] if "dtype" in fields else []
    return [*fields, *others, *foreign]


def _problems(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        location = problem["loc"]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
        if problem["type"] == "extra_forbidden":
            known = _known_keys(location)
            near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
            hint = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(known)}"
            yield f'unknown key "{path}", {hint}'
        else:
            message = problem["msg"].removeprefix("Value error, ")
            yield f"{path}: {message[:1].lower()}{message[1:]}" if path else message
