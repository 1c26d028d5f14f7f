"""The table form of settings by layer: one name and one mode a line, such as TPU-MLIR's tools read and write.

    # op_name  quantize_mode
    /conv1     INT16
    /head      F32

Modes are those of `MODES`; everything else stays as configured elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuflow.config.section import ConfigError

__all__ = ["MODES", "parse_table", "table_text"]

MODES: Mapping[str, Mapping[str, Any]] = {
    "INT4": {"dtype": "int8", "activation_bits": 8, "weight_bits": 4},
    "INT8": {"dtype": "int8", "activation_bits": 8},
    "INT16": {"dtype": "int16", "activation_bits": 16},
    "F16": {"dtype": "float16"},
    "BF16": {"dtype": "bfloat16"},
    "F32": {"dtype": "float32"},
}
"""By name: the fields of a layer. INT4 has weights of 4 bits; those of the others
are as configured for the network, by default of the type."""


def parse_table(text: str, source: str) -> dict[str, Any]:
    """The table as entries of `layers`, later lines last.

    Raises:
        ConfigError: Naming line, and what is wrong with it.
    """
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ConfigError(f"{source}:{number}: write NAME MODE, not {line.strip()}")
        name, mode = words
        if mode.upper() not in MODES:
            raise ConfigError(f"{source}:{number}: mode {mode} is none of {', '.join(MODES)}")
        entries.append({"names": [name], **MODES[mode.upper()]})
    return {"layers": entries}


def table_text(modes: Mapping[str, str]) -> str:
    """The table of modes by layer name."""
    width = max(map(len, modes), default=0)
    rows = [f"{name:<{width}} {mode}\n" for name, mode in modes.items()]
    return "".join(["# op_name quantize_mode\n", *rows])
