"""The registry of fields: what `tpuflow fields` prints and the page of the documentation shows.

Nothing is listed by hand: every line follows from the declaration of its field.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tpuflow.config.models import SECTIONS, LayerConfig
from tpuflow.config.published import DEFAULTS
from tpuflow.config.section import also, is_per_layer
from tpuflow.config.spellings import COMPOUNDS, METHODS, QUANT_TYPES

__all__ = ["Entry", "page", "registry"]

PRECEDENCE = """\
Of several values for one field the last of this list that is given holds:

1. the default below;
2. what a preset (`quant_type`) says in the same section;
3. the field itself, under whichever of its names; of several files the later one;
4. entries of `layers` that fit the layer, in their order, presets in them first; in the text form a range of
   layers comes after an operator type, that after an expression on names;
5. the file of settings by layer (`opt_config`, or a `.json` file given with `--config`);
6. options of the command line, such as `--dtype`, for the whole network: they replace 1 to 3, not 4 and 5.

An unknown key is an error that names the nearest known one. Fields that contradict each other are an error.
An entry of `layers` that fits nothing, or sets what none of its layers can honour, is an error, or with
`lenient` a warning. So is one that says how a layer is calibrated where ranges come from a file, or what is
counted where counts do."""

TEXT_FILES = """\
Where a `.cfg` file is among those of `--config`, these hold beneath all files, because who brings one along
knows them from the tool it was written for; stating one in the file changes nothing. What is not listed is as
everywhere else. Keys without effect, such as `with_winograd = true` or a `metric` without `data`, are notes.
`tpuflow build --cfg FILE` alone builds the network that `graph` names, and executes the plugins of the folder
`plugin` in the current one, each of which it announces."""

FORMS = """\
`--config` takes any of four forms, by the suffix of the file, and may be repeated.

**TOML** has the sections below, and `[[layers]]` with one entry per exception.

**Text** (`.cfg`) has all keys under `[Common]`, exceptions in the line of the value:

```ini
[Common]
# 8-bit weights, but 16 bits in layers 0 to 3, in all products and in what is called so
weight_bits = 8 & <[(0,3)]:16> <[MatMul]:16> <{blocks\\..*\\.fc}:16>
```

**By layer** (`.json`) is an object per layer name with the fields in which layers may differ. `tpuflow build`
writes one beside every program, with `null` where nothing differs; `just_for_display` in it is not read.

**As a table** (`.table`) has one layer name and one mode a line: INT4, INT8, INT16, F16, BF16, F32."""


@dataclass(frozen=True)
class Entry:
    """One field.

    Attributes:
        section: Where it stands: quantize, calibrate, layers or preprocess.
        name: Its key.
        type: Its type in words.
        limits: Limits of a number, or nothing.
        default: Its default in words.
        meaning: What it is.
        per_layer: Whether layers may differ in it.
        also: Its other names.
    """

    section: str
    name: str
    type: str
    limits: str
    default: str
    meaning: str
    per_layer: bool
    also: tuple[str, ...]


def registry() -> tuple[Entry, ...]:
    """Every field of a configuration; those of `layers` only where they stand nowhere else."""
    return tuple(_entries())


def _entries() -> Iterator[Entry]:
    for section, model in SECTIONS.items():
        meanings = _meanings(model)
        for name, field in model.model_fields.items():
            if model is LayerConfig and is_per_layer(field):
                continue
            yield Entry(
                section,
                name,
                _type_text(field.annotation),
                _limits_text(field),
                _default_text(field),
                " ".join(meanings[name].split()),
                is_per_layer(field),
                also(field),
            )


@cache
def _meanings(model: type) -> dict[str, str]:
    """The texts below the fields of a class, read from its source here, where alone they are asked for.

    pydantic can read them as it makes the class; that takes half a second of the start of every command.
    """
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(declared, ast.ClassDef)
    return {
        field.target.id: str(text.value.value)
        for field, text in pairwise(declared.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def page() -> str:
    """The registry as a page of Markdown."""
    lines = ["# Configuration", "", "Written by `tpuflow fields --markdown`.", "", FORMS, ""]
    lines += ["## Which value holds", "", PRECEDENCE]
    for section, model in SECTIONS.items():
        heading = f"[[{section}]]" if model is LayerConfig else f"[{section}]"
        about = " ".join((model.__doc__ or "").split())
        lines += ["", f"## `{heading}`", "", about, ""]
        if model is LayerConfig:
            lines += ["Further fields: those of the other sections marked *by layer*.", ""]
        lines += ["| key | type | default | by layer | meaning |", "|---|---|---|---|---|"]
        for entry in registry():
            if entry.section == section:
                kind = f"{entry.type}, {entry.limits}" if entry.limits else entry.type
                names = "".join(f"<br>`{name}`" for name in entry.also)
                yes = "yes" if entry.per_layer else ""
                cells = (f"`{entry.name}`{names}", kind, entry.default, yes, entry.meaning)
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += _published_defaults()
    lines += ["", "## Keys of other tools", ""]
    lines += [f"- `{name}`" for name in COMPOUNDS]
    lines += [
        "",
        f"Methods are {', '.join(f'`{name}`' for name in METHODS)}; what a layer cannot do is an error.",
        "",
    ]
    lines += ["`quant_type` sets several fields at once, each of which may be given beside it:", ""]
    lines += ["| preset | sets |", "|---|---|"]
    for name, sets in QUANT_TYPES.items():
        lines.append(
            f"| `{name}` | {', '.join(f'{key} = {value}' for key, value in sets.items()) or 'nothing'} |"
        )
    return "\n".join(lines) + "\n"


def _published_defaults() -> list[str]:
    """The table of defaults that differ in text files."""
    lines = ["", "## Defaults of text files", "", TEXT_FILES, ""]
    lines += ["| section | key | text file | otherwise |", "|---|---|---|---|"]
    for section, values in DEFAULTS.items():
        for name, value in values.items():
            own = _default_text(SECTIONS[section].model_fields[name])
            said = str(value).lower() if isinstance(value, bool) else str(value)
            lines.append(f"| `{section}` | `{name}` | {said} | {own} |")
    return lines


def _type_text(annotation: Any) -> str:
    """A field's type as users think of it: `int8 or int16`, `number`, `text`."""
    if get_origin(annotation) is Literal:
        return " or ".join(str(choice) for choice in get_args(annotation))
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        parts = [part for part in get_args(annotation) if part is not NoneType]
        return " or ".join(_type_text(part) for part in parts)
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        if get_origin(inner[0]) is tuple:
            size = len(get_args(inner[0]))
            return "list of pairs of whole numbers" if size == 2 else f"list of {size} whole numbers each"
        return f"list of {_type_text(inner[0])}s".replace("texts", "names").replace("text", "name")
    if get_origin(annotation) is dict:
        return "table"
    known: dict[object, str] = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return known.get(annotation, str(annotation))


def _limits_text(field: FieldInfo) -> str:
    """The limits of a number."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = [
        f"{sign} {getattr(limit, key):g}"
        for limit in field.metadata
        for key, sign in signs.items()
        if getattr(limit, key, None) is not None
    ]
    return ", ".join(limits)


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if isinstance(field.default, tuple):
        return ", ".join(f"{value:g}" for value in field.default) or "none"
    if isinstance(field.default, dict):
        return "none"
    return "unset" if field.default in {None, ""} else str(field.default)
