"""Operators of the graph and the types of their parts, as `_core.GraphBuilder.layer` takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpuflow._core import Op

if TYPE_CHECKING:
    from tpuflow._core import (
        AverageFields,
        DivisorFields,
        EpilogueFields,
        ExponentialFields,
        FinishFields,
        FloatFields,
        FloatNormFields,
        FloatReductionFields,
        LinearTapFields,
        NormFields,
        RequantFields,
        TableFields,
        WindowFields,
    )

__all__ = [
    "AverageFields",
    "DivisorFields",
    "EpilogueFields",
    "ExponentialFields",
    "FinishFields",
    "FloatFields",
    "FloatNormFields",
    "FloatReductionFields",
    "LinearTapFields",
    "NormFields",
    "Op",
    "RequantFields",
    "StepFields",
    "TableFields",
    "WindowFields",
]

StepFields = Mapping[str, float | Sequence[int]]
"""A step of a function of floats: its name, and a number or the values it reads."""
