"""Golden vectors: one layer of a program as a testbench needs it, from the simulator.

window.py      the layer's cycles: memories before and after, operands and result as codes
trace.py       what is seen at units, ports and channels in a window of cycles, with the words that move
images.py      memories as hexadecimal text for `$readmemh` and as binary
waveform.py    a trace as a value change dump (VCD) and as tables (CSV)
writer.py      all of it in a folder, with a manifest
"""

from tpuflow.execution.vectors.window import LayerVectors, VectorError, layer_vectors
from tpuflow.execution.vectors.writer import estimated_bytes, write_vectors

__all__ = ["LayerVectors", "VectorError", "estimated_bytes", "layer_vectors", "write_vectors"]
