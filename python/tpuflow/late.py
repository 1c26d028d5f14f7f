"""Modules that are executed when they are first used, not when they are first imported.

`onnx_ir` imports sympy, a third of a second of work, to add and multiply sizes that have names; networks
whose sizes are all numbers never ask it anything. `postpone` has such modules found by Python's own finder
and executed by its `LazyLoader` at the first look at one of their attributes: they are the same modules.

Only the command line asks for this, before a command imports what it works with: in the process of someone
who uses the package, imports are theirs to order.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["ALGEBRA", "postpone"]

ALGEBRA = ("sympy", "onnx_ir._symbolic_shapes")
"""What computes with sizes that have names; the second reads attributes of the first when it is executed."""


def postpone(*names: str) -> None:
    """Has modules that are not imported yet executed at their first use."""
    sys.meta_path.insert(0, _Postponing(names))


class _Postponing:
    """Finds what Python's own finder does; of some modules the execution waits."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name not in self._names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
