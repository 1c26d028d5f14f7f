"""The names, signatures and defaults of a vendor's published framework, each a few lines over the native API.

    model = RegularModel(proto, {"image": [1, 1, 8, 8]}, ["logits"])
    thresholds = model.calibrate(samples)
    quantized = model.quantize(thresholds)
    network, renaming = Network.from_quantized_model(quantized)
    executable, descriptions = compile_(TPU_128x128_PARAMS, network, O5)
    TpuProgram.from_executable(executable, descriptions).to_file("model.tpu")

hardware.py    machines: `get_hw_params`, `ModelParameters`
parameters.py  `CompileParameters`, the presets `O1`, `O5`, `DEFAULT`
models.py      `RegularModel`, `QuantizedModel`
programs.py    `Network`, `compile_`, `TpuProgram`, `model_execute`

What the native side cannot do raises `NotAvailableError` and is never ignored. The runtime's names (`Device`,
`convert_to_raw`) are the native ones.
"""

from tpuflow.compat.hardware import ModelParameters, TPU_128x128_PARAMS, TpuParameters, get_hw_params
from tpuflow.compat.missing import NotAvailableError
from tpuflow.compat.models import InMemoryQuantizedModel, QuantizedModel, RegularModel, TpuDtype
from tpuflow.compat.programs import (
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
from tpuflow.frontend import get_sub_model, onnx_to_tf
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
    "TpuDtype",
    "TpuParameters",
    "TpuProgram",
    "compile_",
    "convert_to_raw",
    "get_hw_params",
    "get_sub_model",
    "model_execute",
    "onnx_to_tf",
]
