"""Keys of other tools that stand for several fields at once, and presets of many.

Compass writes a grid and its granularity as one name (`per_channel_symmetric_restricted_range`), and what
is computed in floats as `trigger_float_op`. A preset (`quant_type = "w8a16"`) sets all widths together.
Names that stand for one field each are declared with that field, see `section.Also`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tpuflow.config.choices import choices

__all__ = ["COMPOUNDS", "GRIDS", "METHODS", "PRESETS", "QUANT_TYPES"]

GRIDS: Mapping[str, str] = {
    "symmetric_restricted_range": "symmetric_restricted",
    "symmetric_full_range": "symmetric_full",
    "asymmetric": "asymmetric",
}
"""Grids by the names methods end with."""

METHODS = tuple(f"per_{what}_{grid}" for what in ("tensor", "channel", "block") for grid in GRIDS)
"""All nine names of methods."""

FLOATS: Mapping[str, str] = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
}


def _method(value: Any) -> tuple[str, str]:
    """Granularity and grid of a method."""
    if value not in METHODS:
        raise ValueError(f'"{value}" is not a method, {choices(str(value), METHODS)}')
    _, granularity, grid = str(value).split("_", 2)
    return granularity, GRIDS[grid]


def _of_activations(value: Any) -> dict[str, Any]:
    granularity, grid = _method(value)
    if granularity != "tensor":
        raise ValueError(f'"{value}" is not a method for activations, which have one scale per tensor')
    return {"activation_mode": grid}


def _of_weights(value: Any) -> dict[str, Any]:
    granularity, grid = _method(value)
    if granularity == "block":
        return {"weight_mode": grid, "per_block": True}
    return {"weight_mode": grid, "per_channel": granularity == "channel"}


def _float_operators(value: Any) -> dict[str, Any]:
    """`disable`, `TYPE_preferred`, or `TYPE_act_int_wht` for weights in codes.

    With an exclamation mark no layer falls back to codes where the target has no such floats.
    """
    if value in {False, "disable"}:
        return {}
    match = re.fullmatch(r"(float16|bfloat16|float32)_(preferred|act_int_wht)(!?)", str(value))
    if match is None:
        types, kinds = ("float16", "bfloat16", "float32"), ("preferred", "act_int_wht")
        known = ["disable", *(f"{each}_{kind}" for kind in kinds for each in types)]
        raise ValueError(f'trigger_float_op = "{value}" is not available, {choices(str(value), known)}')
    fallback = {} if match[3] else {"fallback": "int8"}
    return {"dtype": match[1], **fallback} | ({"weight_only": True} if match[2] == "act_int_wht" else {})


COMPOUNDS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "quantize_method_for_activation": _of_activations,
    "q_mode_activation": _of_activations,
    "quantize_method_for_weight": _of_weights,
    "q_mode_weight": _of_weights,
    "trigger_float_op": _float_operators,
}
"""From the value of a foreign key to the fields it stands for."""

WIDE = {"bias_bits": 48, "table_bits": 10}
NARROW = {"bias_bits": 32, "table_bits": 8}

QUANT_TYPES: Mapping[str, dict[str, Any]] = {
    "disable": {},
    "w8a8": {"dtype": "int8", "activation_bits": 8, "weight_bits": 8, **NARROW},
    "w8a16": {"dtype": "int16", "activation_bits": 16, "weight_bits": 8, **WIDE},
    "w16a16": {"dtype": "int16", "activation_bits": 16, "weight_bits": 16, **WIDE},
    **{name: {"dtype": dtype} for name, dtype in FLOATS.items()},
    **{
        f"w{bits}{name.replace('p', '')}": {
            "dtype": FLOATS[name],
            "weight_only": True,
            "weight_bits": bits,
            "per_block": True,
            "weight_block_size": 64,
        }
        for bits in (8, 4)
        for name in ("fp16", "bf16")
    },
}
"""Fields that each preset sets."""


def _preset(value: Any) -> dict[str, Any]:
    if value not in QUANT_TYPES:
        raise ValueError(f'quant_type = "{value}" is not known, {choices(str(value), QUANT_TYPES)}')
    return QUANT_TYPES[value]


PRESETS: Mapping[str, Callable[[Any], dict[str, Any]]] = {"quant_type": _preset}
"""Keys that stand for many fields and yield to each of them."""
