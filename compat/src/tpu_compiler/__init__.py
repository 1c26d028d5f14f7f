"""The compiler, where the published framework keeps it: `tpu_compiler.compiler`."""

from tpu_compiler import compiler

__all__ = ["compiler"]
