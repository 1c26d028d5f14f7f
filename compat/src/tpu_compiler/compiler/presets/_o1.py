"""The preset `O1`."""

from tpuflow.compiler.parameters import O1

__all__ = ["O1"]
