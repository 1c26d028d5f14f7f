"""Models before and after quantisation under their published module."""

from tpu_framework.models import InMemoryQuantizedModel, QuantizedModel, RegularModel, TpuDtype

__all__ = ["InMemoryQuantizedModel", "QuantizedModel", "RegularModel", "TpuDtype"]
