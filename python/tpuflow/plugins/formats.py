"""Plugin files that were written for another tool: an installed distribution says how they are recognised.

Such a distribution announces a `PluginFormat` under the entry point `tpuflow.plugin_formats`. This package
knows no such tool by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points

__all__ = ["GROUP", "PluginFormat", "plugin_formats"]

GROUP = "tpuflow.plugin_formats"


@dataclass(frozen=True)
class PluginFormat:
    """The plugin files of another tool.

    Attributes:
        path_variable: Environment variable that lists their folders, separated as `PATH` is.
        prefixes: What names of their files begin with.
        install: Makes the modules importable that they import; called before the first is executed.
    """

    path_variable: str
    prefixes: tuple[str, ...]
    install: Callable[[], None]


def plugin_formats() -> tuple[PluginFormat, ...]:
    """The formats of all installed distributions, by name."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return tuple(point.load() for point in points)
