"""Values held within bounds before they count, for networks whose activations reach infinity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.config.strategies import parsed_trim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["trim_activations"]


def trim_activations(
    activations: Mapping[str, NDArray[np.float32]], trim: str, own: Mapping[str, str] | None = None
) -> Mapping[str, NDArray[np.float32]]:
    """The activations as `trim` leaves them: `clip(a,b)`, `second(a,b)` or nothing; NaN stays.

    `own` holds what is done to single tensors instead, by name.
    """
    parsed = {text: parsed_trim(text) for text in {trim, *(own or {}).values()}}
    if not any(parsed.values()):
        return activations
    found = {}
    for name, array in activations.items():
        wanted = parsed[(own or {}).get(name, trim)]
        found[name] = array if wanted is None else _trim(array, *wanted)
    return found


def _trim(array: NDArray[np.float32], kind: str, low: float, high: float) -> NDArray[np.float32]:
    if kind == "second" and array.size:
        # Zero stands in for what lies at or beyond the bounds, which zero is always within.
        inside = np.where((array > min(low, 0.0)) & (array < max(high, 0.0)), array, np.float32(0))
        low, high = float(inside.min()), float(inside.max())
    largest = float(np.finfo(np.float32).max)
    return np.clip(array, np.float32(max(low, -largest)), np.float32(min(high, largest)))
