"""Where programs find the operators of plugins they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuflow.frontend import provide
from tpuflow.plugins import load_plugins, operators_of

if TYPE_CHECKING:
    from tpuflow.plugins import Registry

__all__ = ["use_operators"]


def use_operators(registry: Registry | None = None) -> None:
    """Lets networks that are run take operators of plugins, if they need any.

    Args:
        registry: What plugins registered; by default they are loaded when the first network asks, from
            installed packages and the folders of the environment.
    """
    provide(lambda: operators_of(load_plugins() if registry is None else registry))
