"""The configuration file: what to quantise how, as frozen models read from TOML.

    [quantize]                      # defaults for the whole network
    dtype = "int8"
    activation_mode = "asymmetric"

    [calibrate]
    strategy = "mse"

    [preprocess]                    # the program takes raw images
    mean = [123.675, 116.28, 103.53]
    std = [58.395, 57.12, 57.375]

    [[layers]]                      # later entries win over earlier ones
    match = "*/attn/*"              # shell pattern on the names of nodes and tensors
    dtype = "int16"

An unknown key is an error that suggests the nearest known one; an entry of `layers` that matches nothing,
or asks for what a layer cannot do, is an error where the network is quantised.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tpuflow.errors import TpuflowError

__all__ = [
    "SECTIONS",
    "STRATEGIES",
    "CalibrationConfig",
    "Config",
    "ConfigError",
    "LayerConfig",
    "PreprocessConfig",
    "QuantizeConfig",
    "load_config",
]

STRATEGIES = ("extrema", "mean", "percentile", "mse", "kld")
"""Names of calibration strategies; `tpuflow.calibrate.STRATEGIES` holds what they do."""


class ConfigError(TpuflowError):
    """A configuration file or value is wrong; the text names the key."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


DType = Literal["int8", "int16", "float16", "bfloat16", "float32"]
"""Element types of activations: integer codes on a grid, or floats, which need none."""

FLOATS = frozenset({"float16", "bfloat16", "float32"})
"""Types whose tensors need no ranges."""


class QuantizeConfig(_Section):
    """How tensors are stored, for the whole network."""

    dtype: DType = "int8"
    """Element type of activations, and of weights unless `weight_bits` says otherwise. Of floating types only
    `fuse_tables` has an effect."""
    output_dtype: Literal["int8", "int16"] = "int16"
    """Element type of what a network returns, where its layers are int8: the sums have the bits, so the last
    rounding need not be the coarsest. Operators that only pass codes on keep theirs."""
    activation_mode: Literal["asymmetric", "symmetric_full", "symmetric_restricted"] = "asymmetric"
    """Grid of activations; 16-bit activations are symmetric in any case."""
    unsigned: bool = False
    """Symmetric grids of tensors that are never negative spend all codes on positive numbers."""
    weight_bits: Literal[8, 16] | None = None
    """Width of weights; unset: that of the layer's `dtype`."""
    weight_mode: Literal["symmetric_restricted", "symmetric_full"] = "symmetric_restricted"
    """Grid of weights."""
    per_channel: bool = True
    """One weight scale per output channel; otherwise one per tensor."""
    bias_bits: int = Field(default=32, ge=16, le=32)
    """Significant bits of the biases of 8-bit layers."""
    bias_bits_16: int = Field(default=48, ge=16, le=48)
    """Significant bits of the biases of layers with a 16-bit operand."""
    multiplier_bits: int = Field(default=15, ge=2, le=15)
    """Width of the multiplier of a requantisation."""
    table_bits: int = Field(default=10, ge=8, le=16)
    """A function of a 16-bit operand is sampled at `2^table_bits + 1` points."""
    headroom_16: float = Field(default=2.0, ge=1.0, le=16.0)
    """How many times the calibrated range 16-bit grids reach: a clipped peak costs more than a bit."""
    target: str = "any"
    """What the layers may be: the name of a built-in target, or a TOML or JSON file."""
    quant_input: bool = False
    """Inputs are taken as the codes they are stored in, without a cast from floats."""
    quant_output: bool = False
    """Outputs are given as the codes they are stored in, without a cast to floats."""
    fuse_tables: bool = True
    """Functions behind a linear operator read its 16-bit intermediate; otherwise the stored tensor."""


