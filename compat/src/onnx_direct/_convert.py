"""The converter under its published module."""

from tpu_framework.graphs import onnx_to_tf

__all__ = ["onnx_to_tf"]
