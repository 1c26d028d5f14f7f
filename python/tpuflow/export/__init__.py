"""Export of quantised graphs: ONNX with quantisers (QDQ), bit-exact integer ONNX, files of scales."""

from tpuflow.export.integers import integer_onnx
from tpuflow.export.qdq import activation_grids, quantized_onnx, scales

__all__ = ["activation_grids", "integer_onnx", "quantized_onnx", "scales"]
