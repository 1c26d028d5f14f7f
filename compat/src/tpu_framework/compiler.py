"""The compiler as one module: `compiler.compile_`, what it is given, and its presets."""

from tpu_framework.programs import Executable, Network, Segment, TensorAxis, compile_
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

__all__ = [
    "DEFAULT",
    "O1",
    "O5",
    "BalancingMode",
    "BiasScaleNegativeScaleAggressiveGrouping",
    "CompileParameters",
    "DependencyResolutionAlgorithm",
    "Executable",
    "IntermediateInsertion",
    "Network",
    "ScheduleOptimization",
    "Segment",
    "SubgraphSlicerParameters",
    "TensorAxis",
    "compile_",
]
