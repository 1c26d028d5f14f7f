"""A whole configuration: its sections, and what differs by layer.

The fields of `quantize` and `calibrate` in which layers may differ are those of an entry of `layers` too,
unset. An unknown key is an error that suggests the nearest known one, and so are fields that contradict each
other. An entry of `layers` that matches nothing, or asks for what a layer cannot do, is an error where the
network is quantised, since only there it is known.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError, create_model, field_validator, model_validator

from tpuflow.config.calibration import CalibrationConfig, power_of_two_bins
from tpuflow.config.evaluation import EvaluateConfig
from tpuflow.config.input import InputConfig
from tpuflow.config.naming import OutputConfig
from tpuflow.config.preprocess import PreprocessConfig
from tpuflow.config.quantization import (
    FLOATS,
    QuantizeConfig,
    check_widths,
    with_type,
    without_winograd,
)
from tpuflow.config.schedule import ScheduleConfig
from tpuflow.config.section import ConfigError, Section, also, is_per_layer
from tpuflow.config.spellings import COMPOUNDS, PRESETS, QUANT_TYPES
from tpuflow.config.strategies import known_strategy, parsed_trim

__all__ = ["SECTIONS", "SELECTORS", "Config", "LayerConfig"]

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
    """Settings of some layers and tensors; unset fields stay as they are.

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
    def complete(cls, content: dict[str, Any]) -> dict[str, Any]:
        """See `Section.complete`."""
        return with_type(content)

    @field_validator("strategy", "weight_strategy", check_fields=False)
    @classmethod
    def _require_known(cls, name: str | None) -> str | None:
        return None if name is None else known_strategy(name)

    @field_validator("trim_infinity", check_fields=False)
    @classmethod
    def _trims(cls, text: str | None) -> str | None:
        parsed_trim(text or "")
        return text

    @field_validator("bins", check_fields=False)
    @classmethod
    def _halves(cls, bins: int | None) -> int | None:
        return None if bins is None else power_of_two_bins(bins)

    @field_validator("with_winograd", check_fields=False)
    @classmethod
    def _no_winograd(cls, wanted: bool | None) -> bool | None:  # noqa: FBT001 - pydantic calls it so
        return None if wanted is None else without_winograd(wanted=wanted)

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
                raise ValueError(f"ids {low} to {high} are not a range of layers: write [first, last]")
        if self.regex is not None:
            try:
                re.compile(self.regex)
            except re.error as error:
                raise ValueError(f'"{self.regex}" is not a regular expression: {error}') from None
        values = self.overrides()
        check_widths(values.get("dtype"), values.get("activation_bits"))
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

    def explicit_fields(self) -> dict[str, Any]:
        """The fields that are set one by one: what a preset sets goes together, and need not all matter."""
        found = self.overrides()
        presets = [preset for preset in QUANT_TYPES.values() if preset and preset.items() <= found.items()]
        implied = {key for preset in presets for key in preset}
        return {key: value for key, value in found.items() if key not in implied}

    def fits(self, name: str) -> bool:
        """Whether the entry is for a node or tensor of that name; case counts.

        Entries by operator and number fit names once `resolve_layers` has looked them up.
        """
        if self.names is not None:
            return name in self.names
        if self.regex is not None:
            return re.fullmatch(self.regex, name) is not None
        return self.match is not None and fnmatchcase(name, self.match)


class Config(Section):
    """A whole configuration."""

    input: InputConfig = InputConfig()
    """The input of a build."""
    quantize: QuantizeConfig = QuantizeConfig()
    """Defaults of every layer."""
    calibrate: CalibrationConfig = CalibrationConfig()
    """Calibration."""
    layers: tuple[LayerConfig, ...] = ()
    """Exceptions by layer, in order; later entries win."""
    preprocess: PreprocessConfig | None = None
    """Preparation of images inside the program; without this section there is none."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Parameters of the schedule, in place of those of its level."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """How results are evaluated."""
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
    def loading(self) -> dict[str, Any]:
        """The arguments of `tpuflow.load` that the configuration sets."""
        return {"preprocess": self.preprocess, "rewrites": self.input.rewrites}

    @property
    def needs_ranges(self) -> bool:
        """Whether any layer may have codes."""
        dtypes = [self.quantize.dtype, *(entry.overrides().get("dtype", "float32") for entry in self.layers)]
        falls_back = self.quantize.fallback is not None and self.quantize.target != "any"
        return falls_back or not FLOATS.issuperset(dtypes)

    @property
    def takes_ranges(self) -> bool:
        """Whether ranges are no mistake: some layer may have codes, or floats are only preferred to them."""
        return self.needs_ranges or self.quantize.fallback is not None

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

    def quantization(self, *names: str) -> QuantizeConfig:
        """How a layer is quantised.

        Args:
            names: Of its node and tensors.
        """
        return self._quantized_by([entry for entry in self.layers if any(map(entry.fits, names))])

    def for_array(self, columns: int) -> Config:
        """The same for an array of so many columns, unless it says how many there are."""
        if "array_columns" in self.quantize.model_fields_set or self.quantize.array_columns == columns:
            return self
        return self.model_copy(
            update={"quantize": self.quantize.model_copy(update={"array_columns": columns})}
        )

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
    "input": InputConfig,
    "quantize": QuantizeConfig,
    "calibrate": CalibrationConfig,
    "layers": LayerConfig,
    "preprocess": PreprocessConfig,
    "schedule": ScheduleConfig,
    "evaluate": EvaluateConfig,
    "output": OutputConfig,
}
"""Fields by section of a file."""


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
