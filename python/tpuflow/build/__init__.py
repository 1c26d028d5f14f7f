"""All stages in a row, from a model file to a checked program, each timed and announced.

    built = build(Request(Path("model.onnx"), level=5, calibration=Path("calib.npz")))
    built.program.save("model.tpu")

A request may also start in the middle, from a quantised graph.

    request.py      what to build
    pipeline.py     the stages in a row: import, the recipe of `tpuflow.refine`, schedule with its check
    stages.py       what a request means for each of them; samples.py: the samples they are given
    trials.py       networks with layers of any precision, for searches and questions
    intermediates.py files of what lies between the stages
    sizes.py        bytes of constants, and of the process
"""

from tpuflow.build.pipeline import Built, build
from tpuflow.build.request import Request
from tpuflow.build.samples import calibration_data, made_up, samples_of
from tpuflow.build.sizes import (
    Sizes,
    activation_bytes,
    bit_operations,
    float_bytes,
    graph_bytes,
    peak_rss_bytes,
)
from tpuflow.build.stages import calibrated, starting
from tpuflow.build.trials import trials
from tpuflow.refine import Listener

__all__ = [
    "Built",
    "Listener",
    "Request",
    "Sizes",
    "activation_bytes",
    "bit_operations",
    "build",
    "calibrated",
    "calibration_data",
    "float_bytes",
    "graph_bytes",
    "made_up",
    "peak_rss_bytes",
    "samples_of",
    "starting",
    "trials",
]
