"""Golden vectors: test vectors of one layer for testbenches of the hardware.

window.py      the layer's cycles: memories before and after, operands and result as codes
trace.py       activity of units, ports and channels in a window of cycles, with the data words
images.py      memories as hexadecimal text for `$readmemh` and as binary
waveform.py    a trace as a value change dump (VCD) and as tables (CSV)
writer.py      all of it in a folder, with a manifest
"""

from tpuflow.execution.vectors.window import LayerVectors, VectorError, layer_vectors
from tpuflow.execution.vectors.writer import estimated_bytes, write_vectors

__all__ = ["LayerVectors", "VectorError", "estimated_bytes", "layer_vectors", "write_vectors"]
