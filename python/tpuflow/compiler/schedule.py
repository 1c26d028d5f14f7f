"""Decisions about a schedule that a user makes in place of its level.

    tpuflow.compile(graph, level=5, schedule=Schedule(layer_groups="exact"))

The section `[schedule]` of a configuration says the same in a file; `Schedule.of` reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tpuflow.compiler.parameters import O1, O5, CompileParameters, parameters_of
from tpuflow.compiler.tiling import Tiling, tiling_of
from tpuflow.errors import ProgramError

if TYPE_CHECKING:
    from tpuflow.config.schedule import ScheduleConfig

__all__ = ["GroupSearch", "IoMemory", "Schedule"]

GroupSearch = Literal["greedy", "dynamic", "exact"]
"""Searches for groups of layers that are computed tile by tile."""
IoMemory = Literal["separate", "shared", "contiguous"]
"""Where inputs and outputs lie in DDR."""


@dataclass(frozen=True)
class Schedule:
    """Decisions about a schedule; by default all are those of the level.

    Attributes:
        parameters: What the schedule may do, in place of what the level allows.
        tiling: What to compute in parts.
        layer_groups: How layers are divided into groups that are computed tile by tile: `greedy`, `dynamic`
            or `exact`, each at least as cheap by the cost model as the one before.
        io_memory: Whether inputs and outputs have pages of DDR of their own, large ones in parts in all
            address spaces (`separate`), share them with other tensors while they are not alive (`shared`), or
            lie in one stretch of the first address space each (`contiguous`).
        search_steps: Most steps of every search, each of a thousand instructions placed; None: 200. Without
            any (0) level 5 takes a tenth of the time, for programs 0 to 4 % slower.
        pipeline: Plan for a stream of inferences as well, of which each begins before the one before has
            ended; the program is the one with the fewest cycles from one to the next.
    """

    parameters: CompileParameters | None = None
    tiling: Tiling | None = None
    layer_groups: GroupSearch = "dynamic"
    io_memory: IoMemory = "separate"
    search_steps: int | None = None
    pipeline: bool = False

    def __post_init__(self) -> None:
        """Checks the choices.

        Raises:
            ProgramError: A choice does not exist.
        """
        for name, choices in (("layer_groups", get_args(GroupSearch)), ("io_memory", get_args(IoMemory))):
            if getattr(self, name) not in choices:
                raise ProgramError(
                    f'{name} "{getattr(self, name)}" does not exist; choose {" or ".join(choices)}'
                )
        if self.search_steps is not None and self.search_steps < 0:
            raise ProgramError(f"search_steps {self.search_steps} is negative")

    @classmethod
    def of(cls, level: int, config: ScheduleConfig) -> Schedule:
        """The decisions of the section `schedule` of a configuration.

        Args:
            level: 1 or 5, whose parameters hold where the section says nothing.
            config: The section.

        Raises:
            ParameterError: Values that make no sense together.
            TilingError: Parts that make no sense.
        """
        parameters, tiling = parameters_of(level, config), tiling_of(config)
        return cls(
            parameters, tiling, config.layer_groups, config.io_memory, config.search_steps, config.pipeline
        )

    def parameters_json(self, level: int) -> str | None:
        """JSON for the scheduler; None: all is as the level has it."""
        own = {
            "layer_groups": self.layer_groups,
            "io_memory": self.io_memory,
            "search_steps": self.search_steps,
        }
        if own == {"layer_groups": "dynamic", "io_memory": "separate", "search_steps": None}:
            return None if self.parameters is None else self.parameters.to_json()
        preset = {1: O1, 5: O5}[level] if self.parameters is None else self.parameters
        return json.dumps(json.loads(preset.to_json()) | own)
