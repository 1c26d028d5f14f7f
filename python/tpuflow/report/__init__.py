"""Results of a run as files: one HTML page, a Perfetto trace. Nothing is recomputed here.

    timeline.py      what every unit did when, from the run's intervals and the program's instructions
    page.py          the figures of a run as one self-contained HTML page (template.html, page.css, page.js)
    perfetto.py      the timeline as a Perfetto trace
    words.py         what units, bounds and stall causes are called, and what they mean

Everything is read from the JSON forms of `Run` and `Program`, so a page can be made again from saved files.
"""

from tpuflow.report.page import render_page
from tpuflow.report.perfetto import encode_trace
from tpuflow.report.timeline import Allocation, Slice, Timeline, timeline, timeline_of_all

__all__ = ["Allocation", "Slice", "Timeline", "encode_trace", "render_page", "timeline", "timeline_of_all"]
