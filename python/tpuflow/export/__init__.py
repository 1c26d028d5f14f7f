"""Quantised graphs for others: as ONNX with quantisers, as scales, as thresholds."""

from tpuflow.export.qdq import quantised_onnx, scales

__all__ = ["quantised_onnx", "scales"]
