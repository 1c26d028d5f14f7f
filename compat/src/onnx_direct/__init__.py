"""The converter, where the published framework keeps it."""

from onnx_direct._convert import onnx_to_tf

__all__ = ["onnx_to_tf"]
