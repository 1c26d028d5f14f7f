"""Which operators can be lowered, and by which function: the one table the walk and `tpuflow ops` read.

A lowering takes the context and one `Step` (a node with what is fused behind it) and emits layers. A view
takes a node and the view of its first input and returns that of its output: such operators move nothing by
themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step
    from tpuflow.lowering.view import View

__all__ = ["LOWERINGS", "VIEWS", "UnsupportedNodeError", "lowers", "supported_operators", "views"]

LowerFunction = Callable[["Lowering", "Step"], None]
ViewFunction = Callable[["ir.Node", "View"], "View | None"]

LOWERINGS: dict[str, LowerFunction] = {}
"""By operator type."""
VIEWS: dict[str, ViewFunction] = {}
"""By operator type; None from the function means that the elements must be moved first."""


class UnsupportedNodeError(Exception):
    """A node cannot be lowered; becomes one line of the error that lists all of them."""

    def __init__(self, reason: str, attribute: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.attribute = attribute


def lowers(*operators: str) -> Callable[[LowerFunction], LowerFunction]:
    """Registers a lowering for these operator types."""

    def register(function: LowerFunction) -> LowerFunction:
        LOWERINGS.update(dict.fromkeys(operators, function))
        return function

    return register


def views(*operators: str) -> Callable[[ViewFunction], ViewFunction]:
    """Registers a view for these operator types."""

    def register(function: ViewFunction) -> ViewFunction:
        VIEWS.update(dict.fromkeys(operators, function))
        return function

    return register


def supported_operators() -> tuple[str, ...]:
    """Every operator type that can be lowered, sorted."""
    return tuple(sorted({*LOWERINGS, *VIEWS}))
