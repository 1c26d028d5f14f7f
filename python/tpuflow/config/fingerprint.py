"""Which network of integers a configuration makes, in a line: what is measured of one holds for no other."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from tpuflow.config.models import SELECTORS
from tpuflow.config.quantization import QuantizeConfig

if TYPE_CHECKING:
    from tpuflow.config.models import Config

__all__ = ["fingerprint"]

AROUND = {"lenient", "quant_input", "quant_output", "quant_inputs", "quant_outputs"}
"""Keys that change no layer."""


def fingerprint(config: Config) -> str:
    """Type, width of weights and a hash of what decides on codes: `int8, 4-bit weights, 1f3a5b7d`.

    How ranges are chosen does not belong to it: they are known by their numbers. That weights are refined
    does, since nothing else says so.
    """
    quantize = config.quantize
    entries: list[dict[str, Any]] = []
    for entry in reversed(config.layers):
        own = entry.overrides(QuantizeConfig)
        found = entry.model_dump(mode="json", include={*SELECTORS, *own}, exclude_none=True)
        if own and found not in entries:  # the later of two equal ones wins, so the earlier is idle
            entries.append(found)
    decides = [
        quantize.model_dump(mode="json", exclude=AROUND),
        entries,
        config.calibrate.global_calibration,
    ]
    text = json.dumps(decides, sort_keys=True)
    width = quantize.weight_bits or (8 if quantize.dtype == "int8" else 16)
    return f"{quantize.dtype}, {width}-bit weights, {hashlib.sha256(text.encode()).hexdigest()[:8]}"
