"""The restrictions of a target, by operator: a file beside the configuration, or a built-in one by name.

    name = "mine"

    [default]
    activations = ["int8", "int16"]     # element types of outputs
    weight_bits = [8]
    activation_modes = ["asymmetric", "symmetric_full", "symmetric_restricted"]
    unsigned = true                     # unsigned grids may be used
    per_channel = true                  # weights may have a scale per channel

    [[operators]]                       # later entries win; what they leave out is as above
    match = ["MatMul", "Softmax"]
    activations = ["int8"]

TOML or JSON. Choices quantisation makes on its own keep to what is allowed; one the configuration asks for
and the target forbids is an error that names the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpuflow.config import ConfigError, QuantizeConfig
from tpuflow.io.files import parse_json, parse_toml, read_text

__all__ = ["BUILT_IN", "Target", "load_target"]

ElementType = Literal["int8", "int16", "f16", "bf16", "f32"]
SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
"""Target files' names of the types of floats."""

Mode = Literal["asymmetric", "symmetric_full", "symmetric_restricted"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_Strict):
    """Limits of a target; unset ones are as elsewhere."""

    activations: tuple[ElementType, ...] | None = Field(default=None, min_length=1)
    weight_bits: tuple[Literal[8, 16], ...] | None = Field(default=None, min_length=1)
    activation_modes: tuple[Mode, ...] | None = Field(default=None, min_length=1)
    unsigned: bool | None = None
    per_channel: bool | None = None


class OperatorLimits(Limits):
    """Limits for some operators."""

    match: tuple[str, ...] = Field(min_length=1)


class Target(_Strict):
    """A target file."""

    name: str = Field(min_length=1)
    default: Limits = Limits()
    operators: tuple[OperatorLimits, ...] = ()

    def limits(self, operator: str) -> Limits:
        """The limits of an operator."""
        found = self.default.model_dump(exclude_none=True)
        for entry in self.operators:
            if operator in entry.match:
                found |= entry.model_dump(exclude={"match"}, exclude_none=True)
        return Limits(**found)

    def element_type(self, operator: str, layer: str, wanted: Any, fallback: Any | None) -> Any:
        """The element type of an output: the wanted one if allowed, else `fallback` if that is.

        Raises:
            ConfigError: If neither is.
        """
        for choice in (wanted, fallback):
            if choice is not None and self.allows(operator, choice):
                return choice
        allowed = self.limits(operator).activations
        raise self._not_allowed(layer, operator, f"{wanted} outputs", allowed or ())

    def allows(self, operator: str, dtype: str) -> bool:
        """Whether outputs of an operator may have an element type."""
        allowed = self.limits(operator).activations
        return allowed is None or SHORT.get(dtype, dtype) in allowed

    def adapt(self, operator: str, layer: str, config: QuantizeConfig) -> QuantizeConfig:
        """A layer's configuration with what it leaves open chosen among what is allowed.

        Raises:
            ConfigError: If it asks for what is not.
        """
        limits, stated = self.limits(operator), config.model_fields_set
        changes: dict[str, Any] = {}
        if limits.weight_bits is not None:
            bits = config.weight_bits or (8 if config.dtype == "int8" else 16)
            if bits not in limits.weight_bits:
                if config.weight_bits is not None:
                    raise self._not_allowed(layer, operator, f"{bits}-bit weights", limits.weight_bits)
                changes["weight_bits"] = limits.weight_bits[0]
        if limits.activation_modes is not None and config.activation_mode not in limits.activation_modes:
            if "activation_mode" in stated:
                what = f"{config.activation_mode} activations"
                raise self._not_allowed(layer, operator, what, limits.activation_modes)
            changes["activation_mode"] = limits.activation_modes[0]
        for key in ("unsigned", "per_channel"):
            if getattr(limits, key) is False and getattr(config, key):
                if key in stated:
                    raise self._not_allowed(layer, operator, f"{key} = true", ("false",))
                changes[key] = False
        return config.model_copy(update=changes) if changes else config

    def _not_allowed(self, layer: str, operator: str, what: str, allowed: Any) -> ConfigError:
        listed = ", ".join(map(str, allowed))
        return ConfigError(
            f'target "{self.name}" does not allow {what} of {operator} (layer "{layer}"); allowed: {listed}'
        )


BUILT_IN: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target(name="any"),
        Target(name="int8", default=Limits(activations=("int8",), weight_bits=(8,))),
        Target(
            name="int8_per_tensor", default=Limits(activations=("int8",), weight_bits=(8,), per_channel=False)
        ),
        Target(name="symmetric", default=Limits(activation_modes=("symmetric_restricted", "symmetric_full"))),
    )
}


def load_target(name: str) -> Target:
    """A built-in target by name, or a TOML or JSON file.

    Raises:
        ConfigError: If there is none, or it holds unknown keys or impossible values.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    path = Path(name)
    if path.suffix not in {".toml", ".json"}:
        raise ConfigError(f'no target is called "{name}": known are {", ".join(BUILT_IN)}, or give a file')
    try:
        text = read_text(path, ConfigError)
        parse = parse_toml if path.suffix == ".toml" else parse_json
        return Target.model_validate(parse(text, path, ConfigError))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg'][:1].lower()}{each['msg'][1:]}"
            for each in error.errors()
        )
        raise ConfigError(f"{path}: {problems}") from None
