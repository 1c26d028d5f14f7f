"""`tpuflow ops`, `machine` and `fields`: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuflow.cli.commands import options
from tpuflow.cli.commands.app import typer_app
from tpuflow.cli.commands.console import heading, say, table, write_figures
from tpuflow.cli.commands.options import DType

__all__ = ["cuts", "fields", "machine", "ops", "plugins"]

OF_TRUTHS = frozenset({"And", "Not", "Or"})
"""Operators that compute no numbers."""


def ops(json: options.JsonFile = None) -> None:
    """List the operators and their element types."""
    from tpuflow.frontend.supported import OPERATORS
    from tpuflow.lowering import supported_operators

    lowered = set(supported_operators())
    numbers = ", ".join(dtype.value for dtype in DType)
    rows = [
        (name, "truth values" if name in OF_TRUTHS else numbers)
        for name in sorted(OPERATORS)
        if name in lowered
    ]
    say(f"{len(rows)} operators of the normalised network; ONNX operators that reduce to them are accepted")
    table([("operator", "left"), ("element types", "left")], rows)
    write_figures(json, {"operators": [{"name": name, "types": types.split(", ")} for name, types in rows]})


def cuts(json: options.JsonFile = None) -> None:
    """List the named cuts of well-known networks."""
    from tpuflow.frontend.presets import PRESETS

    rows = [(name, preset.about, ", ".join(preset.published)) for name, preset in PRESETS.items()]
    table([("name", "left"), ("", "left"), ("published tensors", "left")], rows)
    listed = [
        {"name": name, "about": preset.about, "published": list(preset.published)}
        for name, preset in PRESETS.items()
    ]
    write_figures(json, {"cuts": listed})


def plugins(folders: options.Plugins = None, json: options.JsonFile = None) -> None:
    """List the plugins that are found."""
    from tpuflow.plugins import load_plugins

    found = load_plugins(named=folders or ())
    rows = [
        (kind, name, ".".join(map(str, entry.version)), entry.source)
        for (kind, name), entry in sorted(found.entries.items())
    ]
    table([("kind", "left"), ("name", "left"), ("version", "left"), ("from", "left")], rows)
    for source, reason in found.failures.items():
        say(f"not loaded: {source}: {reason}")
    keys = ("kind", "name", "version", "source")
    listed = [dict(zip(keys, row, strict=True)) for row in rows]
    write_figures(json, {"plugins": listed, "failures": dict(found.failures)})


machine = typer_app(help="List and show machines.", no_args_is_help=True)


@machine.command("list")
def list_machines(json: options.JsonFile = None) -> None:
    """List the machines that come with tpuflow."""
    import re
    import tomllib

    from tpuflow.compiler.machine import Machine, machine_text, machines

    rows = []
    for name in machines():
        found = Machine.preset(name)
        rows.append(
            (
                name,
                f"{found['array.rows']} x {found['array.columns']}",
                f"{found['clock_hz'] / 1e9:g} GHz",
                f"{found['cache.bytes'] / 2**20:g} MiB",
                f"{found['ddr.channels']} x {found['ddr.word_bytes'] * found['ddr.clock_hz'] / 1e9:g} GB/s",
                re.split(r"[.;] |[.;]?\n", machine_text(name).lstrip("# "), maxsplit=1)[0],
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
    contents = {name: tomllib.loads(Machine.preset(name).to_toml()) for name in machines()}
    write_figures(json, {"machines": contents})


@machine.command("show")
def show_machine(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a preset, or a machine file.")],
) -> None:
    """Print a machine as TOML; given back as a file it is the same machine."""
    from tpuflow.compiler.program import machine_text

    say(machine_text(name).rstrip("\n"))


def fields(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page of the documentation instead.")
    ] = False,
    json: options.JsonFile = None,
) -> None:
    """List every configuration key and its meaning."""
    from dataclasses import asdict

    from tpuflow.config import SECTIONS
    from tpuflow.config.registry import page, registry

    if markdown:
        typer.echo(page(), nl=False)
        return
    for section, model in SECTIONS.items():
        heading(f"[{section}]" if section != "layers" else "[[layers]]")
        say(" ".join((model.__doc__ or "").split()))
        rows = [
            (
                "\n".join((entry.name, *entry.also)),
                entry.type,
                entry.limits,
                entry.default,
                "yes" if entry.per_layer else "",
                entry.meaning,
            )
            for entry in registry()
            if entry.section == section
        ]
        table(
            [
                ("key", "left"),
                ("type", "left"),
                ("range", "left"),
                ("default", "left"),
                ("by layer", "left"),
                ("meaning", "left"),
            ],
            rows,
        )
    write_figures(json, {"fields": [asdict(entry) for entry in registry()]})
