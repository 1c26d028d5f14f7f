"""One point of a study: its bounds without a program, its figures with one. Runs in any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.compiler.machine import Machine
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.program import lower_bounds
from tpuflow.energy import area, energy, least_energy, load_table
from tpuflow.errors import TpuflowError
from tpuflow.execution.simulation import simulate
from tpuflow.executors import local_copy
from tpuflow.explore.objectives import Figures
from tpuflow.explore.space import BATCH, PRECISION
from tpuflow.partitioning import device_networks
from tpuflow.partitioning.storage import load_graph

if TYPE_CHECKING:
    from tpuflow import _core
    from tpuflow.explore.space import Point
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["Measurement", "Workload", "bound_point", "measure_point"]

HELD = 24
"""Graphs a process keeps loaded."""

LINEAR = frozenset({"conv", "mat_mul"})


@dataclass(frozen=True)
class Workload:
    """A quantised network, as points choose it.

    Attributes:
        name: Of the network.
        graph: Its file.
        batch: Samples it takes; None where the study does not vary it.
        precision: Its element type; None where the study does not vary it.
    """

    name: str
    graph: Path
    batch: int | None = None
    precision: str | None = None

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
    """

    mm2: float
    networks: Mapping[str, Figures]
    cycles: Mapping[str, int]
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a journal holds it."""
        return {
            "mm2": self.mm2,
            "reason": self.reason,
            "networks": {
                name: {
                    "cycles": self.cycles[name],
                    "seconds": own.seconds,
                    "joules": own.joules,
                    "batch": own.batch,
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
            {name: Figures(row["seconds"], row["joules"], row["batch"]) for name, row in rows.items()},
            {name: row["cycles"] for name, row in rows.items()},
            content["reason"],
        )


@lru_cache(maxsize=HELD)
def _graph(path: Path) -> AnyGraph:
    return load_graph(local_copy(path))


@lru_cache(maxsize=HELD)
def _least(path: Path) -> tuple[dict[str, int], int, int]:
    """Of a graph: products by element type, bytes every program moves to and from DDR, samples in a batch."""
    macs: dict[str, int] = {}
    moved, batch = 0, 1
    for number, network in enumerate(device_networks(_graph(path))):
        tensors, weights = network.tensors, set[int]()
        for layer in network.layers:
            dtype = tensors[layer.output].dtype
            macs[dtype] = macs.get(dtype, 0) + layer.macs
            if layer.op in LINEAR and tensors[layer.operands[1]].is_constant:
                weights.add(layer.operands[1])
        moved += sum(_bytes(tensors[index]) for index in {*weights, *network.outputs})
        if number == 0 and network.inputs and tensors[network.inputs[0]].shape:
            batch = int(tensors[network.inputs[0]].shape[0])
    return macs, moved, batch


def _bytes(tensor: _core.Tensor) -> int:
    size = {"float32": 4, "int32": 4, "int16": 2, "float16": 2, "bfloat16": 2}.get(tensor.dtype, 1)
    for extent in tensor.shape:
        size *= int(extent)
    return size


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
            least = sum(lower_bounds(each, machine) for each in device_networks(_graph(own.graph)))
        except TpuflowError as error:
            return Measurement(0.0, {}, {}, f"{own.name}: {error}")
        macs, moved, batch = _least(own.graph)
        joules = least_energy(macs, moved, least, machine.parameters, table)
        networks[own.name] = Figures(least / machine["clock_hz"], joules, batch)
        cycles[own.name] = least
    return Measurement(sum(part.value for part in sizes.values()), networks, cycles)


def measure_point(
    machine: Machine, workloads: Sequence[Workload], table_name: str, level: int, seed: int
) -> Measurement:
    """Figures of the checked programs of a machine."""
    table, networks, cycles = (
        load_table(str(local_copy(Path(table_name)))),
        dict[str, Figures](),
        dict[str, int](),
    )
    sizes = area(machine.parameters, table)
    for own in workloads:
        try:
            program = compile_graph(_graph(own.graph), machine, level, seed=seed)
            report = simulate(program, values=False).report
        except TpuflowError as error:
            return Measurement(0.0, {}, {}, f"{own.name}: {error}")
        seconds = report["cycles"] / machine["clock_hz"]
        joules = energy(report, machine.parameters, table).total.value
        networks[own.name] = Figures(seconds, joules, _least(own.graph)[2])
        cycles[own.name] = int(report["cycles"])
    return Measurement(sum(part.value for part in sizes.values()), networks, cycles)
