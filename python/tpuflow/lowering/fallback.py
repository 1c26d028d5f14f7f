"""Layers whose element type the target does not have, and what they have instead where that is allowed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tpuflow.config import Config
from tpuflow.config.operators import types_of
from tpuflow.lowering.target import load_target

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["as_target_has"]

logger = logging.getLogger(__name__)

TYPES = ("int16", "int8", "float16", "bfloat16", "float32")
"""Types that layers are cast to: the first that the target has, after those the configuration names."""


def as_target_has(config: Config, model: ir.Model) -> Config:
    """The configuration with an entry for every layer that falls back or is cast to a type of the target.

    `fallback` says so for layers in floats, `cast_dtypes` for operators; all other layers stay as they are,
    and are an error where the target forbids their type.
    """
    target, quantize = load_target(config.quantize.target), config.quantize
    casts = frozenset[str]().union(*map(types_of, quantize.cast_dtypes))
    everywhere = "*" in quantize.cast_dtypes
    entries: list[dict[str, object]] = []
    for node in model.graph:
        chosen = config.quantization(node.name or "", *(value.name or "" for value in node.outputs))
        if not (chosen.fallback or everywhere or node.op_type in casts):
            continue
        if not node.name or target.allows(node.op_type, chosen.dtype):
            continue
        wanted = ((chosen.fallback,) if chosen.fallback else ()) + TYPES
        dtype = next((each for each in wanted if target.allows(node.op_type, each)), None)
        if dtype is not None:
            entries.append({"names": [node.name], "dtype": dtype})
    if not entries:
        return config
    logger.info('%d layers have another type, as target "%s" has them', len(entries), target.name)
    return config.model_copy(
        update={"layers": (*config.layers, *Config.parse({"layers": entries}, "fallback").layers)}
    )
