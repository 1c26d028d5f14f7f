"""Programs at the level of instructions: every tensor they leave, and every segment beside its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tpuflow.errors import ProgramError
from tpuflow.execution.debug.steps import StepReport, check_steps
from tpuflow.execution.levels import GraphLevel, LevelOutputs, PartitionedLevel, ProgramLevel
from tpuflow.partitioning import DeviceSegment, HostRunner, Partitioned, walk

if TYPE_CHECKING:
    from tpuflow import _core
    from tpuflow.partitioning.storage import AnyGraph, AnyProgram

__all__ = ["SteppedLevel", "check_program", "stepped_level"]

Array = NDArray[Any]


class SteppedLevel(ProgramLevel):
    """A program whose tensors are seen while its instructions are executed one by one.

    Its outputs are those of the simulation.
    """

    def __init__(self, program: _core.Program, graph: _core.Graph) -> None:
        super().__init__(program)
        self._graph = GraphLevel(graph)

    def compute(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> LevelOutputs:
        """See `IntegerLevel`; a tensor of which elements are never computed is left out."""
        ended = super().compute(arrays)
        if not all_tensors:
            return ended
        left = check_steps(self.program, self._graph, arrays).codes
        return LevelOutputs(
            self._graph.decode(left) | ended.tensors, self._graph.shown_codes(left) | ended.codes
        )


def stepped_level(program: AnyProgram, graph: AnyGraph) -> SteppedLevel | PartitionedLevel:
    """A program, whole or in segments, that shows its tensors; the graph is in the same segments."""
    if isinstance(program, Partitioned) and isinstance(graph, Partitioned):
        pairs = zip(program.device, graph.device, strict=True)
        return PartitionedLevel(
            program.with_networks(SteppedLevel(ours.network, theirs.network) for ours, theirs in pairs)
        )
    assert not isinstance(program, Partitioned) and not isinstance(graph, Partitioned), "of one kind"
    return SteppedLevel(program, graph)


def check_program(
    program: AnyProgram,
    graph: AnyGraph,
    feed: Mapping[str, Array],
    *,
    fail_fast: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, StepReport]:
    """Runs a program instruction by instruction, with host segments every device segment.

    A segment is given what the graph's segments before it make, so that it inherits no error.

    Args:
        program: The program.
        graph: The graph it should compute.
        feed: Every input in the model's shape.
        fail_fast: Stop at the first wrong instruction.
        progress: Told now and then how many instructions of a segment are done.

    Returns:
        Reports by names of segments; one of no name where the host takes no part.

    Raises:
        ProgramError: The graph has other layers or segments than the program.
        SampleError: The inputs do not fit.
    """
    options: dict[str, Any] = {"fail_fast": fail_fast, "progress": progress}
    if not isinstance(program, Partitioned) and not isinstance(graph, Partitioned):
        return {"": check_steps(program, GraphLevel(graph), feed, **options)}
    if (
        not isinstance(program, Partitioned)
        or not isinstance(graph, Partitioned)
        or program.map(lambda _: None) != graph.map(lambda _: None)
    ):
        raise ProgramError(f'program "{program.name}": the graph has other segments: give its own')
    programs = {part.name: part.network for part in program.device}
    reports: dict[str, StepReport] = {}

    def device(part: DeviceSegment[GraphLevel], taken: dict[str, Array]) -> dict[str, Array]:
        if not fail_fast or all(report.passed for report in reports.values()):
            reports[part.name] = check_steps(programs[part.name], part.network, taken, **options)
        return part.network.compute(taken).tensors

    walk(graph.map(GraphLevel), feed, HostRunner(), device)
    return reports
