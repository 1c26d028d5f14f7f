"""A network on several devices: a graph and a program for each (tensor parallelism).

    division = divide(graph, 4)                        # proven to compute the graph together
    programs = compile_devices(division, "128x128_asic", 5)

Weights, attention heads and channels are divided; where a device needs what others have computed, it loads
their parts over the links. Sums are not divided, so the bits are those of one device. All devices run the
same instructions, on constants of their own, and so take the same cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow import _core
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.errors import ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from numpy.typing import NDArray

    from tpuflow.compiler.machine import Machine

__all__ = ["DeviceGraph", "Division", "Part", "compile_devices", "divide"]


@dataclass(frozen=True)
class Part:
    """Part of a tensor of the network.

    Attributes:
        tensor: Number of the tensor.
        region: By axis, elements `[from, to)`.
    """

    tensor: int
    region: tuple[tuple[int, int], ...]

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """The part of the whole array, contiguous."""
        part = array[tuple(slice(start, end) for start, end in self.region)]
        return np.ascontiguousarray(part).reshape(part.shape)

    def put(self, array: NDArray[Any], part: NDArray[Any]) -> None:
        """Writes the part into the whole array."""
        array[tuple(slice(start, end) for start, end in self.region)] = part


@dataclass(frozen=True)
class DeviceGraph:
    """The share of one device.

    Attributes:
        graph: Its graph.
        inputs: The tensors its inputs are parts of, those of other devices included.
        outputs: The tensors its outputs are parts of, those for other devices included.
        exchanged: Numbers of the inputs that other devices give.
    """

    graph: _core.Graph
    inputs: tuple[Part, ...]
    outputs: tuple[Part, ...]
    exchanged: frozenset[int]


@dataclass(frozen=True)
class Division:
    """A network divided among devices.

    Attributes:
        graph: The network.
        devices: By rank, what each computes.
        joined: All of them as one graph, which has the network's inputs, outputs and integers.
    """

    graph: _core.Graph
    devices: tuple[DeviceGraph, ...]
    joined: _core.Graph


def divide(graph: _core.Graph, devices: int) -> Division:
    """Divides a network among devices.

    Raises:
        ProgramError: None, too many, or a state that cannot be divided.
    """
    found, joined = _core.divide(graph, devices)

    def parts(boxes: list[tuple[int, list[tuple[int, int]]]]) -> tuple[Part, ...]:
        return tuple(Part(tensor, tuple(region)) for tensor, region in boxes)

    own = tuple(
        DeviceGraph(
            each,
            parts(inputs),
            parts(outputs),
            frozenset(number for _, numbers in each.exchanges for number in numbers),
        )
        for each, inputs, outputs in found
    )
    return Division(graph, own, joined)


def compile_devices(
    division: Division,
    machine: str | PathLike[str] | Machine = "128x128_asic",
    level: int = 1,
    *,
    seed: int = 0,
    made: Callable[[int, int], None] = lambda _, __: None,
) -> tuple[_core.Program, ...]:
    """The program of every device, each proven to compute its graph.

    Args:
        division: The network.
        machine: Every device is such a machine; `dma.link_latency` is what a load from another device takes
            longer.
        level: 1 or 5.
        seed: Seed of the search.
        made: Told after every program how many there are, and of how many.

    Raises:
        MachineError: A layer does not fit the machine.
        ProgramError: The programs are not alike.
    """
    programs: list[_core.Program] = []
    for device in division.devices:
        programs.append(compile_graph(device.graph, machine, level, seed=seed))
        made(len(programs), len(division.devices))
    if any(not program.is_like(programs[0]) for program in programs):
        raise ProgramError(
            "the programs of the devices differ in more than constants: "
            "some constants are equal on one device alone"
        )
    return tuple(programs)
