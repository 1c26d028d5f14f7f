"""The error for what the published interface has and `tpuflow` has not."""

from __future__ import annotations

from tpuflow.errors import TpuflowError

__all__ = ["NotAvailableError"]


class NotAvailableError(TpuflowError):
    """A published name or value the native side has nothing for."""
