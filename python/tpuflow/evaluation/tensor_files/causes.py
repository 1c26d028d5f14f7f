"""Why two arrays that should be alike are not: the most probable of four causes, from the numbers alone.

| cause | what is seen |
|---|---|
| `dtype` | integers wrapped around, or the codes of the other's numbers: a constant factor and offset apart |
| `layout` | the same numbers in other places; the order of axes that brings them back, if one does |
| `saturation` | most of the error stands where one array sits at its own extreme and the other goes beyond |
| `range` | the same shape of values on another scale, or rounded to a step too coarse for them |
| `value` | none of these: another computation |

They are tried in this order, each against what would remain of the error if it were undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tpuflow.evaluation.similarity import cosine, euclid

__all__ = ["Cause", "cause"]

Array = NDArray[Any]
Kind = Literal["dtype", "layout", "saturation", "range", "value"]
EXPLAINED = 0.99
"""Similarity that must come back when a cause is undone."""


@dataclass(frozen=True)
class Cause:
    """A probable cause.

    Attributes:
        kind: Its class.
        detail: What was seen, one phrase.
    """

    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


def cause(reference: Array, other: Array) -> Cause:
    """The probable cause of a difference.

    Args:
        reference: What should be.
        other: What is; another shape counts as another layout.
    """
    if reference.shape != other.shape:
        same = reference.size == other.size
        what = "the same number of elements" if same else f"{reference.size} and {other.size} elements"
        return Cause("layout", f"shapes {list(reference.shape)} and {list(other.shape)}, {what}")
    if "O" in (reference.dtype.kind, other.dtype.kind) or not reference.size:
        return Cause("dtype", f"types {reference.dtype} and {other.dtype}")
    x, y = reference.astype(np.float64), other.astype(np.float64)
    broken = np.isfinite(x) != np.isfinite(y)
    if broken.any():
        count = int(np.count_nonzero(broken))
        return Cause(
            "range", f"NaN or infinity in only one of them at {count} places: beyond the type's range"
        )
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    found = _wraparound(reference, other, x, y) or _codes(reference, other, x, y) or _permutation(x, y)
    return (
        found or _saturation(x, y) or _scaling(x, y) or Cause("value", "other numbers: another computation")
    )


def _alike(x: Array, y: Array) -> bool:
    return cosine(x, y) >= EXPLAINED and euclid(x, y) >= EXPLAINED - 0.05


def _wraparound(reference: Array, other: Array, x: Array, y: Array) -> Cause | None:
    if not {reference.dtype.kind, other.dtype.kind} <= set("iu"):
        return None
    difference = x - y
    apart = difference[difference != 0]
    for bits in (8, 16, 32):
        if apart.size and not (apart % 2.0**bits).any():
            return Cause(
                "dtype", f"{apart.size} elements are a multiple of 2^{bits} apart: integers wrapped around"
            )
    return None


def _codes(reference: Array, other: Array, x: Array, y: Array) -> Cause | None:
    """One array holds integers and the other what they stand for."""
    if (reference.dtype.kind == "f") == (other.dtype.kind == "f"):
        return None
    fit = _line(x, y)
    if fit is None or not _alike(x, fit[2]):
        return None
    gain, offset, _ = fit
    return Cause(
        "dtype",
        f"{reference.dtype} and {other.dtype}: one holds the codes of the other, "
        f"x = {gain:.6g} y + {offset:.6g}",
    )


def _permutation(x: Array, y: Array) -> Cause | None:
    if not _alike(np.sort(x, axis=None), np.sort(y, axis=None)) or _alike(x, y):
        return None
    if x.ndim <= 5:
        for order in permutations(range(x.ndim)):
            turned = y.transpose(order)
            if order == tuple(range(x.ndim)):
                continue
            if turned.shape == x.shape and _alike(x, turned):
                return Cause("layout", f"the same numbers with their axes in order {list(order)}")
            if _alike(x, np.ascontiguousarray(turned).reshape(x.shape)):
                return Cause("layout", f"the same numbers as if their axes were read in order {list(order)}")
            shape = [x.shape[axis] for axis in order]
            if _alike(x, y.reshape(shape).transpose(np.argsort(order))):
                return Cause("layout", f"the same numbers as if they lay with axes in order {list(order)}")
    flat, moved = x.ravel(), y.ravel()
    for distance in range(1, min(flat.size, 33)):
        for sign in (1, -1):
            if _alike(flat, np.roll(moved, sign * distance)):
                return Cause(
                    "layout", f"the same numbers, {distance} elements too {'early' if sign > 0 else 'late'}"
                )
    return Cause("layout", "the same numbers in other places")


def _saturation(x: Array, y: Array) -> Cause | None:
    error = (x - y) ** 2
    total = float(error.sum())
    low, high = float(y.min()), float(y.max())
    ends = ((y == high) & (x > high)) | ((y == low) & (x < low))
    share = float(ends.mean())
    if not total or ends.sum() < 2 or float(error[ends].sum()) < 0.5 * total:
        return None
    beyond = f"{float(x.min()):.6g} to {float(x.max()):.6g} against {low:.6g} to {high:.6g}"
    return Cause("saturation", f"{share:.2%} of the elements are cut off: {beyond}")


def _scaling(x: Array, y: Array) -> Cause | None:
    fit = _line(x, y)
    if fit is not None:
        gain, offset, fitted = fit
        spread = float(np.ptp(x)) or 1.0
        off = abs(gain - 1) > 0.02 or abs(offset) > 0.02 * spread
        if off and _alike(x, fitted):
            return Cause("range", f"the same values on another scale, x = {gain:.6g} y + {offset:.6g}")
    levels, wanted = len(np.unique(y)), len(np.unique(x))
    steps = np.diff(np.unique(y))
    step = float(steps.min()) if steps.size else float(np.ptp(x))
    coarse = float(np.abs(x - y).max()) <= 0.75 * step or levels == 1
    if coarse and wanted > 2 * levels and step > 0:
        return Cause(
            "range", f"only {levels} different values, {step:.6g} apart: a range too wide for its codes"
        )
    return None


def _line(x: Array, y: Array) -> tuple[float, float, Array] | None:
    """Gain and offset that bring `y` nearest to `x`, and what they make of it."""
    spread = float(((y - y.mean()) ** 2).sum())
    if not spread:
        return None
    gain = float(((y - y.mean()) * (x - x.mean())).sum()) / spread
    offset = float(x.mean() - gain * y.mean())
    return gain, offset, gain * y + offset
