"""Quantise, compile and simulate neural networks for a systolic-array TPU, to the bit and to the cycle.

    model   = tpuflow.load("model.onnx")                                   # float model, normalised
    samples = tpuflow.samples("samples.npz", model)                        # calibration samples
    graph   = tpuflow.quantize(model, samples=samples)                     # the whole recipe: integer graph
    program = tpuflow.compile(graph, machine="128x128_asic", level=5)      # instructions
    run     = tpuflow.simulate(program, {"input": x})                      # outputs and cycles

or all of it at once: `tpuflow.build("model.onnx", "samples.npz", level=5).program`. Operators that the
machine lacks run on the host on request: `model = tpuflow.partition(tpuflow.load(path, host=True))`, and
every later step accepts and returns segmented networks as it does whole ones.

Names are imported on first use (PEP 562), so that the command line starts quickly.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuflow import kernels, reference, runtime
    from tpuflow._core import Graph, Program
    from tpuflow.calibration import Ranges, calibrate
    from tpuflow.compiler import Machine, compile  # noqa: A004 - the step's name
    from tpuflow.config import Config, load_config
    from tpuflow.errors import TpuflowError
    from tpuflow.execution.explanation import explain
    from tpuflow.execution.simulation import Run, simulate
    from tpuflow.frontend import FloatModel, get_sub_model, load, onnx_to_tf, specialize
    from tpuflow.importers import from_torch
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning import Partitioned, partition
    from tpuflow.pipeline import BuildResult, Request
    from tpuflow.pipeline.api import build, compare, evaluate, samples, search
    from tpuflow.ptq import Listener, Recipe, quantize
    from tpuflow.report.tensorboard import set_log_folder

_PACKAGES = {
    "BuildResult": "pipeline",
    "Config": "config",
    "FloatModel": "frontend",
    "Graph": "_core",
    "Listener": "ptq",
    "Machine": "compiler",
    "Partitioned": "partitioning",
    "Program": "_core",
    "Ranges": "calibration",
    "Recipe": "ptq",
    "Request": "pipeline",
    "Run": "execution.simulation",
    "Samples": "io.samples",
    "TpuflowError": "errors",
    "build": "pipeline.api",
    "calibrate": "calibration",
    "compare": "pipeline.api",
    "compile": "compiler",
    "evaluate": "pipeline.api",
    "explain": "execution.explanation",
    "from_torch": "importers",
    "get_sub_model": "frontend",
    "kernels": "",
    "load": "frontend",
    "load_config": "config",
    "onnx_to_tf": "frontend",
    "partition": "partitioning",
    "quantize": "ptq",
    "reference": "",
    "runtime": "",
    "samples": "pipeline.api",
    "search": "pipeline.api",
    "set_log_folder": "report.tensorboard",
    "simulate": "execution.simulation",
    "specialize": "frontend",
}
"""Every public name and the module it comes from; without one it is a module itself."""

__all__ = [
    "BuildResult",
    "Config",
    "FloatModel",
    "Graph",
    "Listener",
    "Machine",
    "Partitioned",
    "Program",
    "Ranges",
    "Recipe",
    "Request",
    "Run",
    "Samples",
    "TpuflowError",
    "build",
    "calibrate",
    "compare",
    "compile",
    "evaluate",
    "explain",
    "from_torch",
    "get_sub_model",
    "kernels",
    "load",
    "load_config",
    "onnx_to_tf",
    "partition",
    "quantize",
    "reference",
    "runtime",
    "samples",
    "search",
    "set_log_folder",
    "simulate",
    "specialize",
]

_SHOWN = {"tpuflow._core": ("Graph", "Program"), "tpuflow.execution.simulation": ("Run",)}
"""Classes that notebooks show as HTML, by module."""


def __getattr__(name: str) -> Any:
    if name not in _PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = _PACKAGES[name]
    module = import_module(f"{__name__}.{package or name}")
    value = getattr(module, name) if package else module
    globals()[name] = value
    _show_in_notebooks()
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _show_in_notebooks() -> None:
    """Gives classes their display as far as they are imported; the extension cannot know the report."""
    for module, kinds in _SHOWN.items():
        for kind in kinds if module in sys.modules else ():
            shown = getattr(sys.modules[module], kind, None)
            if shown is not None and not hasattr(shown, "_repr_html_"):
                shown._repr_html_ = _display(kind)


def _display(kind: str) -> Any:
    def html(shown: object) -> str:
        text: str = getattr(import_module("tpuflow.report.notebook"), f"{kind.lower()}_html")(shown)
        return text

    return html
