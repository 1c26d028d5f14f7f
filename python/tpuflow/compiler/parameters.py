"""Limits of a schedule: seven fields, of which levels 1 and 5 are two presets.

Limits of -1 are none of their own; the budget of the whole search holds all the same. Seconds become steps of
the search at a fixed rate, so that the same parameters give the same program on any computer.
`docs/scheduling.md` says what each field does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from tpuflow.errors import TpuflowError

if TYPE_CHECKING:
    from tpuflow.config import ScheduleConfig

__all__ = [
    "DEFAULT", "O1", "O5", "BalancingMode", "BiasScaleNegativeScaleAggressiveGrouping", "CompileParameters",
    "DependencyResolutionAlgorithm", "IntermediateInsertion", "ParameterError",
    "ScheduleOptimization", "SubgraphSlicerParameters", "parameters_of",
]  # fmt: skip


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
                raise ParameterError(f"ScheduleOptimization.configurations: {each!r} is not an optimization")
        _flags("ScheduleOptimization", self, "round_robin", "fallthrough_patch")


@dataclass(frozen=True)
class SubgraphSlicerParameters:
    """How layers are cut so that groups of them fit the cache."""

    analysis_depth: int
    analysis_depth_branch: int
    spatial_limit: int
    max_cache_utilization: float

    def __post_init__(self) -> None:
        for name, least in (("analysis_depth", 1), ("analysis_depth_branch", 1), ("spatial_limit", 0)):
            _require(f"SubgraphSlicerParameters.{name}", getattr(self, name), least)
        _require("SubgraphSlicerParameters.max_cache_utilization", self.max_cache_utilization, 0.01, 1)


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
        layer_fusion: How many further layers may run while one does; -1: as many as the slicer looks at.
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

    @property
    def level(self) -> int:
        """The level whose programs these are: 5 where units work at the same time, else 1."""
        return 5 if self.dependency_resolution_algorithm is DependencyResolutionAlgorithm.PARALLEL else 1

    def to_json(self) -> str:
        """The parameters as the scheduler reads them."""
        return json.dumps(_plain(self))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return [{type(each).__name__: _plain(each)} for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


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


def parameters_of(level: int, schedule: ScheduleConfig) -> CompileParameters:
    """The preset of a level, with what the section `schedule` of a configuration says put in.

    Args:
        level: 1 or 5.
        schedule: Fields left unset stay those of the preset.

    Raises:
        ParameterError: Values that make no sense together.
    """
    preset = {1: O1, 5: O5}[level]
    shared, ewp = preset.shared_cache_schedule_optimizations, preset.ewp_cache_schedule_optimizations
    given = schedule.model_dump(exclude_none=True)
    found: dict[type[Optimization], Optimization] = {type(each): each for each in shared.configurations}
    for prefix, kind in (
        ("grouping", BiasScaleNegativeScaleAggressiveGrouping),
        ("insertion", IntermediateInsertion),
    ):
        usual = found.get(kind, kind(-1, -1))
        depth = given.get(f"{prefix}_depth", usual.depth)
        seconds = given.get(f"{prefix}_time_limit", usual.time_limit_seconds)
        if kind in found or f"{prefix}_depth" in given or f"{prefix}_time_limit" in given:
            found[kind] = kind(depth, seconds)

    def flags(
        prefix: str, usual: ScheduleOptimization, passes: tuple[Optimization, ...]
    ) -> ScheduleOptimization:
        ring = given.get(f"{prefix}_round_robin", usual.round_robin)
        return ScheduleOptimization(
            passes, ring, given.get(f"{prefix}_fallthrough_patch", usual.fallthrough_patch)
        )

    def choice(kind: type[Enum], key: str, usual: Any) -> Any:
        return kind[given[key].upper()] if key in given else usual

    return CompileParameters(
        given.get("data_transfer_optimization", preset.action_graph_data_transfer_optimization),
        choice(
            DependencyResolutionAlgorithm, "dependency_resolution", preset.dependency_resolution_algorithm
        ),
        choice(BalancingMode, "ram_io_balancing", preset.ram_io_balancing),
        flags("shared", shared, tuple(found.values())),
        flags("ewp", ewp, ewp.configurations),
        SubgraphSlicerParameters(
            **{
                field.name: given.get(field.name, getattr(preset.slicer, field.name))
                for field in fields(SubgraphSlicerParameters)
            }
        ),
        given.get("layer_fusion", preset.layer_fusion),
    )
