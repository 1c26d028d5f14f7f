"""Presets of the compiler, a module each."""

from tpu_compiler.compiler.presets._o1 import O1
from tpu_compiler.compiler.presets._o5 import O5

__all__ = ["O1", "O5"]
