"""A decoder on a simulated device: its caches are states, which no step takes or returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.execution.decoder import Decoder, PhaseLevel, phase_feed
from tpuflow.execution.levels import program_level
from tpuflow.runtime.core import Session
from tpuflow.runtime.state import State
from tpuflow.runtime.tensors import TensorDescription, descriptions, ordered_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuflow import _core
    from tpuflow.partitioning.storage import AnyProgram

__all__ = ["StatefulDecoder", "has_states"]

Array = NDArray[Any]


def has_states(programs: Sequence[AnyProgram]) -> bool:
    """Whether all programs keep their caches on the device: those without a past have none."""
    found = [getattr(program, "last_position", None) for program in programs]
    return any(last is not None for last in found) and all(
        last is not None or not _takes_caches(program) for last, program in zip(found, programs, strict=True)
    )


def _takes_caches(program: AnyProgram) -> bool:
    return bool(PhaseLevel.of(program_level(program)).phase.past)


class _Phase:
    """A program ready to be stepped."""

    def __init__(self, program: _core.Program) -> None:
        self.session = Session(program)
        self.inputs, self.outputs = descriptions(program.metadata())
        self.state: State | None = None
        if program.last_position is not None:
            self.state = State(self.session, program.metadata(), self.inputs, self.outputs)

    def step(self, feed: dict[str, Array], state: State, position: int) -> dict[str, Array]:
        """Runs behind the rows of a state; a program without a past writes the first ones."""
        if self.state is None:
            answer = self.session.run(ordered_arrays(feed, self.inputs, "input"), exact=False)
            found = _arrays(answer.outputs, self.outputs)
            state.write(
                {name: found.pop(output) for name, output in zip(state.names, state.outputs, strict=True)}
            )
            return found
        nothing = np.zeros(0, np.uint8)
        taken = ordered_arrays(feed, [port for port in self.inputs if port.name not in state.names], "input")
        arrays = {port.name: array for port, array in zip(self._non_state_ports(state), taken, strict=True)}
        ordered = [arrays.get(port.name, nothing) for port in self.inputs]
        answer = self.session.step(ordered, state.core, position, exact=False)
        found = _arrays(answer.outputs, self.outputs)
        return {name: array for name, array in found.items() if name not in state.outputs}

    def _non_state_ports(self, state: State) -> list[TensorDescription]:
        return [port for port in self.inputs if port.name not in state.names]


def _arrays(answers: Sequence[Array], ports: Sequence[TensorDescription]) -> dict[str, Array]:
    return {
        port.name: np.asarray(found).view(port.dtype).reshape(port.shape)
        for port, found in zip(ports, answers, strict=True)
        if found.size
    }


class StatefulDecoder(Decoder):
    """Steps programs through tokens; all of them share the state.

    Args:
        programs: Of one model, each of a phase.
        ran: As for `Decoder`.

    Raises:
        SampleError: As for `Decoder`.
    """

    def __init__(
        self, programs: Sequence[_core.Program], ran: Callable[[PhaseLevel, int], None] = lambda _, __: None
    ) -> None:
        levels = [program_level(program) for program in programs]
        self._steps = {
            level: _Phase(program) for level, program in zip(map(id, levels), programs, strict=True)
        }
        self.state = next(each.state for each in self._steps.values() if each.state is not None)
        super().__init__(levels, ran)

    def reset(self) -> None:
        """See `Decoder`."""
        super().reset()
        self.state.reset()

    def _compute(self, chosen: PhaseLevel, tokens: Sequence[int]) -> dict[str, Array]:
        feed = phase_feed(chosen.level, chosen.phase, None, tokens, self.position)
        return self._steps[id(chosen.level)].step(feed, self.state, self.position)
