"""Quantised graphs for others: as ONNX with quantisers, as scales, as thresholds."""

from tpuflow.export.qdq import activation_grids, quantised_onnx, scales

__all__ = ["activation_grids", "quantised_onnx", "scales"]
