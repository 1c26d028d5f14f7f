"""What of the published interface has no counterpart."""

from __future__ import annotations

from tpuflow.errors import TpuflowError

__all__ = ["NotAvailableError"]


class NotAvailableError(TpuflowError):
    """A published name or value the native side has nothing for."""
