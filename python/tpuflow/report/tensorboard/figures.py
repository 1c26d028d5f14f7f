"""Pictures for TensorBoard, drawn by matplotlib."""

from __future__ import annotations

import io
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["bits_figure", "similarity_figure"]

DPI = 100


def similarity_figure(cosines: Mapping[str, float], title: str) -> tuple[bytes, tuple[int, int]]:
    """Cosine similarity of every tensor, in the order of the network: PNG, width and height."""
    figure, axes = _axes(len(cosines), title)
    axes.plot(range(len(cosines)), list(cosines.values()), marker=".", linewidth=1)
    axes.set_ylabel("cosine similarity")
    axes.set_ylim(min(0.9, *cosines.values()) - 0.01, 1.005)
    _label(axes, list(cosines))
    return _png(figure)


def bits_figure(
    names: Sequence[str], weights: Sequence[int], activations: Sequence[int]
) -> tuple[bytes, tuple[int, int]]:
    """Bits of weights and of what is stored, layer by layer: PNG, width and height."""
    figure, axes = _axes(len(names), "bits by layer")
    positions = range(len(names))
    axes.bar([i - 0.2 for i in positions], weights, 0.4, label="weights")
    axes.bar([i + 0.2 for i in positions], activations, 0.4, label="activations")
    axes.set_ylabel("bits")
    axes.legend()
    _label(axes, names)
    return _png(figure)


def _axes(count: int, title: str) -> tuple[Any, Any]:
    # The figure's own canvas: no window, and no state pyplot would share.
    figure = import_module("matplotlib.figure").Figure(figsize=(max(6.0, min(24.0, count / 6)), 5), dpi=DPI)
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _label(axes: Any, names: Sequence[str]) -> None:
    every = max(1, len(names) // 60)
    # A dollar sign would begin a formula.
    labels = [name[-40:].replace("$", r"\$") for name in names[::every]]
    axes.set_xticks(range(0, len(names), every), labels, rotation=90, fontsize=6)


def _png(figure: Any) -> tuple[bytes, tuple[int, int]]:
    content = io.BytesIO()
    figure.set_layout_engine("tight")
    figure.savefig(content, format="png")
    width, height = figure.get_size_inches() * DPI
    return content.getvalue(), (int(width), int(height))
