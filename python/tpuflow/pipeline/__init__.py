"""The whole pipeline, from a model file to a checked program, with progress and timing of each stage.

    built = build(Request(Path("model.onnx"), level=5, calibration=Path("calib.npz")))
    built.program.save("model.tpu")

A request may also start in the middle, from a quantised graph.

    request.py      what to build
    builder.py      runs the stages: import, the recipe of `tpuflow.ptq`, scheduling, checking
    stages.py       settings of each stage from a request; samples.py: their samples
    trials.py       graphs with other precisions by layer, for searches
    api.py          the public functions: `tpuflow.build` and others
    preflight.py    everything that prevents a build, before any work
    zoo/            sweeps over folders of networks; smoke.py: a tiny built-in network
    bundle.py       programs and test data in one file; constants.py: a program with other constants
    intermediates.py files of intermediate results
    sizes.py        memory of constants and of the process
"""

from tpuflow.frontend import generated
from tpuflow.pipeline.builder import BuildResult, build
from tpuflow.pipeline.request import Request
from tpuflow.pipeline.samples import calibration_data, samples_of
from tpuflow.pipeline.sizes import (
    Sizes,
    activation_bytes,
    bit_operations,
    float_bytes,
    graph_bytes,
    peak_rss_bytes,
)
from tpuflow.pipeline.stages import calibrate_model, starting
from tpuflow.pipeline.trials import trials
from tpuflow.ptq import Listener

__all__ = [
    "BuildResult",
    "Listener",
    "Request",
    "Sizes",
    "activation_bytes",
    "bit_operations",
    "build",
    "calibrate_model",
    "calibration_data",
    "float_bytes",
    "generated",
    "graph_bytes",
    "peak_rss_bytes",
    "samples_of",
    "starting",
    "trials",
]
