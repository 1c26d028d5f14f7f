"""How a network is compiled: seven fields, two presets.

The native scheduler has two levels, which are the two presets: level 1 runs one instruction after another,
level 5 in parallel with constants in both memory channels. Anything else is an error that says which field
the scheduler has nothing for.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from tpuflow.errors import TpuflowError

__all__ = [
    "DEFAULT", "O1", "O5", "BalancingMode", "BiasScaleNegativeScaleAggressiveGrouping", "CompileParameters",
    "DependencyResolutionAlgorithm", "IntermediateInsertion", "NotAvailableError", "ScheduleOptimization",
    "SubgraphSlicerParameters", "level_of",
]  # fmt: skip


class NotAvailableError(TpuflowError):
    """A published name or value the native side has nothing for."""


class ParameterError(TpuflowError, ValueError):
    """A value of a parameter is impossible."""


class DependencyResolutionAlgorithm(Enum):
    """Who waits for whom."""

    SEQUENTIAL = 1
    PARALLEL = 2


class BalancingMode(Enum):
    """Where constants lie."""

    MIRROR = 1
    NONE = 2


def _require(where: str, value: object, least: float, most: float = float("inf")) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        limit = f"from {least:g}" + (f" to {most:g}" if most != float("inf") else " on")
        raise ParameterError(f"{where} is {value!r}, it must be a number {limit}")


@dataclass(frozen=True)
class IntermediateInsertion:
    """Search that puts transfers between others; -1: without limit."""

    depth: int
    time_limit_seconds: int

    def __post_init__(self) -> None:
        _require("IntermediateInsertion.depth", self.depth, -1)
        _require("IntermediateInsertion.time_limit_seconds", self.time_limit_seconds, -1)


@dataclass(frozen=True)
class BiasScaleNegativeScaleAggressiveGrouping:
    """Search that joins the parameters of neighbouring layers; -1: without limit."""

    depth: int
    time_limit_seconds: int

    def __post_init__(self) -> None:
        _require("BiasScaleNegativeScaleAggressiveGrouping.depth", self.depth, -1)
        _require("BiasScaleNegativeScaleAggressiveGrouping.time_limit_seconds", self.time_limit_seconds, -1)


Optimization = IntermediateInsertion | BiasScaleNegativeScaleAggressiveGrouping


@dataclass(frozen=True)
class ScheduleOptimization:
    """How the contents of a cache are scheduled."""

    configurations: tuple[Optimization, ...]
    round_robin: bool
    fallthrough_patch: bool

    def __post_init__(self) -> None:
        for each in self.configurations:
            if not isinstance(each, Optimization):
                raise ParameterError(f"ScheduleOptimization.configurations holds {each!r}, which is none")
        _flags("ScheduleOptimization", self, "round_robin", "fallthrough_patch")


@dataclass(frozen=True)
class SubgraphSlicerParameters:
    """How layers are cut so that groups of them fit the cache."""

    analysis_depth: int
    analysis_depth_branch: int
    spatial_limit: int
    max_cache_utilization: float

    def __post_init__(self) -> None:
        for name in ("analysis_depth", "analysis_depth_branch", "spatial_limit"):
            _require(f"SubgraphSlicerParameters.{name}", getattr(self, name), 1)
        _require("SubgraphSlicerParameters.max_cache_utilization", self.max_cache_utilization, 0, 1)


@dataclass(frozen=True)
class CompileParameters:
    """See the module.

    Attributes:
        action_graph_data_transfer_optimization: Leave out transfers whose data are there already.
        dependency_resolution_algorithm: Who waits for whom.
        ram_io_balancing: Whether constants lie in both memory channels.
        shared_cache_schedule_optimizations: Of the shared cache.
        ewp_cache_schedule_optimizations: Of the parameter cache.
        slicer: How layers are cut.
        layer_fusion: How many layers run row by row together; -1: as many as fit, 0: none.
    """

    action_graph_data_transfer_optimization: bool
    dependency_resolution_algorithm: DependencyResolutionAlgorithm
    ram_io_balancing: BalancingMode
    shared_cache_schedule_optimizations: ScheduleOptimization
    ewp_cache_schedule_optimizations: ScheduleOptimization
    slicer: SubgraphSlicerParameters
    layer_fusion: int

    def __post_init__(self) -> None:
        _flags("CompileParameters", self, "action_graph_data_transfer_optimization")
        kinds = {
            "dependency_resolution_algorithm": DependencyResolutionAlgorithm,
            "ram_io_balancing": BalancingMode,
            "shared_cache_schedule_optimizations": ScheduleOptimization,
            "ewp_cache_schedule_optimizations": ScheduleOptimization,
            "slicer": SubgraphSlicerParameters,
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise ParameterError(
                    f"CompileParameters.{name} is {getattr(self, name)!r}, not a {kind.__name__}"
                )
        _require("CompileParameters.layer_fusion", self.layer_fusion, -1)


def _flags(owner: str, value: object, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(value, name), bool):
            raise ParameterError(f"{owner}.{name} is {getattr(value, name)!r}, it must be True or False")


O1 = CompileParameters(
    action_graph_data_transfer_optimization=True,
    dependency_resolution_algorithm=DependencyResolutionAlgorithm.SEQUENTIAL,
    ram_io_balancing=BalancingMode.NONE,
    shared_cache_schedule_optimizations=ScheduleOptimization((IntermediateInsertion(16, 240),), False, False),
    ewp_cache_schedule_optimizations=ScheduleOptimization((), False, False),
    slicer=SubgraphSlicerParameters(1, 4, 2, 1),
    layer_fusion=0,
)
O5 = CompileParameters(
    action_graph_data_transfer_optimization=True,
    dependency_resolution_algorithm=DependencyResolutionAlgorithm.PARALLEL,
    ram_io_balancing=BalancingMode.MIRROR,
    shared_cache_schedule_optimizations=ScheduleOptimization(
        (BiasScaleNegativeScaleAggressiveGrouping(0, -1), IntermediateInsertion(-1, -1)), True, True
    ),
    ewp_cache_schedule_optimizations=ScheduleOptimization((), True, True),
    slicer=SubgraphSlicerParameters(10, 4, 4, 0.5),
    layer_fusion=-1,
)
DEFAULT = O1


def level_of(parameters: CompileParameters) -> int:
    """The native level of a preset.

    Raises:
        NotAvailableError: The parameters are no preset; the message names the fields that differ from the
            nearest one.
    """
    presets = {1: O1, 5: O5}
    names = [field.name for field in fields(CompileParameters)]
    different = {
        level: [name for name in names if getattr(preset, name) != getattr(parameters, name)]
        for level, preset in presets.items()
    }
    level = min(different, key=lambda level: len(different[level]))
    if not different[level]:
        return level
    listed = ", ".join(f"{name}={getattr(parameters, name)!r}" for name in different[level])
    raise NotAvailableError(
        f"compile_: {listed}: the scheduler has the presets O1 and O5 only; O{level} is the nearest"
    )
