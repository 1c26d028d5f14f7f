"""The compiler and its presets under their published module."""

from tpu_compiler.compiler import presets
from tpu_framework.compiler import *  # noqa: F403 - the same names
from tpu_framework.compiler import __all__ as names

__all__ = ["presets"]
__all__.extend(names)
