"""The objects that plugins register, by kind, name and version: of one name the highest version counts.

Decorators register with the registry that is being filled when their file is loaded, so nothing here is
global: every `load_plugins` gives a fresh `Registry`.

    @register_plugin(PluginType.Dataset, "1.0")
    class Mine:
        def __init__(self, data_file, label_file=None): ...
        def __len__(self): ...
        def __getitem__(self, index): ...        # [[input, ...], label]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from tpuflow.errors import TpuflowError

__all__ = [
    "OpType",
    "PluginError",
    "PluginType",
    "Registry",
    "filling",
    "op_register",
    "quant_register",
    "register_optype",
    "register_plugin",
]

T = TypeVar("T")


class PluginError(TpuflowError):
    """A plugin is unknown, wrong, or gave up."""


class PluginType(Enum):
    """Kinds of plugins that are classes."""

    Dataset = "dataset"
    Metric = "metric"
    QConfig = "qconfig"


@dataclass(frozen=True)
class Entry:
    """Something registered, and where it comes from."""

    made: Any
    version: tuple[int, ...]
    source: str


@dataclass
class Registry:
    """Plugins by kind and name; `failures` are files that could not be loaded, with the reason."""

    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    source: str = ""

    def add(self, kind: str, name: str, made: Any, version: str) -> None:
        """Keeps the higher version; of equal ones the one registered first.

        Raises:
            PluginError: The version is no version.
        """
        if not re.fullmatch(r"\d+(\.\d+)*", str(version)):
            raise PluginError(f'{kind} "{name}": version "{version}" is not of the form 1.0')
        numbers = tuple(int(part) for part in str(version).split("."))
        before = self.entries.get((kind, name))
        if before is None or numbers > before.version:
            self.entries[kind, name] = Entry(made, numbers, self.source)

    def names(self, kind: str) -> list[str]:
        """The names registered for a kind."""
        return sorted(name for each, name in self.entries if each == kind)

    def version(self, kind: str, name: str) -> tuple[int, ...]:
        """The version of a plugin there is."""
        return self.entries[kind, name].version

    def get(self, kind: str, name: str) -> Any:
        """A plugin.

        Raises:
            PluginError: There is none of that name; files that failed to load are named.
        """
        found = self.entries.get((kind, name))
        if found is None:
            known = ", ".join(self.names(kind)) or "none"
            failed = f"; not loaded: {', '.join(self.failures)}" if self.failures else ""
            raise PluginError(f'no {kind} plugin is called "{name}", there is {known}{failed}')
        return found.made


_FILLED: ContextVar[Registry | None] = ContextVar("registry", default=None)


@contextmanager
def filling(registry: Registry) -> Iterator[Registry]:
    """While files are loaded, what they register goes there."""
    token = _FILLED.set(registry)
    try:
        yield registry
    finally:
        _FILLED.reset(token)


def _current() -> Registry:
    registry = _FILLED.get()
    return Registry() if registry is None else registry


def register_plugin(kind: PluginType, version: str = "1.0") -> Callable[[T], T]:
    """Registers a class under its own name."""

    def register(made: T) -> T:
        _current().add(kind.value, getattr(made, "__name__", str(made)), made, version)
        return made

    return register


def op_register(name: object, version: str = "1.0") -> Callable[[T], T]:
    """Registers the forward function of an operator type."""

    def register(made: T) -> T:
        _current().add("forward", str(name), made, version)
        return made

    return register


def quant_register(name: object, version: str = "1.0") -> Callable[[T], T]:
    """Registers the quantise function of an operator type; its version is its own."""

    def register(made: T) -> T:
        _current().add("quantise", str(name), made, version)
        return made

    return register


class _OpTypes:
    """Operator types as attributes: any name is one."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


OpType = _OpTypes()


def register_optype(name: str) -> str:
    """Announces an operator type; any name is one, so this only checks that it is a name.

    Raises:
        PluginError: It is not.
    """
    if not name.isidentifier():
        raise PluginError(f'"{name}" is not the name of an operator type')
    return name
