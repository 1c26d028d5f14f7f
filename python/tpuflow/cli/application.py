"""The application: commands that are imported when they run, and the options that all of them have."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from tpuflow.cli.catalog import COMMANDS, GROUPS, Entry
from tpuflow.cli.commands import console
from tpuflow.cli.commands.app import typer_app

__all__ = ["application"]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"tpuflow {version('tpuflow')}")
        raise typer.Exit


def _quiet(asked: bool) -> None:
    if asked:
        console.settings.quiet = True


def _verbose(count: int) -> None:
    if count:
        console.be_verbose(count)


def _color(when: console.Color | None) -> None:
    if when is not None:
        console.settings.color = when


def _memory(text: str | None) -> None:
    if text is not None:
        import os

        from tpuflow.cli.commands.options import size
        from tpuflow.partitioning.storage import limit_memory

        limit = size("--memory-limit", text)
        # Processes that are started later read it there.
        os.environ["TPUFLOW_MEMORY_LIMIT"] = str(limit or "")
        limit_memory(limit)


Quiet = typer.Option(
    False, "-q", "--quiet", callback=_quiet, expose_value=False, help="Print nothing but errors."
)
Verbose = typer.Option(
    0, "-v", "--verbose", count=True,
    show_default=False, callback=_verbose, expose_value=False,
    help="Also print log messages; -vv: those of libraries as well.",
)  # fmt: skip
Color = typer.Option(
    None, "--color", callback=_color, expose_value=False, help="Color and progress bars. [auto]"
)


def _common(quiet: bool = Quiet, verbose: int = Verbose, color: console.Color | None = Color) -> None:
    """The options that may stand behind every command, too."""


def _first(
    version: bool = typer.Option(
        False, "-V", "--version", callback=_version, is_eager=True, expose_value=False, help="Show and exit."
    ),
    quiet: bool = Quiet,
    verbose: int = Verbose,
    color: console.Color | None = Color,
    memory_limit: str | None = typer.Option(
        None,
        metavar="SIZE",
        callback=_memory,
        expose_value=False,
        help="Memory limit for files, machines and networks, such as 4G; 0: the free memory. [0]",
    ),
) -> None:
    pass


class _Grouped(TyperGroup):
    """A group that lists commands under the headings of the catalog, without importing them."""

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """See `click.Group`."""
        longest = max(len(name) for name in COMMANDS)
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(longest), entry.summary) for entry in entries])


class _Commands(MutableMapping[str, Any]):
    """The commands of the catalog by name, each made from its function when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _command(COMMANDS[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entries in GROUPS.values() for entry in entries)

    def __len__(self) -> int:
        return sum(map(len, GROUPS.values()))

    def get(self, name: str, default: Any = None) -> Any:
        """Gives the command of a name, those that are not listed included."""
        return self[name] if name in COMMANDS else default


def _command(entry: Entry) -> Any:
    module, attribute = entry.source.split(".")
    implementation = getattr(import_module(f"tpuflow.cli.commands.{module}"), attribute)
    if not isinstance(implementation, typer.Typer):
        alone = typer_app()
        alone.command(entry.name)(implementation)
        implementation = alone
    made = typer.main.get_command(implementation)
    made.name = entry.name
    # A command that is alone has no `commands`.
    for command in getattr(made, "commands", {entry.name: made}).values():
        command.params.extend(_common_options())
    return made


def _common_options() -> list[Any]:
    alone = typer_app()
    alone.command()(_common)
    return typer.main.get_command(alone).params


def application() -> Any:
    """The command line as an object whose `main` runs it."""
    app = typer_app(
        name="tpuflow",
        cls=_Grouped,
        help="Quantise an ONNX network, compile it for a systolic-array TPU, simulate the program.",
        epilog="A first look: tpuflow build model.onnx -O5 -o model.tpu && tpuflow simulate model.tpu",
        no_args_is_help=True,
    )
    app.callback()(_first)
    made: Any = typer.main.get_command(app)
    made.commands = _Commands()
    return made
