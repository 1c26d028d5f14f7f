"""Former names of commands and options, which keep working for one version with a note."""

from __future__ import annotations

from tpuflow.cli.catalog import RENAMED_COMMANDS, RENAMED_OPTIONS
from tpuflow.cli.commands.console import note

__all__ = ["translate_former_names"]

WITH_VALUES = ("--color", "--memory-limit")
"""Options in front of a command whose value is the next word."""


def translate_former_names(words: list[str]) -> list[str]:
    """The words of a command line under today's names; a line on standard error for each former one."""
    found = list(words)
    at = _command_at(found)
    for old, new in RENAMED_COMMANDS.items():
        if tuple(found[at : at + len(old)]) == old:
            _tell(" ".join(("tpuflow", *old)), " ".join(("tpuflow", *new)))
            found[at : at + len(old)] = new
    if at >= len(found):
        return found
    names = RENAMED_OPTIONS.get(found[at], {})
    for place, word in enumerate(found[at + 1 :], at + 1):
        if word == "--":
            break
        option, equals, value = word.partition("=")
        if option in names:
            _tell(option, names[option])
            found[place] = names[option] + equals + value
    return found


def _command_at(words: list[str]) -> int:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in WITH_VALUES else 1
    return at


def _tell(old: str, new: str) -> None:
    note(f"note: {old} is now {new}; the former name goes with the next version")
