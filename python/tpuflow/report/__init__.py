"""Results of a run as files: one HTML page, a Perfetto trace, pictures. Nothing is recomputed here.

    timeline.py      intervals of every unit, from the run and the program's instructions
    page.py          a run, or two, as one self-contained HTML page (template.html, page.css, *.js)
    decoder.py       the phases of a decoder as a page (decoder.html); macros.html: parts of both pages
    figures.py       its tables and bars; plots.py: its roofline and similarity; tensors.py: rows of tensors
    histograms.py    distributions of calibrated tensors with thresholds
    overlay.py       distributions before and after quantisation, over the same bins
    picture.py       a network as a picture, marked by a comparison
    notebook.py      notebook display of graphs, programs and runs
    perfetto.py      the timeline as a Perfetto trace
    words.py         names and descriptions of units, bounds and stall causes

Everything is read from the JSON forms of `Run` and `Program`, so a page can be made again from saved files.
"""

from tpuflow.report.decoder import render_decoder_page
from tpuflow.report.histograms import TensorHistogram, load_histograms, save_histograms, tensor_histograms
from tpuflow.report.overlay import Overlay, save_overlays
from tpuflow.report.page import RunView, render_page
from tpuflow.report.perfetto import encode_trace
from tpuflow.report.picture import Mark, Node, dot_text, graph_nodes, host_node, join_segments, svg_picture
from tpuflow.report.tensors import tensor_rows
from tpuflow.report.timeline import Allocation, Slice, Timeline, timeline, timeline_of_all

__all__ = [
    "Allocation",
    "Mark",
    "Node",
    "Overlay",
    "RunView",
    "Slice",
    "TensorHistogram",
    "Timeline",
    "dot_text",
    "encode_trace",
    "graph_nodes",
    "host_node",
    "join_segments",
    "load_histograms",
    "render_decoder_page",
    "render_page",
    "save_histograms",
    "save_overlays",
    "svg_picture",
    "tensor_histograms",
    "tensor_rows",
    "timeline",
    "timeline_of_all",
]
