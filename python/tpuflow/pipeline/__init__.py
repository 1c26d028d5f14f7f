"""All stages in a row, from a model file to a checked program, each timed and announced.

    built = build(Request(Path("model.onnx"), level=5, calibration=Path("calib.npz")))
    built.program.save("model.tpu")

A request may also start in the middle, from a quantised graph.

    request.py      what to build
    builder.py      the stages in a row: import, the recipe of `tpuflow.ptq`, schedule with its check
    stages.py       what a request means for each of them; samples.py: the samples they are given
    trials.py       networks with layers of any precision, for searches and questions
    api.py          the same in single calls, on what users have: `tpuflow.build` and others
    preflight.py    everything that prevents a build, before any work
    zoo/            a folder of networks through every stage; smoke.py: a tiny network of its own
    bundle.py       programs and test data in one file; constants.py: a program with other constants
    intermediates.py files of what lies between the stages
    sizes.py        bytes of constants, and of the process
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
from tpuflow.pipeline.stages import calibrated, starting
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
    "calibrated",
    "calibration_data",
    "float_bytes",
    "generated",
    "graph_bytes",
    "peak_rss_bytes",
    "samples_of",
    "starting",
    "trials",
]
