"""The command line: `tpuflow COMMAND`, and what becomes of errors.

Each command is one function in `commands/`, which reads words and calls the rooms below; nothing is computed
here. Commands import what they need when they run, so that `--help` answers at once.

Exit status: 0 done; 1 the request or its input is wrong, one message on standard error; 2 wrong usage;
3 a warning that `--strict` makes an error; 130 interrupted.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from contextlib import suppress

import typer

from tpuflow.cli.commands.alloc import alloc
from tpuflow.cli.commands.build import build
from tpuflow.cli.commands.bundle import bundle
from tpuflow.cli.commands.console import PrintableFormatter, note
from tpuflow.cli.commands.debug import debug, steps
from tpuflow.cli.commands.device import raw, smoke
from tpuflow.cli.commands.explain import explain
from tpuflow.cli.commands.export import export
from tpuflow.cli.commands.golden import golden
from tpuflow.cli.commands.levels import compare, evaluate, run
from tpuflow.cli.commands.listings import cuts, fields, machine, ops, plugins
from tpuflow.cli.commands.npz import npz
from tpuflow.cli.commands.precision import bisect, mixed, sensitivity
from tpuflow.cli.commands.programs import asm, check, disasm, inspect
from tpuflow.cli.commands.report import report
from tpuflow.cli.commands.search import search
from tpuflow.cli.commands.simulate import simulate
from tpuflow.cli.commands.stages import calibrate, quantize
from tpuflow.cli.commands.statistics import compare_statistics
from tpuflow.cli.commands.weights import weights
from tpuflow.cli.commands.zoo import zoo
from tpuflow.cli.lazy import ALGEBRA, defer
from tpuflow.errors import TpuflowError

__all__ = ["app", "main"]

INTERRUPTED = 130

app = typer.Typer(
    name="tpuflow",
    help="Quantise an ONNX network, compile it for a systolic-array TPU, simulate the program.",
    epilog="A first look: tpuflow build model.onnx -O5 && tpuflow simulate MODEL.tpu",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in (
    build,
    simulate,
    explain,
    calibrate,
    quantize,
    search,
    sensitivity,
    mixed,
    bisect,
    export,
    run,
    compare,
    compare_statistics,
    evaluate,
    report,
    inspect,
    check,
    disasm,
    asm,
    raw,
    debug,
    steps,
    golden,
    smoke,
    zoo,
    alloc,
):
    app.command()(command)
app.command()(ops)
app.add_typer(machine, name="machine")
app.add_typer(npz, name="npz")
app.command()(fields)
app.command()(plugins)
app.add_typer(bundle, name="bundle")
app.add_typer(weights, name="weights")
app.command()(cuts)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"tpuflow {version('tpuflow')}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show and exit."),
    memory_limit: str | None = typer.Option(
        None,
        metavar="SIZE",
        help="Most memory a file, a machine or a network may ask for, such as 4G; 0: what is free. [0]",
    ),
) -> None:
    del version  # its callback has answered
    if memory_limit is not None:
        from tpuflow.cli.commands.options import size
        from tpuflow.partitioning.storage import limit_memory

        limit = size("--memory-limit", memory_limit)
        # Processes that are started later read it there.
        os.environ["TPUFLOW_MEMORY_LIMIT"] = str(limit or "")
        limit_memory(limit)


def main() -> None:
    """Runs the command line and ends the process."""
    _open_streams()
    _show_log()
    defer(*ALGEBRA)
    status: object = 0
    try:
        _run()
    except SystemExit as end:
        status = end.code
    try:
        sys.stdout.flush()
    except OSError as error:
        status = status or 1
        if not isinstance(error, BrokenPipeError):
            note(f"error: standard output: {(error.strerror or str(error)).lower()}")
        _discard_output()
    sys.exit(status if isinstance(status, int) else int(status is not None))


def _run() -> None:
    """Runs the command; every error is one line on standard error."""
    interrupts: list[int] = []

    def interrupted(number: int, _: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    try:
        with suppress(ValueError):  # outside the main thread signals are not ours to handle
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, interrupted)
        app()
    except TpuflowError as error:
        _fail(str(error), error.exit_status)
    except BrokenPipeError:
        # Whoever read our output has enough.
        _discard_output()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _fail(f"{name}{(error.strerror or str(error)).lower()}")
    except MemoryError:
        _fail("out of memory")
    except Exception as error:
        if interrupts:  # a library made another error of it
            sys.exit(INTERRUPTED)
        # A defect of this package, not of the request; whoever looks into it wants the way there.
        if os.environ.get("TPUFLOW_TRACEBACK"):
            raise
        reason = " ".join(str(error).split())
        _fail(
            f"internal error, a defect of tpuflow: {type(error).__name__}: {reason} "
            "(TPUFLOW_TRACEBACK=1 shows where)"
        )


def _open_streams() -> None:
    """Opens standard streams that were closed, and lets all of them take any text.

    A closed one becomes the null device, so that no file that is opened later gets its number; what the
    encoding lacks is shown as an escape.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))
        elif number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Lets the rest of the output go nowhere: Python would try to write it when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_log() -> None:
    """Shows warnings of the package and of libraries on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def _fail(message: str, status: int = 1) -> None:
    with suppress(OSError):  # of standard output, which is told where it is flushed last
        sys.stdout.flush()
    note(f"error: {message}")
    sys.exit(status)
