"""The preset `O5`."""

from tpuflow.compiler.parameters import O5

__all__ = ["O5"]
