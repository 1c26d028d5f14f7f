"""Programs of several devices at work together.

level = DevicesLevel(division, programs)
outputs = level.run(feed)                  # the bits of one device
level.cycles()                             # of all, which take the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow import _core
from tpuflow.errors import FileError
from tpuflow.execution.levels import GraphLevel, LevelOutputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuflow.compiler.devices import Division
    from tpuflow.execution.levels import Kind

__all__ = ["DevicesLevel"]

Array = NDArray[Any]


class DevicesLevel:
    """A network on several devices, with the inputs and outputs it has on one (see `Level`).

    Attributes:
        programs: By rank.

    Args:
        division: What the devices compute.
        programs: Their programs.

    Raises:
        ProgramError: Programs that do not belong together.
    """

    kind: Kind = "program"
    dynamic: frozenset[str] = frozenset()

    def __init__(self, division: Division, programs: Sequence[_core.Program]) -> None:
        self.programs = tuple(programs)
        self._division = division
        self._level = GraphLevel(division.graph)
        self._devices = _core.Devices(self.programs)
        self.name = self._level.name
        self.ports = self._level.ports
        self.outputs = self._level.outputs

    def run(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> dict[str, Array]:
        """See `Level`."""
        return self.compute(arrays, all_tensors=all_tensors).tensors

    def compute(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> LevelOutputs:
        """See `IntegerLevel`.

        Raises:
            FileError: More than the outputs was asked for.
        """
        if all_tensors:
            raise FileError(f'programs "{self.name}": only outputs outlive a program')
        codes = self.codes(self._level.input_codes(arrays))
        return LevelOutputs(self._level.decode(codes), self._level.shown_codes(codes))

    def codes(self, inputs: Mapping[str, Array], position: int | None = None) -> dict[str, Array]:
        """Codes of the outputs, both by the graph's names.

        Args:
            inputs: Codes of every input.
            position: Of the run, for networks with states; rows of the past from there on count as zeros.
        """
        graph, tensors = self._division.graph, self._division.graph.tensors
        whole = {number: inputs[tensors[number].name] for number in graph.inputs}
        feeds = [
            [
                part.of(whole[part.tensor])
                for number, part in enumerate(device.inputs)
                if number not in device.exchanged
            ]
            for device in self._division.devices
        ]
        devices = self._devices if position is None else self._devices.at(position)
        results = devices.run(feeds)
        for device, outputs in zip(self._division.devices, results, strict=True):
            for part, array in zip(device.outputs, outputs, strict=True):
                shape = tuple(tensors[part.tensor].shape)
                part.put(whole.setdefault(part.tensor, np.empty(shape, array.dtype)), array)
        for number in graph.outputs:
            if number not in whole:
                whole[number] = graph.constant(number)
        return {tensors[number].name: whole[number] for number in graph.outputs}

    def cycles(self, position: int | None = None) -> int:
        """Cycles of one inference, which all devices take."""
        program = self.programs[0] if position is None else self.programs[0].at(position)
        return _core.simulate(program, [], values=False).cycles
