"""Journals of long commands: where they lie, and what is said of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpuflow.cli.commands.console import note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tpuflow.io.journal import Journal

__all__ = ["resumable"]


@contextmanager
def resumable(output: Path, command: str, inputs: Mapping[str, str]) -> Iterator[Journal | None]:
    """The journal of a command that makes a file; kept if the block ends in an error after a finished trial.

    Args:
        output: The file; beside a device or pipe there is no journal.
        command: Whose trials are noted.
        inputs: What results depend on, by name.

    Raises:
        FileError: Another run is at work at the same file, or what has the journal's name is none.
    """
    from tpuflow.io.journal import Journal, journal_beside

    path = journal_beside(output)
    if path is None:
        yield None
        return
    with Journal.open(path, command, inputs, anew=note) as journal:
        if journal.resumed:
            note(f"{path}: {journal.resumed:,} trials of an interrupted run are reused")
        try:
            yield journal
        except BaseException:
            if not journal.holds_trials:
                journal.remove()
            raise
        journal.remove()
