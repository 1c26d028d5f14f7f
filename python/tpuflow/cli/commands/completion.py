"""`tpuflow completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any

import typer

from tpuflow.cli.commands.console import emit

__all__ = ["VARIABLE", "completion"]

VARIABLE = "_TPUFLOW_COMPLETE"
"""Set by the scripts when the shell asks for completions."""


class Shell(StrEnum):
    """Shells that can be taught."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Shell to write for.")]) -> None:
    """Print the completion script of a shell.

    bash: eval "$(tpuflow completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, behind compinit. fish:
    tpuflow completion fish > ~/.config/fish/completions/tpuflow.fish
    """
    support: Any = import_module("typer.completion")
    emit(support.get_completion_script(prog_name="tpuflow", complete_var=VARIABLE, shell=shell.value) + "\n")
