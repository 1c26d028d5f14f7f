"""The largest resident memory of a stretch of work.

Linux keeps a high-water mark per process and lets it be reset; elsewhere the mark is that of the whole
process so far.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tpuflow.pipeline import peak_rss_bytes

__all__ = ["Peak"]

PROCESS = Path("/proc/self")
RESET = "5"  # proc(5): resets the peak resident set size to the current one


class Peak:
    """Starts at the memory held now."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            (PROCESS / "clear_refs").write_text(RESET, encoding="ascii")

    def bytes(self) -> int:
        """Largest resident memory since the start."""
        try:
            lines = (PROCESS / "status").read_text(encoding="ascii").splitlines()
        except OSError:
            return peak_rss_bytes()
        marks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(marks[0]) * 1024 if marks else peak_rss_bytes()
