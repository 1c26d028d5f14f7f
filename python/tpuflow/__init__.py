"""Quantise, compile and simulate neural networks for a systolic-array TPU, to the bit and to the cycle.

    model   = tpuflow.load("model.onnx")                                   # float model, normalised
    graph   = tpuflow.quantize(model, samples=samples)                     # the whole recipe: integers
    program = tpuflow.compile(graph, machine="128x128_asic", level=5)      # instructions
    run     = tpuflow.simulate(program, {"input": x})                      # outputs and cycles

What the machine cannot do runs on the host on request: `model = tpuflow.partition(tpuflow.load(path,
host=True))`, and every step after it takes and gives networks in segments, as it does whole ones.

The functions are imported when they are first used, so that the command line starts at once.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuflow.calibrate import Ranges, calibrate
    from tpuflow.compile import compile  # noqa: A004 - the step's name
    from tpuflow.config import Config, load_config
    from tpuflow.doors import from_torch
    from tpuflow.errors import TpuflowError
    from tpuflow.event_log import set_log_folder
    from tpuflow.frontend import FloatModel, get_sub_model, load, onnx_to_tf
    from tpuflow.machine import Machine
    from tpuflow.partition import Partitioned, partition
    from tpuflow.refine import quantize
    from tpuflow.simulate import Run, simulate

__all__ = [
    "Config",
    "FloatModel",
    "Machine",
    "Partitioned",
    "Ranges",
    "Run",
    "TpuflowError",
    "calibrate",
    "compile",
    "from_torch",
    "get_sub_model",
    "load",
    "load_config",
    "onnx_to_tf",
    "partition",
    "quantize",
    "set_log_folder",
    "simulate",
]

_HOMES = {
    "Config": "config",
    "FloatModel": "frontend",
    "Machine": "machine",
    "Partitioned": "partition",
    "Ranges": "calibrate",
    "Run": "simulate",
    "TpuflowError": "errors",
    "calibrate": "calibrate",
    "compile": "compile",
    "from_torch": "doors",
    "get_sub_model": "frontend",
    "load": "frontend",
    "load_config": "config",
    "onnx_to_tf": "frontend",
    "partition": "partition",
    "quantize": "refine",
    "set_log_folder": "event_log",
    "simulate": "simulate",
}


_SHOWN = {"_core": ("Graph", "Program"), "simulate": ("Run",)}
"""Classes notebooks show as HTML, by the module they come from."""


def _show(kind: str) -> Callable[[object], str]:
    def html(shown: object) -> str:
        text: str = getattr(import_module("tpuflow.report.notebook"), f"{kind.lower()}_html")(shown)
        return text

    return html


class _Package(ModuleType):
    """This package. Five functions bear the names of the rooms they come from: the function is the attribute.

    Classes that notebooks show get their display when their module is set here, for the extension's cannot
    know the report. Importing a room makes Python set the room as an attribute of the package; rooms are
    reached by import alone.
    """

    def __setattr__(self, name: str, value: object) -> None:
        for kind in _SHOWN.get(name, ()) if isinstance(value, ModuleType) else ():
            shown: Any = getattr(value, kind)
            shown._repr_html_ = _show(kind)
        if name in _HOMES and isinstance(value, ModuleType):
            if _HOMES[name] != name:
                return  # what bears the name comes from elsewhere, see __getattr__
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{self.__name__}.{_HOMES[name]}"), name)
        setattr(self, name, value)
        return value


sys.modules[__name__].__class__ = _Package
