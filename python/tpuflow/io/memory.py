"""How much memory data from files may take, and sizes in words.

The limit is the memory this machine has free, as far as the system tells, or what `TPUFLOW_MEMORY_LIMIT`
says, a number of bytes.
"""

from __future__ import annotations

import os
from pathlib import Path

from tpuflow.errors import TpuflowError

__all__ = ["bytes_text", "memory_limit"]

VARIABLE = "TPUFLOW_MEMORY_LIMIT"
UNKNOWN = 8 << 30
"""Where the system does not tell."""


def memory_limit() -> int:
    """Bytes that data from files may take.

    Raises:
        TpuflowError: `TPUFLOW_MEMORY_LIMIT` is not a number of bytes.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return min(_available(), _control_group())
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise TpuflowError(f'{VARIABLE}: "{text[:40]}" is not a number of bytes')
    return int(text)


def _available() -> int:
    """Memory the system could give without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return UNKNOWN


def _control_group() -> int:
    """Memory that a container may still take; all there is where it has no limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        most = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        return max(0, int(most) - used) if most != "max" else 1 << 62
    except (OSError, ValueError):
        return 1 << 62


def bytes_text(count: float) -> str:
    """A number of bytes in the largest binary unit that leaves at least 1: `1.50 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} PiB"
