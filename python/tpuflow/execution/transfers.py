"""What an instruction moves between external memory and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["ddr_access"]


def ddr_access(work: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Address space, first address and bytes of an instruction's work, None where it moves nothing.

    Args:
        work: As the JSON form of a program has it.
    """
    ((kind, content),) = work.items()
    if kind == "Transfer":
        size = content["bytes"] * content["counts"][0] * content["counts"][1]
        return content["ddr_space"], content["ddr_address"], size
    if kind == "Expand":
        codes = -(-content["row_bytes"] // 2)
        header = content["row_bytes"] + (codes if content["codes"] == "ZeroPoints" else 0)
        size = -(-content["rows"] // content["block"]) * header + content["rows"] * codes
        return content["ddr_space"], content["ddr_address"], size
    if kind == "Lookup":
        table = content["table"]
        row = table["channels"] * np.dtype(table["dtype"].replace("bfloat16", "uint16")).itemsize
        return table["space"]["Ddr"], table["address"], content["count"] * row
    return None
