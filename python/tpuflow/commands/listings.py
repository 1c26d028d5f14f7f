"""`tpuflow ops`, `machine` and `fields`: what there is."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Literal, Union, get_args, get_origin

import typer

from tpuflow.commands.console import heading, say, table

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = ["cuts", "fields", "machine", "ops"]


def ops() -> None:
    """List the operators a network may have, and their element types."""
    from tpuflow.frontend.supported import OPERATORS
    from tpuflow.quantize import supported_operators

    lowered = set(supported_operators())
    rows = [(name, "int8, int16") for name in sorted(OPERATORS) if name in lowered]
    say(f"{len(rows)} operators of the normalised network; ONNX operators that reduce to them are accepted")
    table([("operator", "left"), ("element types", "left")], rows)


def cuts() -> None:
    """List the named cuts of well-known networks, for --cut-preset."""
    from tpuflow.frontend.presets import PRESETS

    rows = [(name, preset.about, ", ".join(preset.published)) for name, preset in PRESETS.items()]
    table([("name", "left"), ("", "left"), ("published tensors", "left")], rows)


machine = typer.Typer(help="Machines programs can be compiled for.", no_args_is_help=True)


@machine.command("list")
def list_machines() -> None:
    """List the machines that come with tpuflow."""
    import tomllib

    from tpuflow.compile import machine_text, machines

    rows = []
    for name in machines():
        text = machine_text(name)
        content = tomllib.loads(text)
        array, cache, ddr = (content[key] for key in ("array", "cache", "ddr"))
        rows.append(
            (
                name,
                f"{array['rows']} x {array['columns']}",
                f"{content['clock_hz'] / 1e9:g} GHz",
                f"{cache['banks'] * cache['words'] * cache['word_bytes'] / 2**20:g} MiB",
                f"{ddr['channels']} x {ddr['word_bytes'] * ddr['clock_hz'] / 1e9:g} GB/s",
                text.partition("\n")[0].lstrip("# ").rstrip("."),
            )
        )
    table(
        [
            ("name", "left"),
            ("array", "right"),
            ("clock", "right"),
            ("cache", "right"),
            ("DDR", "right"),
            ("", "left"),
        ],
        rows,
    )


@machine.command("show")
def show_machine(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a preset, or a machine file.")],
) -> None:
    """Print a machine as TOML; given back as a file it is the same machine."""
    from tpuflow.compile import machine_text

    say(machine_text(name).rstrip("\n"))


def fields() -> None:
    """List every configuration key with its default, type, range and meaning."""
    from tpuflow.config import SECTIONS, Config

    for name, section in Config.model_fields.items():
        model = SECTIONS[name]
        heading(f"[{name}]" if name != "layers" else "[[layers]]")
        say(section.description or "")
        rows = [
            (key, _type_text(field.annotation), _range_text(field), _default_text(field), field.description)
            for key, field in model.model_fields.items()
        ]
        table(
            [("key", "left"), ("type", "left"), ("range", "left"), ("default", "left"), ("meaning", "left")],
            rows,
        )


def _type_text(annotation: object) -> str:
    """A field's type as users think of it: `int8 or int16`, `number`, `text`."""
    if get_origin(annotation) is Literal:
        return " or ".join(str(choice) for choice in get_args(annotation))
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        parts = [part for part in get_args(annotation) if part is not NoneType]
        return " or ".join(_type_text(part) for part in parts)
    if get_origin(annotation) is tuple:
        return f"list of {_type_text(get_args(annotation)[0])}s"
    known: dict[object, str] = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return known.get(annotation, str(annotation))


def _range_text(field: FieldInfo) -> str:
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
        return ", ".join(f"{value:g}" for value in field.default)
    return "unset" if field.default is None else str(field.default)
