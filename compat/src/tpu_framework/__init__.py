"""The names, signatures and defaults of a vendor's published framework, each a few lines over `tpuflow`.

    graph, names = onnx_to_tf(proto)
    model = RegularModel(graph.as_graph_def(), {"image": [1, 1, 8, 8]}, ["logits"])
    quantized = model.quantize(model.calibrate(samples))
    network, renaming = Network.from_quantized_model(quantized)
    executable, descriptions = compiler.compile_(TPU_128x128_PARAMS, network, O5)
    TpuProgram.from_executable(executable, descriptions).to_file("model.tpu")

hardware.py    machines: `get_hw_params`, `ModelParameters`
graphs.py      `onnx_to_tf`, graphs and `GraphDef`
models.py      `RegularModel`, `QuantizedModel`
programs.py    `Network`, `compile_`, `TpuProgram`, `model_execute`
compiler.py    the compiler as a module, with its presets
tensorflow.py  what scripts run graphs with

What `tpuflow` cannot do raises `NotAvailableError` and is never ignored. The other packages of this
distribution (`pytpu`, `tpu_compiler`, `dnn_quant`, ...) give the same names where scripts import them.
"""

from tpu_framework import compiler
from tpu_framework.graphs import GraphDef, TfGraph, onnx_to_tf
from tpu_framework.hardware import ModelParameters, TPU_128x128_PARAMS, TpuParameters, get_hw_params
from tpu_framework.missing import NotAvailableError
from tpu_framework.models import InMemoryQuantizedModel, QuantizedModel, RegularModel, TpuDtype
from tpu_framework.programs import (
    Executable,
    ExecutionResult,
    Network,
    Segment,
    TensorAxis,
    TpuProgram,
    compile_,
    model_execute,
)
from tpuflow.compiler.parameters import (
    DEFAULT,
    O1,
    O5,
    BalancingMode,
    BiasScaleNegativeScaleAggressiveGrouping,
    CompileParameters,
    DependencyResolutionAlgorithm,
    IntermediateInsertion,
    ScheduleOptimization,
    SubgraphSlicerParameters,
)
from tpuflow.frontend import get_sub_model
from tpuflow.runtime import Device, TensorDescription, convert_to_raw

__all__ = [
    "DEFAULT",
    "O1",
    "O5",
    "BalancingMode",
    "BiasScaleNegativeScaleAggressiveGrouping",
    "CompileParameters",
    "DependencyResolutionAlgorithm",
    "Device",
    "Executable",
    "ExecutionResult",
    "GraphDef",
    "InMemoryQuantizedModel",
    "IntermediateInsertion",
    "ModelParameters",
    "Network",
    "NotAvailableError",
    "QuantizedModel",
    "RegularModel",
    "ScheduleOptimization",
    "Segment",
    "SubgraphSlicerParameters",
    "TPU_128x128_PARAMS",
    "TensorAxis",
    "TensorDescription",
    "TfGraph",
    "TpuDtype",
    "TpuParameters",
    "TpuProgram",
    "compile_",
    "compiler",
    "convert_to_raw",
    "get_hw_params",
    "get_sub_model",
    "model_execute",
    "onnx_to_tf",
]
