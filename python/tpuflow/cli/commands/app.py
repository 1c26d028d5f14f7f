"""How every command and every group of commands is set up: its help options, no completion of its own."""

from __future__ import annotations

from typing import Any

import typer

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def typer_app(**more: Any) -> typer.Typer:
    """An application for a command, or for a group with its `help`."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=SETTINGS,
        **more,
    )
