"""Finds plugins and imports them.

They are looked for in this order:

1. the entry points `tpuflow.plugins` of installed packages: modules, imported by name;
2. every folder of the environment variable `TPUFLOW_PLUGINS`, and of the variables of other plugin formats
   (`formats`);
3. folders that the caller names, `--plugins` on the command line.

No other folder is looked into: files in a folder someone happens to work in, or received, are not executed.
Every file that is executed is announced by a warning, which names it; so is a folder `plugin` in the current
one, where plugins used to be looked for.

Of folders, files whose names begin with `tpuflow_` are loaded, or as plugins of such a format do. A file that
cannot be imported is told about, with the place in it, and hides no other.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from tpuflow.plugins.formats import PluginFormat, plugin_formats
from tpuflow.plugins.registry import PluginError, Registry, filling

__all__ = ["GROUP", "PATH", "PREFIX", "load_plugins"]

logger = logging.getLogger(__name__)

GROUP = "tpuflow.plugins"
PATH = "TPUFLOW_PLUGINS"
PREFIX = "tpuflow_"


def load_plugins(folders: Sequence[Path] | None = None, *, named: Sequence[Path] = ()) -> Registry:
    """Everything that plugins register.

    Args:
        folders: Only these are looked into; by default all the places above.
        named: Folders the user named; what they register counts like that of all others.

    Raises:
        PluginError: A folder that is named does not exist.
    """
    for folder in named:
        if not folder.is_dir():
            raise PluginError(f"{folder}: is not a directory of plugins")
    formats = plugin_formats()
    unused = Path("plugin")
    if folders is None and unused not in named and _plugin_files(unused, formats):
        logger.warning("%s: holds plugins, which are executed with --plugins %s alone", unused, unused)
    registry = Registry()
    with filling(registry):
        if folders is None:
            for point in entry_points(group=GROUP):
                registry.source = f"{point.name} ({point.value})"
                _load_guarded(registry, point.load)
        for folder in (*(_folders(formats) if folders is None else folders), *named):
            paths = _plugin_files(folder, formats)
            if not paths and folder in named:
                logger.warning(
                    "%s: holds no plugins: names of files begin with %s, or as an installed format says",
                    folder,
                    PREFIX,
                )
            for path in paths:
                for each in formats:
                    each.install()
                registry.source = str(path)
                logger.warning("plugin %s: executed", path)
                _load_guarded(registry, partial(_import, path))
    return registry


def _plugin_files(folder: Path, formats: Sequence[PluginFormat]) -> list[Path]:
    prefixes = (*(prefix for each in formats for prefix in each.prefixes), PREFIX)
    return sorted(path for path in folder.glob("*.py") if path.name.startswith(prefixes))


def _folders(formats: Sequence[PluginFormat]) -> list[Path]:
    names = (*(each.path_variable for each in formats), PATH)
    variables = (os.environ.get(name, "").split(os.pathsep) for name in names)
    return [Path(word) for words in variables for word in words if word and Path(word).is_dir()]


def _import(path: Path) -> None:
    name = f"tpuflow_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _load_guarded(registry: Registry, load: Callable[[], object]) -> None:
    try:
        load()
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is its own
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {' '.join(str(error).split())} ({place.filename}:{place.lineno})"
        registry.failures[registry.source] = reason
        logger.warning("plugin %s is not loaded: %s", registry.source, reason)
        logger.debug("%s", "".join(traceback.format_exception(error)))
