"""How many threads this process may use: one number for NumPy work here, onnxruntime and the kernels."""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "stated_threads", "threads"]

VARIABLE = "RAYON_NUM_THREADS"
"""The environment variable that states it, which the kernels read as well; workers set it to their share."""


def stated_threads() -> int | None:
    """The number that the environment states; None where it states none."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def threads() -> int:
    """The number that the environment states, or that of processors."""
    return stated_threads() or os.cpu_count() or 1
