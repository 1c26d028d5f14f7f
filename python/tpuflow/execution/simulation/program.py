"""A program, or all programs of a network in segments, on the simulated machine.

Inputs become the stored codes their ports describe, `clamp(RNE(x / scale) + zero_point)` with NaN as real
zero, in the port's axis order; outputs come back as real numbers under the model's names and in its shapes.
The machine itself sees codes only.

Segments run one after another: the cycles of the network are the sum over its device segments, and what
onnxruntime takes for the host's stands beside them, in microseconds of this computer.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpuflow import _core
from tpuflow.errors import SampleError
from tpuflow.execution.simulation.joined import join_reports
from tpuflow.execution.simulation.ports import ProgramPort
from tpuflow.execution.simulation.run import Run
from tpuflow.io.samples import Samples, joined_samples
from tpuflow.partitioning import DeviceSegment, HostRunner, Partitioned, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuflow.io.samples import Port

__all__ = [
    "Executable", "dynamic_outputs", "network_inputs", "program_ports", "random_feed", "simulate",
]  # fmt: skip

Array = NDArray[Any]
ArrayModel = Literal["closed", "register"]
Executable: TypeAlias = _core.Program | Partitioned[_core.Program]
"""A program, or a network in segments whose device segments are programs."""


def program_ports(program: _core.Program) -> tuple[tuple[ProgramPort, ...], tuple[ProgramPort, ...]]:
    """Inputs and outputs of a program in the model's order."""
    metadata = json.loads(program.metadata())
    inputs, outputs = (tuple(map(ProgramPort.parse, metadata[key])) for key in ("inputs", "outputs"))
    return inputs, outputs


def network_inputs(program: Executable) -> Sequence[Port]:
    """The inputs that a program, or a network in segments, takes from the user."""
    return program.inputs if isinstance(program, Partitioned) else program_ports(program)[0]


