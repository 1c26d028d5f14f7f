"""What an instruction moves between external memory and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["ddr_access"]


def packed_bytes(content: Mapping[str, Any], form: str | Mapping[str, str]) -> int:
    """Bytes of packed weights of `rows` rows of `row_bytes` elements in blocks of `block` rows.

    Args:
        content: Of an instruction, as the JSON form of a program has it.
        form: What the codes are; `{"ByColumn": kind}` where a block is a record for each column.
    """
    rows, columns, block = content["rows"], content["row_bytes"], content["block"]
    blocks = -(-rows // block)
    if not isinstance(form, str):
        header = 2 if form["ByColumn"] == "ZeroPoints" else 1
        codes = rows // block * -(-block // 2) + -(-(rows % block) // 2)
        return int(columns * (blocks * header + codes))
    line = -(-columns // 2)
    return int(blocks * (columns + (line if form == "ZeroPoints" else 0)) + rows * line)


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
        return content["ddr_space"], content["ddr_address"], packed_bytes(content, content["codes"])
    if kind == "Lookup":
        table = content["table"]
        row = table["channels"] * np.dtype(table["dtype"].replace("bfloat16", "uint16")).itemsize
        return table["space"]["Ddr"], table["address"], content["count"] * row
    if kind == "PackedLookup":
        # Of a column a record of every block; entries lie in several address spaces, from one address on.
        by_column = content["columns"] is not None
        form = {"ByColumn": content["codes"]} if by_column else content["codes"]
        entry = packed_bytes({**content, "row_bytes": 1} if by_column else content, form)
        return 0, content["ddr_address"], content["count"] * entry
    return None
