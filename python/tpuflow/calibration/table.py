"""Ranges as a calibration table: a line of text per tensor, as other compilers keep them.

    # op_name threshold min max
    conv1_out 3.75 -2.5 3.75

The threshold is the largest magnitude that counts: where it is below those of min and max, it clips them.
Names may hold blanks; the last three words of a line are its numbers. Lines that begin with # say nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tpuflow.errors import RangesError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HEADER", "from_table", "to_table"]

HEADER = "# op_name threshold min max"

NUMBERS = 3


def to_table(pairs: Mapping[str, tuple[float, float]]) -> str:
    """The text for smallest and largest values by tensor name; read again it gives the same numbers."""
    rows = [f"{name} {max(-low, high)!r} {low!r} {high!r}" for name, (low, high) in pairs.items()]
    return "\n".join([HEADER, *rows]) + "\n"


def from_table(text: str, source: str = "table") -> dict[str, tuple[float, float]]:
    """Smallest and largest values by tensor name, zero among them; `source` names the text in errors.

    Raises:
        RangesError: A line is not a name and three finite numbers, or a name occurs twice.
    """
    found: dict[str, tuple[float, float]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, *words = line.strip().rsplit(maxsplit=NUMBERS)
        try:
            threshold, low, high = map(float, words)
        except ValueError:
            raise RangesError(
                f'{source}: line {number}: "{line.strip()}" is not a name, threshold, minimum, maximum'
            ) from None
        if not all(map(math.isfinite, (threshold, low, high))) or threshold < 0 or low > high:
            raise RangesError(
                f"{source}: line {number}: {name} has threshold {threshold:g}, range {low:g} to {high:g}: "
                "numbers must be finite, the threshold not negative, the minimum not above the maximum"
            )
        if name in found:
            raise RangesError(f'{source}: line {number}: "{name}" occurs twice')
        found[name] = min(0.0, max(low, -threshold)), max(0.0, min(high, threshold))
    return found
