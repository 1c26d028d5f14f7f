"""Lowerings by concept; importing this package fills the registry."""

from __future__ import annotations

from tpuflow.lowering.ops import (
    elementwise,
    index,
    linear,
    logic,
    norm,
    pool,
    reduce,
    resize,
    shape,
    stated,
    transposed,
    unary,
    whole,
)

__all__ = [
    "elementwise",
    "index",
    "linear",
    "logic",
    "norm",
    "pool",
    "reduce",
    "resize",
    "shape",
    "stated",
    "transposed",
    "unary",
    "whole",
]
