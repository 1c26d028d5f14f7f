"""One point of a study: its bounds without a program, its figures with one. Runs in any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.compiler.bounds import lower_bounds
from tpuflow.compiler.machine import Machine
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.schedule import Schedule
from tpuflow.energy import area, energy, load_table
from tpuflow.errors import TpuflowError
from tpuflow.execution.simulation import simulate
from tpuflow.execution.streams import stream_interval
from tpuflow.executors import local_copy
from tpuflow.explore.objectives import Figures, dominates, vector
from tpuflow.explore.space import BATCH, PRECISION
from tpuflow.partitioning import Partitioned, device_networks
from tpuflow.partitioning.storage import load_graph

if TYPE_CHECKING:
    from tpuflow.explore.objectives import Vector
    from tpuflow.explore.space import Point
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["Comparison", "Measurement", "Workload", "bound_point", "measure_point"]

HELD = 24
"""Graphs a process keeps loaded."""


@dataclass(frozen=True)
class Workload:
    """A quantised network, as points choose it.

    Attributes:
        name: Of the network.
        graph: Its file.
        batch: Samples it takes; None where the study does not vary it.
        precision: Its element type; None where the study does not vary it.
        noise: Of its outputs, see `Figures`.
    """

    name: str
    graph: Path
    batch: int | None = None
    precision: str | None = None
    noise: float = 0.0

    def fits(self, point: Point) -> bool:
        """Whether a point means this form of the network."""
        stated = {BATCH: self.batch, PRECISION: self.precision}
        return all(value is None or point.get(key, value) == value for key, value in stated.items())


@dataclass(frozen=True)
class Measurement:
    """Figures of a point at one level; level 0 are its lower bounds.

    Attributes:
        mm2: Area of the machine.
        networks: Figures by network.
        cycles: By network.
        reason: Why the point is impossible; empty if it is not.
        dominated_by: The trial at least as good as the figures so far and the bounds of the networks that are
            left, which were not built.
    """

    mm2: float
    networks: Mapping[str, Figures]
    cycles: Mapping[str, int]
    reason: str = ""
    dominated_by: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As a journal holds it."""
        return {
            "mm2": self.mm2,
            "reason": self.reason,
            "dominated_by": self.dominated_by,
            "networks": {
                name: {
                    "cycles": self.cycles[name],
                    "seconds": own.seconds,
                    "joules": own.joules,
                    "batch": own.batch,
                    "noise": own.noise,
                    "interval": own.interval,
                    "period": own.period,
                }
                for name, own in self.networks.items()
            },
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Measurement:
        """The reverse of `to_json`."""
        rows = content["networks"]
        return cls(
            content["mm2"],
            {
                name: Figures(
                    row["seconds"],
                    row["joules"],
                    row["batch"],
                    row.get("noise", 0.0),
                    None if row.get("interval") is None else tuple(row["interval"]),
                    row.get("period"),
                )
                for name, row in rows.items()
            },
            {name: row["cycles"] for name, row in rows.items()},
            content["reason"],
            content.get("dominated_by"),
        )


@dataclass(frozen=True)
class Comparison:
    """Finished trials that a point is compared with while its networks are built one after the other.

    Attributes:
        objectives: Names of what is minimised.
        combine: How several networks become one figure.
        bounds: Of the point.
        front: By trial, what finished trials reach.
    """

    objectives: tuple[str, ...]
    combine: str
    bounds: Measurement
    front: Mapping[int, Vector]

    def dominating(self, networks: Mapping[str, Figures]) -> int | None:
        """The first trial that dominates the point, given the figures of some of its networks."""
        known = {**self.bounds.networks, **networks}
        least = vector(self.objectives, list(known.values()), self.bounds.mm2, self.combine)
        return next((trial for trial in sorted(self.front) if dominates(self.front[trial], least)), None)


@lru_cache(maxsize=HELD)
def _graph(path: Path) -> AnyGraph:
    return load_graph(local_copy(path))


@lru_cache(maxsize=HELD)
def _batch(path: Path) -> int:
    """Samples in a batch of a graph."""
    first = next(iter(device_networks(_graph(path))))
    shape = first.tensors[first.inputs[0]].shape if first.inputs else ()
    return int(shape[0]) if shape else 1


def _overlaps(path: Path) -> bool:
    """Whether runs of a network can overlap: the host has no share in them, and no state goes from one on."""
    graph = _graph(path)
    return not isinstance(graph, Partitioned) and not graph.states


def bound_point(machine: Machine | str, workloads: Sequence[Workload], table_name: str) -> Measurement:
    """Lower bounds of a machine's figures, without a program; a text is why there is no machine."""
    if isinstance(machine, str):
        return Measurement(0.0, {}, {}, machine)
    table, networks, cycles = (
        load_table(str(local_copy(Path(table_name)))),
        dict[str, Figures](),
        dict[str, int](),
    )
    sizes = area(machine.parameters, table)
    for own in workloads:
        try:
            bounds = [lower_bounds(each, machine) for each in device_networks(_graph(own.graph))]
        except TpuflowError as error:
            return Measurement(0.0, {}, {}, f"{own.name}: {error}")
        least = sum(each.cycles for each in bounds)
        joules = sum(energy(each.report, machine.parameters, table).total.value for each in bounds)
        period = bounds[0].interval / machine["clock_hz"] if _overlaps(own.graph) else None
        networks[own.name] = Figures(
            least / machine["clock_hz"], joules, _batch(own.graph), own.noise, period=period
        )
        cycles[own.name] = least
    return Measurement(sum(part.value for part in sizes.values()), networks, cycles)


def measure_point(
    machine: Machine,
    workloads: Sequence[Workload],
    table_name: str,
    level: int,
    seed: int,
    search_steps: int | None = None,
    comparison: Comparison | None = None,
) -> Measurement:
    """Figures of the checked programs of a machine; for throughput, of streams of runs, too.

    Networks are built by rising bound, so that those that take long to build come last: given a comparison,
    what is left is not built once a finished trial dominates the point.
    """
    table, networks, cycles = (
        load_table(str(local_copy(Path(table_name)))),
        dict[str, Figures](),
        dict[str, int](),
    )
    sizes, by = area(machine.parameters, table), None
    bounds = {} if comparison is None else comparison.bounds.cycles
    objectives = () if comparison is None else comparison.objectives
    for own in sorted(workloads, key=lambda own: bounds.get(own.name, 0)):
        try:
            pipeline = "throughput" in objectives and _overlaps(own.graph)
            schedule = Schedule(search_steps=search_steps, pipeline=pipeline)
            program = compile_graph(_graph(own.graph), machine, level, schedule=schedule, seed=seed)
            report = simulate(program, values=False).report
        except TpuflowError as error:
            return Measurement(0.0, {}, {}, f"{own.name}: {error}")
        seconds = report["cycles"] / machine["clock_hz"]
        joules = energy(report, machine.parameters, table).total
        interval = None if isinstance(program, Partitioned) else stream_interval(program)
        networks[own.name] = Figures(
            seconds,
            joules.value,
            _batch(own.graph),
            own.noise,
            (joules.low, joules.high),
            None if interval is None else interval.cycles / machine["clock_hz"],
        )
        cycles[own.name] = int(report["cycles"])
        by = comparison.dominating(networks) if comparison and len(networks) < len(workloads) else None
        if by is not None:
            break
    ordered = {own.name: networks[own.name] for own in workloads if own.name in networks}
    return Measurement(sum(part.value for part in sizes.values()), ordered, cycles, "", by)
