"""The base of every section of a configuration, and the properties of a field beyond its type.

A field is declared once, as a pydantic field of a section, with default, limits and meaning. `PerLayer` in
its annotation says that layers may differ in it, `Also` that other tools call it by another name; the forms
of configuration, the listing of `tpuflow fields` and the documentation all follow from that one place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, model_validator

from tpuflow.config.spellings import COMPOUNDS, PRESETS
from tpuflow.errors import TpuflowError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = [
    "Aliases",
    "ConfigError",
    "FormerNames",
    "PerLayer",
    "Section",
    "also",
    "is_per_layer",
    "translate_keys",
]


logger = logging.getLogger(__name__)


class ConfigError(TpuflowError):
    """A configuration file or value is wrong; the text names the key."""


@dataclass(frozen=True)
class PerLayer:
    """Marks a field in which layers may differ."""


@dataclass(frozen=True, init=False)
class Aliases:
    """Further names of a field."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


class FormerNames(Aliases):
    """Names a field had in the version before: read as well, with a note."""


def is_per_layer(field: FieldInfo) -> bool:
    """Whether layers may differ in a field."""
    return any(isinstance(mark, PerLayer) for mark in field.metadata)


def also(field: FieldInfo) -> tuple[str, ...]:
    """The other names of a field."""
    return tuple(name for mark in field.metadata if isinstance(mark, Aliases) for name in mark.names)


class Section(BaseModel):
    """A part of a configuration: frozen, unknown keys refused, other names accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _in_own_names(cls, content: Any) -> Any:
        return (
            cls.complete(translate_keys(content, cls.model_fields))
            if isinstance(content, Mapping)
            else content
        )

    @classmethod
    def complete(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Adds what follows from what is given; sections in which something does override it."""
        return content


def translate_keys(content: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """Keys of other tools as the fields they stand for; what a preset says yields to what is said singly.

    Raises:
        ValueError: Two keys contradict each other, or the value of a foreign key makes no sense.
    """
    former = {
        other: name
        for name, field in fields.items()
        for mark in field.metadata
        if isinstance(mark, FormerNames)
        for other in mark.names
    }
    for key in former.keys() & content.keys():
        logger.warning("%s is now called %s; the next version reads only the new name", key, former[key])
    renamed = {other: name for name, field in fields.items() for other in also(field)}
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    preset: dict[str, Any] = {}
    for key, value in content.items():
        if key in PRESETS:
            meant = PRESETS[key](value)
            preset |= {name: given for name, given in meant.items() if name in fields}
            continue
        meant = {renamed.get(key, key): value}
        if key in COMPOUNDS and key not in fields and key not in renamed:
            meant = COMPOUNDS[key](value)
            if not meant.keys() <= fields.keys():
                meant = {key: value}
        for name, given in meant.items():
            if name in found and found[name] != given:
                raise ValueError(f"{origin[name]} and {key} contradict each other: give one of them")
            found[name], origin[name] = given, key
    return preset | found