def simulate(
    program: Executable,
    inputs: Mapping[str, Array] | Samples | None = None,
    *,
    values: bool = True,
    trace: bool = False,
    array: ArrayModel = "closed",
    seed: int = 0,
    host_seconds: Mapping[str, float] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Runs a program cycle by cycle; a network in segments program by program, and the host's parts.

    Args:
        program: The program, or a network in segments.
        inputs: One array per input by the model's names, `[samples, ...]` in place of the batch axis (or
            before the whole shape, for models without one); any number of samples, run batch after batch,
            the last one filled up and trimmed. Arrays of exactly the model's shapes are one feed, and give
            outputs of the model's shapes. None: one batch of random codes.
        values: Compute values; without, `inputs` must be None, only cycles are counted, and the host does
            nothing.
        trace: Record what every unit did when (in the first batch).
        array: Model of the systolic array: its closed form, or register by register.
        seed: Seed of the random codes.
        host_seconds: Without values: what host segments were found to take, by name.
        progress: Told after every batch how many samples are done, and of how many.

    Returns:
        Outputs of all samples; figures of the first batch.

    Raises:
        SampleError: Arrays that do not fit.
        ProgramError: The program breaks a rule of the machine.
        ModelError: onnxruntime cannot run a host segment.
    """
    if not values and inputs is not None:
        raise SampleError("inputs are given, but no values are to be computed")
    machine = _Machine(program, trace=trace, array=array)
    if not values:
        return Run({}, *machine.count(host_seconds or {}))
    if inputs is None:
        return Run(*machine.run(random_feed(program, seed)))
    samples = inputs if isinstance(inputs, Samples) else Samples.of(inputs, network_inputs(program), "inputs")
    found: dict[str, list[Array]] = {}
    report: Report | None = None
    intervals: Intervals = None
    events: dict[tuple[str, str], dict[str, Any]] = {}
    done = 0
    for batch in samples.batches():
        outputs, own, own_intervals = machine.run(batch.arrays)
        for name, array_of_feed in outputs.items():
            found.setdefault(name, []).append(array_of_feed)
        done += batch.count
        if progress is not None:
            progress(done, samples.count)
        for event in own["events"]:
            known = events.setdefault((event["layer"], event["kind"]), event | {"count": 0})
            known["count"] += event["count"]
        if report is None:
            report, intervals = own, own_intervals
            machine.trace = False
    assert report is not None, "samples are never empty"
    report["events"] = list(events.values())
    return Run(joined_samples(found, samples, dynamic_outputs(program)), report, intervals)


def dynamic_outputs(program: Executable) -> frozenset[str]:
    """Names of the outputs whose shape depends on values; only the host gives such."""
    if not isinstance(program, Partitioned):
        return frozenset()
    return frozenset(port.name for port in program.outputs if not port.static)


Report: TypeAlias = dict[str, Any]
Intervals: TypeAlias = list[dict[str, Any]] | None
Figures: TypeAlias = tuple[Report, Intervals]


class _Machine:
    """Runs one feed after another.

    Attributes:
        trace: Whether to record what every unit does when.
    """

    def __init__(self, program: Executable, *, trace: bool, array: ArrayModel) -> None:
        self.trace = trace
        self._program = program
        self._array = array
        self._host = HostRunner()
        self._ports: dict[int, tuple[tuple[ProgramPort, ...], tuple[ProgramPort, ...]]] = {}

    def count(self, host_seconds: Mapping[str, float]) -> Figures:
        """Cycles alone."""
        if not isinstance(self._program, Partitioned):
            return self._figures(self._program, None)[1:]
        figures = {part.name: self._figures(part.network, None)[1:] for part in self._program.device}
        return join_reports(self._program, figures, host_seconds)

    def run(self, feed: Mapping[str, Array]) -> tuple[dict[str, Array], Report, Intervals]:
        """Outputs of one feed by the model's names, the figures, and the intervals if traced."""
        if not isinstance(self._program, Partitioned):
            return self._figures(self._program, feed)
        figures: dict[str, Figures] = {}

        def device(part: DeviceSegment[_core.Program], arrays: dict[str, Array]) -> dict[str, Array]:
            outputs, report, intervals = self._figures(part.network, arrays)
            figures[part.name] = report, intervals
            return outputs

        outputs = walk(self._program, feed, self._host, device)
        return outputs, *join_reports(self._program, figures, self._host.seconds)

    def _figures(
        self, program: _core.Program, feed: Mapping[str, Array] | None
    ) -> tuple[dict[str, Array], Report, Intervals]:
        values = feed is not None
        codes: list[Array] = []
        outs: tuple[ProgramPort, ...] = ()
        if feed is not None:
            ins, outs = self._ports.setdefault(id(program), program_ports(program))
            codes = [port.encode(feed[port.name]) for port in ins]
        start = time.perf_counter()
        run = _core.simulate(program, codes, values=values, trace=self.trace, array=self._array)
        seconds = time.perf_counter() - start
        outputs = {
            port.name: port.decode(stored)
            for port, stored in zip(outs, run.outputs if values else [], strict=True)
        }
        report: Report = json.loads(run.to_json())
        # A program exists only once the scheduler's checker has passed it, and a file of one only unaltered.
        report |= {"host_seconds": seconds, "checker": "passed"}
        return outputs, report, json.loads(run.trace_json()) if self.trace else None


def random_feed(program: Executable, seed: int) -> dict[str, Array]:
    """Real numbers whose codes are drawn evenly; what the host alone reads is drawn as a sample is.

    Raises:
        SampleError: The network takes text.
    """
    generator = np.random.default_rng(seed)
    programs = [part.network for part in program.device] if isinstance(program, Partitioned) else [program]
    read = {port.name: port for each in programs for port in program_ports(each)[0]}
    return {
        port.name: read[port.name].decode(read[port.name].random_codes(generator))
        if port.name in read
        else _random_codes(port, generator)
        for port in network_inputs(program)
    }


def _random_codes(port: Port, generator: np.random.Generator) -> Array:
    if port.dtype.kind == "f":
        return generator.standard_normal(port.shape).astype(port.dtype)
    if port.dtype.kind in "iub":
        return generator.integers(0, 2, port.shape).astype(port.dtype)
    raise SampleError(f'input "{port.name}" takes {port.dtype}, which cannot be made up: give inputs')
