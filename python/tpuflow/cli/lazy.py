"""Modules that are executed when they are first used, not when they are first imported.

`onnx_ir` imports sympy, a third of a second of work, to add and multiply sizes that have names; networks
whose sizes are all numbers never ask it anything. `defer` puts a placeholder for such a module into
`sys.modules`. The first attribute that is asked of it imports the module, whose names it has from then on
(module `__getattr__`, PEP 562).

Only the command line asks for this, before a command imports what it works with: in the process of someone
who uses the package, imports are theirs to order.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["ALGEBRA", "defer"]

ALGEBRA = ("sympy", "onnx_ir._symbolic_shapes")
"""Modules that compute with sizes that have names; the second reads attributes of the first."""


def defer(*names: str) -> None:
    """Has modules that are not imported yet executed at their first use."""
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = _placeholder(name)


def _placeholder(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)

    def attribute(asked: str) -> Any:
        if asked.startswith("__"):  # what the import system looks for is not a use
            raise AttributeError(f"module {name!r} has no attribute {asked!r}")
        if sys.modules.get(name) is module:
            del sys.modules[name]
        real = import_module(name)
        vars(module).update(vars(real))
        return getattr(real, asked)

    vars(module)["__getattr__"] = attribute
    return module
