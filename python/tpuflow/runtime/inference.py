"""Runs of a loaded program: one at a time, or several in flight, their results in the order of submission."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import DeviceError, SampleError
from tpuflow.partitioning import DeviceSegment, HostRunner, Partitioned, walk
from tpuflow.runtime.closing import Closing
from tpuflow.runtime.core import RunResult, Session
from tpuflow.runtime.state import State
from tpuflow.runtime.tensors import TensorDescription, descriptions, ordered_arrays

if TYPE_CHECKING:
    from tpuflow.runtime.device import LoadedProgram

__all__ = ["IN_FLIGHT", "Inference", "Outputs", "Ticket"]

Array = NDArray[Any]
IN_FLIGHT = 2


class Outputs(dict[str, Array]):
    """Arrays by the model's names, and what computing them took.

    Attributes:
        cycles: Of the device, from an exact one; else None.
        time_us: The same at the machine's clock; of a network in segments without the host's part.
        simulation_seconds: What the simulated machine took on this computer.
        events: What went wrong without stopping the run, such as accumulators that overflowed.
        reports: Figures of every program that ran, from an exact device.
    """

    def __init__(self, arrays: Mapping[str, Array], answers: list[RunResult]) -> None:
        super().__init__(arrays)
        self._answers = answers
        cycles = [answer.cycles for answer in answers if answer.cycles is not None]
        self.cycles = sum(cycles) if cycles else None
        self.simulation_seconds = sum(answer.seconds for answer in answers)
        self.events = [event for answer in answers for event in answer.events]

    @property
    def reports(self) -> list[dict[str, Any]]:
        """See the class."""
        return [json.loads(answer.report) for answer in self._answers if answer.report is not None]

    @property
    def time_us(self) -> float | None:
        """See the class."""
        reports = self.reports
        return sum(report["time_us"] for report in reports) if reports else None


class Ticket:
    """An inference under way."""

    def __init__(self, number: int, future: Future[Outputs]) -> None:
        self.number = number
        self._future = future

    def done(self) -> bool:
        """Whether it has ended."""
        return self._future.done()

    def result(self) -> Outputs:
        """Its outputs; waits for them."""
        return self._future.result()


class Inference(Closing):
    """Runs one program; what it prepared is kept for the next run."""

    def __init__(
        self, program: LoadedProgram, in_flight: int = IN_FLIGHT, state: State | None = None
    ) -> None:
        if in_flight < 1:
            raise DeviceError(f"{in_flight} inferences in flight: at least one must be")
        self._program = program
        self._exact = program.device.mode == "exact"
        self._in_flight = in_flight
        self._workers: ThreadPoolExecutor | None = None
        self._waiting: deque[Ticket] = deque()
        self._number = 0
        self._open = True
        self._state = state
        self._hosts = threading.local()
        network = program.program
        self._parts = {
            part.name: (session, *descriptions(part.network.metadata()))
            for part, session in zip(network.device, program.sessions, strict=True)
        } if isinstance(network, Partitioned) else {}  # fmt: skip

    def sync(self, arrays: Mapping[str, Array]) -> Outputs:
        """Runs the program once and waits for it.

        Args:
            arrays: Every input by its name, in the model's shape and type; of a raw program words.

        Raises:
            SampleError: Arrays that do not fit.
            ProgramError: The program breaks a rule of the machine.
            DeviceError: The inference, its program or its device was closed.
        """
        self._require_open()
        return self._run(ordered_arrays(arrays, self._program.inputs, "input"))

    @property
    def state(self) -> State:
        """The state that stays on the device between steps.

        Raises:
            SampleError: The program has no state.
        """
        if self._state is None:
            self._state = self._program.state()
        return self._state

    def step(self, arrays: Mapping[str, Array], position: int | None = None) -> Outputs:
        """Runs the program once behind the rows of its state, and appends the new ones.

        Args:
            arrays: Every input that is no state, as for `sync`.
            position: Rows that come before; those the state has from there on are replaced. [all of them]

        Raises:
            SampleError: Arrays that do not fit, a position beyond the context or behind the rows there are, a
                state of another program.
            DeviceError: As for `sync`.
        """
        self._require_open()
        state, program = self.state, self._program
        ordered = ordered_arrays(
            arrays, [port for port in program.inputs if port.name not in state.names], "input"
        )
        taken = iter(ordered)
        nothing = np.zeros(0, np.uint8)
        feeds = [nothing if port.name in state.names else next(taken) for port in program.inputs]
        (session,) = program.sessions
        start = state.rows if position is None else position
        if start < 0:
            raise SampleError(f"position {start} lies before the first row")
        answer = session.step(feeds, state.core, start, exact=self._exact)
        return Outputs(_arrays(answer, program.outputs, state.outputs), [answer])

    def submit(self, arrays: Mapping[str, Array]) -> Ticket:
        """Starts a run and returns at once. The arrays must not be changed before it has ended.

        Raises:
            SampleError: Arrays that do not fit.
            DeviceError: As for `sync`.
        """
        self._require_open()
        ordered = ordered_arrays(arrays, self._program.inputs, "input")
        if self._workers is None:
            self._workers = ThreadPoolExecutor(self._in_flight, thread_name_prefix="tpuflow")
        ticket = Ticket(self._number, self._workers.submit(self._run, ordered))
        self._number += 1
        self._waiting.append(ticket)
        return ticket

    def wait(self, ticket: Ticket | None = None) -> Outputs:
        """Outputs of a submitted run: of `ticket`, or of the oldest one nobody has waited for.

        Raises:
            DeviceError: Nothing was submitted.
            TpuflowError: The run failed; the same error `sync` would have raised.
        """
        if ticket is None:
            if not self._waiting:
                raise DeviceError("nothing to wait for: submit first")
            ticket = self._waiting.popleft()
        elif ticket in self._waiting:
            self._waiting.remove(ticket)
        return ticket.result()

    def close(self) -> None:
        """Waits for what was submitted; after that nothing more can be."""
        if self._workers is not None:
            self._workers.shutdown()
        self._open = False

    def _require_open(self) -> None:
        self._program.require_open()
        if not self._open:
            raise DeviceError(f'the inference of program "{self._program.name}" was closed: make another')

    def _run(self, ordered: list[Array]) -> Outputs:
        program = self._program
        if not isinstance(program.program, Partitioned):
            (session,) = program.sessions
            answer = session.run(ordered, exact=self._exact)
            return Outputs(_arrays(answer, program.outputs), [answer])
        answers: list[RunResult] = []

        def device(part: DeviceSegment[Any], taken: dict[str, Array]) -> dict[str, Array]:
            session, inputs, outputs = self._parts[part.name]
            answer = _run_session(session, taken, inputs, exact=self._exact)
            answers.append(answer)
            return _arrays(answer, outputs)

        if not hasattr(self._hosts, "runner"):
            self._hosts.runner = HostRunner()
        feeds = {port.name: array for port, array in zip(program.inputs, ordered, strict=True)}
        return Outputs(walk(program.program, feeds, self._hosts.runner, device), answers)


def _run_session(
    session: Session, taken: Mapping[str, Array], inputs: tuple[TensorDescription, ...], *, exact: bool
) -> RunResult:
    return session.run(ordered_arrays(taken, inputs, "input"), exact=exact)


def _arrays(
    answer: RunResult, outputs: tuple[TensorDescription, ...], kept: tuple[str, ...] = ()
) -> dict[str, Array]:
    return {
        tensor.name: np.asarray(found).view(tensor.dtype).reshape(tensor.shape)
        for tensor, found in zip(outputs, answer.outputs, strict=True)
        if tensor.name not in kept
    }
