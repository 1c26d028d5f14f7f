"""The command line, `tpuflow COMMAND`, and its exit statuses.

    catalog.py      the commands in groups: names, summaries, where each is
    application.py  commands imported when they run, options that all of them have
    commands/       one function per command, which reads options and calls the packages below

Nothing is computed here. Every error is one line on standard error that begins with `error:`. Exit status:
0 done; 1 the request or its input is wrong; 2 wrong usage; 3 computed, and below the bar asked for; 4 no
answer within the limits; 130 interrupted (`docs/command-line.md`).
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import typer

from tpuflow.cli.application import application
from tpuflow.cli.commands import console
from tpuflow.cli.commands.completion import VARIABLE
from tpuflow.cli.commands.console import PrintableFormatter, note
from tpuflow.cli.former import translate_former_names
from tpuflow.cli.lazy import ALGEBRA, defer
from tpuflow.errors import TpuflowError

__all__ = ["main"]

USAGE = 2
INTERRUPTED = 130
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Exceptions of the parser."""


def main() -> None:
    """Runs the command line and ends the process."""
    _open_streams()
    console.reset()
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

    def on_signal(number: int, _: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    try:
        with suppress(ValueError):  # outside the main thread signals are not ours to handle
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, on_signal)
        _prepare_completion()
        status = application().main(
            translate_former_names(sys.argv[1:]), prog_name="tpuflow", standalone_mode=False
        )
        sys.exit(status if isinstance(status, int) else 0)
    except UsageError as error:
        _refuse(error)
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


def _refuse(error: Any) -> None:
    """Ends after wrong usage: one line like that of any error, and where the help is."""
    if type(error).__name__ == "NoArgsIsHelpError":
        note(error.ctx.get_help())
        sys.exit(USAGE)
    # The library that checks values says so; what it found wrong follows.
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    path = "tpuflow" if error.ctx is None else error.ctx.command_path
    _fail(f"{message[:1].lower()}{message[1:]} (see `{path} --help`)", USAGE)


def _prepare_completion() -> None:
    """Lets the parser answer a shell that asks for completions."""
    if VARIABLE in os.environ:
        support: Any = import_module("typer.completion")
        support.completion_init()


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
    try:
        sys.stdout.flush()
    except OSError:  # one error is enough
        _discard_output()
    note(f"error: {message}")
    sys.exit(status)