class LayerConfig(_Section):
    """What differs for the layers and tensors whose name fits a pattern; unset fields stay as they are."""

    match: str = Field(min_length=1)
    """Shell pattern (`*`, `?`, `[...]`) on names of nodes and tensors."""
    dtype: DType | None = None
    """Element type of the output and the weights."""
    activation_mode: Literal["asymmetric", "symmetric_full", "symmetric_restricted"] | None = None
    """Grid of the output."""
    unsigned: bool | None = None
    """As for the whole network."""
    weight_bits: Literal[8, 16] | None = None
    """Width of weights."""
    weight_mode: Literal["symmetric_restricted", "symmetric_full"] | None = None
    """Grid of weights."""
    per_channel: bool | None = None
    """One weight scale per output channel."""

    def overrides(self) -> dict[str, Any]:
        """The fields that are set, without the pattern."""
        return self.model_dump(exclude={"match"}, exclude_none=True)

    def fits(self, name: str) -> bool:
        """Whether the pattern fits a name; case counts."""
        return fnmatchcase(name, self.match)


class CalibrationConfig(_Section):
    """How ranges of activations are found."""

    strategy: str = "mse"
    """Name of an entry of `STRATEGIES`."""
    percentile: float = Field(default=99.99, gt=0, le=100)
    """Share of a tensor's values, in percent of all, that stay unclipped (`percentile`)."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Weight of the past in a running range, `run = m * run + (1 - m) * batch` (`mean`)."""
    bins: int = Field(default=2048, ge=2, le=65536)
    """Least number of histogram bins from zero to the largest magnitude, a power of two."""
    bits: int = Field(default=8, ge=2, le=16)
    """Width of the codes the range is meant for (`mse`, `kld`); unset in a whole configuration: that of the
    tensor's `dtype`."""
    symmetric: bool = False
    """Whether the zero point will be fixed at 0 (`mse`); unset in a whole configuration: whether the tensor's
    grid is symmetric."""
    unsigned: bool = False
    """Whether symmetric grids of tensors that are never negative have positive codes only (`mse`); unset in a
    whole configuration: as for the tensor's grid."""
    clip_weight: float = Field(default=8, ge=1, allow_inf_nan=False)
    """How often squared errors of clipped values count (`mse`); 1 is the plain mean."""
    memory_mib: int = Field(default=512, ge=1)
    """Activations held at a time; a model with more of them is run in segments."""

    @field_validator("strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in STRATEGIES:
            raise ValueError(f'"{name}" is not a calibration strategy, choose one of {", ".join(STRATEGIES)}')
        return name

    @field_validator("bins")
    @classmethod
    def _halves(cls, bins: int) -> int:
        if bins & (bins - 1):
            raise ValueError(f"{bins} is not a power of two, which bins must be to widen without loss")
        return bins

    @property
    def codes(self) -> tuple[int, int]:
        """Smallest and largest signed code of `bits`."""
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1


Pixels = Literal["rgb", "bgr", "gray", "rgba", "bgra"]


class PreprocessConfig(_Section):
    """What is done to an image before the network, inside the program: its input is the raw image, bytes.

    In this order: centre crop, resize, pad, centre crop to the network's size, channels, (x - mean) * scale.
    """

    input: str = ""
    """Input of the network that takes the image; unset: its only image."""
    image_size: tuple[int, int] | None = None
    """Height and width of the raw image; unset: what needs no resizing."""
    image_format: Pixels = "rgb"
    """Channels of the raw image."""
    channel_format: Literal["nhwc", "nchw"] = "nhwc"
    """Layout of the raw image."""
    pixel_format: Pixels | None = None
    """Channels the network takes; unset: those of the raw image."""
    mean: tuple[float, ...] = (0.0,)
    """Subtracted from the pixels: one number, or one per channel the network takes."""
    scale: tuple[float, ...] = (1.0,)
    """What the rest is multiplied with: one number, or one per channel."""
    std: tuple[float, ...] | None = None
    """Its inverse, instead of `scale`."""
    crop_ratio: float = Field(default=1.0, gt=0, le=1)
    """Only the square in the middle of the raw image, of this share of its shorter side; 1: all of it."""
    resize_dims: tuple[int, int] | None = None
    """Height and width the image is resized to, cropped to the network's if larger; unset: the network's."""
    keep_aspect_ratio: bool = False
    """Resize both sides by the same factor and pad the rest."""
    pad_value: float = Field(default=0.0, ge=0, le=255)
    """Pixel the rest is filled with, before mean and scale."""
    pad_type: Literal["normal", "center"] = "normal"
    """Where the rest lies: below and to the right, or on all sides."""

    @model_validator(mode="after")
    def _makes_sense(self) -> PreprocessConfig:
        if self.std is not None and "scale" in self.model_fields_set:
            raise ValueError("scale and std are given: give one of them")
        if self.std is not None and not all(self.std):
            raise ValueError("std holds 0, by which nothing can be divided")
        for name, sizes in (("image_size", self.image_size), ("resize_dims", self.resize_dims)):
            if sizes is not None and min(sizes) < 1:
                raise ValueError(f"{name} {list(sizes)} holds a size below 1")
        return self

    @property
    def factors(self) -> tuple[float, ...]:
        """What centred pixels are multiplied with."""
        return self.scale if self.std is None else tuple(1 / value for value in self.std)


class Config(_Section):
    """A whole configuration file."""

    quantize: QuantizeConfig = QuantizeConfig()
    """Defaults of every layer."""
    calibrate: CalibrationConfig = CalibrationConfig()
    """Calibration."""
    layers: tuple[LayerConfig, ...] = ()
    """Exceptions by name, in order; later entries win."""
    preprocess: PreprocessConfig | None = None
    """Preparation of images inside the program; without this section there is none."""

    @model_validator(mode="after")
    def _entries_say_something(self) -> Config:
        for entry in self.layers:
            if not entry.overrides():
                raise ValueError(f'layers entry "{entry.match}" sets nothing')
        return self

    @property
    def needs_ranges(self) -> bool:
        """Whether any layer may have codes."""
        dtypes = [self.quantize.dtype, *(entry.dtype for entry in self.layers if entry.dtype is not None)]
        return not FLOATS.issuperset(dtypes)

    def calibration(self, *names: str) -> CalibrationConfig:
        """How a tensor is calibrated for the grid it will have.

        Width and symmetry follow from `quantize` and the entries of `layers` that fit; what the section
        `calibrate` says about them itself holds for every tensor.

        Args:
            names: Of the tensor and the nodes it comes from; without any, the defaults of the network.
        """
        grid: dict[str, Any] = self.quantize.model_dump()
        for entry in self.layers:
            if any(map(entry.fits, names)):
                grid |= entry.overrides()
        wide = grid["dtype"] == "int16"
        follows = {
            "bits": 16 if wide else 8,
            "symmetric": wide or grid["activation_mode"] != "asymmetric",
            "unsigned": grid["unsigned"],
        }
        stated = self.calibrate.model_fields_set
        return self.calibrate.model_copy(
            update={key: value for key, value in follows.items() if key not in stated}
        )

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
}
"""What stands in which section of a file."""


def load_config(path: Path | str) -> Config:
    """Reads a TOML file.

    Raises:
        ConfigError: If it cannot be read, is not TOML, or holds unknown keys or impossible values.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    return Config.parse(content, str(path))


def _section(location: tuple[int | str, ...]) -> type[BaseModel]:
    """The model that holds the key at `location`."""
    return SECTIONS.get(str(location[0]), Config) if len(location) > 1 else Config


def _problems(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        location = problem["loc"]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
        if problem["type"] == "extra_forbidden":
            known = _section(location).model_fields
            near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
            hint = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(known)}"
            yield f'unknown key "{path}", {hint}'
        else:
            message = problem["msg"].removeprefix("Value error, ")
            yield f"{path}: {message[:1].lower()}{message[1:]}" if path else message
