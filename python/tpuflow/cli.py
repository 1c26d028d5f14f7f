"""The command line: `tpuflow COMMAND`, and what becomes of errors.

Each command is one function in `commands/`, which reads words and calls the rooms below; nothing is computed
here. Commands import what they need when they run, so that `--help` answers at once.

Exit status: 0 done; 1 the request or its input is wrong, one message on standard error; 2 wrong usage;
130 interrupted.
"""

from __future__ import annotations

import os
import sys

import typer

from tpuflow.commands.alloc import alloc
from tpuflow.commands.build import build
from tpuflow.commands.bundle import bundle
from tpuflow.commands.debug import debug, steps
from tpuflow.commands.device import raw, smoke
from tpuflow.commands.explain import explain
from tpuflow.commands.export import export
from tpuflow.commands.levels import compare, evaluate, run
from tpuflow.commands.listings import cuts, fields, machine, ops, plugins
from tpuflow.commands.npz import npz
from tpuflow.commands.precision import bisect, mixed, sensitivity
from tpuflow.commands.programs import asm, check, disasm, inspect
from tpuflow.commands.report import report
from tpuflow.commands.search import search
from tpuflow.commands.simulate import simulate
from tpuflow.commands.stages import calibrate, quantize
from tpuflow.commands.statistics import compare_statistics
from tpuflow.commands.weights import weights
from tpuflow.commands.zoo import zoo
from tpuflow.errors import TpuflowError
from tpuflow.late import ALGEBRA, postpone

__all__ = ["app", "main"]

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
) -> None:
    pass


def main() -> None:
    """Runs the command line and ends the process."""
    postpone(*ALGEBRA)
    try:
        app()
    except TpuflowError as error:
        _fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has enough; Python must not try to flush the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _fail(f"{name}{(error.strerror or str(error)).lower()}")
    except MemoryError:
        _fail("out of memory")
    except Exception as error:
        # A defect of this package, not of the request; whoever looks into it wants the way there.
        if os.environ.get("TPUFLOW_TRACEBACK"):
            raise
        reason = " ".join(str(error).split())
        _fail(
            f"internal error, a defect of tpuflow: {type(error).__name__}: {reason} "
            "(TPUFLOW_TRACEBACK=1 shows where)"
        )


def _fail(message: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"error: {message}\n")
    sys.exit(1)
