"""The functional units of the machine, as the extension describes them (`crates/ir/src/isa/unit.rs`)."""

from __future__ import annotations

from tpuflow import _core

__all__ = ["REPORTED", "UNITS"]

UNITS = tuple(_core.units())
"""In the order of counters."""

REPORTED = tuple(sorted(UNITS, key=lambda unit: unit.is_dma))
"""In the order of pages and tables: those that compute, then the DMA lines."""
