"""A network on one device and on several: cycles, what is exchanged, and whether every bit is the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.compiler import compile as compile_graph
from tpuflow.compiler.devices import Part, compile_devices, divide
from tpuflow.execution.devices import DevicesLevel
from tpuflow.execution.levels import GraphLevel, ProgramLevel

if TYPE_CHECKING:
    from os import PathLike

    from tpuflow import _core
    from tpuflow.compiler import Machine

__all__ = ["DeviceMeasurement", "measure"]


@dataclass(frozen=True)
class DeviceMeasurement:
    """A network on so many devices.

    Attributes:
        devices: How many.
        cycles: Of an inference, which all devices take.
        bound: No program of a device's graph takes fewer.
        binding: Name of the bound.
        exchanges: Tensors whose parts the devices load of each other.
        loaded_bytes: What a device loads in exchanges, its own parts included.
        constant_bytes: Of the constants of a device.
        equal: Whether outputs are those of the graph, to the bit; None: values were not computed.
        programs: By rank.
    """

    devices: int
    cycles: int
    bound: int
    binding: str
    exchanges: int
    loaded_bytes: int
    constant_bytes: int
    equal: bool | None
    programs: tuple[_core.Program, ...]

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {key: value for key, value in vars(self).items() if key != "programs"}


def measure(
    graph: _core.Graph,
    devices: int,
    machine: str | PathLike[str] | Machine = "128x128_asic",
    level: int = 1,
    *,
    values: bool = True,
    seed: int = 0,
) -> DeviceMeasurement:
    """Compiles a network for so many devices and runs it on random codes.

    Args:
        graph: The network.
        devices: How many; 1: as it is.
        machine: Every device is such a machine.
        level: 1 or 5.
        values: Compute values and compare them with the graph's.
        seed: Seed of the codes and of the search.

    Raises:
        MachineError: A layer does not fit the machine.
        ProgramError: The network cannot be divided so.
        SampleError: Values cannot be computed.
    """
    if devices == 1:
        programs: tuple[_core.Program, ...] = (compile_graph(graph, machine, level, seed=seed),)
        exchanged: list[Part] = []
        own: ProgramLevel | DevicesLevel = ProgramLevel(programs[0])
    else:
        division = divide(graph, devices)
        programs = compile_devices(division, machine, level, seed=seed)
        first = division.devices[0]
        exchanged = [first.inputs[number] for number in sorted(first.exchanged)]
        own = DevicesLevel(division, programs)
    tensors, report = graph.tensors, json.loads(programs[0].metadata())
    sizes = [np.prod([end - start for start, end in part.region]) for part in exchanged]
    widths = [np.dtype(tensors[part.tensor].dtype).itemsize for part in exchanged]
    binding, bound = max(report["bounds"].items(), key=lambda item: item[1])
    return DeviceMeasurement(
        devices,
        own.cycles(),
        bound,
        binding,
        len(report.get("exchanges", [])),
        int(sum(size * width for size, width in zip(sizes, widths, strict=True))),
        sum(len(image) for image in programs[0].constants()),
        _is_equal(graph, own, seed) if values else None,
        programs,
    )


def _is_equal(graph: _core.Graph, level: ProgramLevel | DevicesLevel, seed: int) -> bool:
    """Whether programs give the graph's outputs for random codes."""
    wanted, generator = GraphLevel(graph), np.random.default_rng(seed)
    feed = {port.name: port.decode(port.random_codes(generator)) for port in wanted.ports}
    codes = wanted.compute(feed).codes
    return all(array.tobytes() == codes[name].tobytes() for name, array in level.compute(feed).codes.items())
