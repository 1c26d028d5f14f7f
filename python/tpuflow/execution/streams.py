"""Streams: inferences that overlap, of programs compiled with `Schedule(pipeline=True)`.

A stream of so many inferences is a program itself, with inputs and outputs for each, so it is simulated like
any other: values, cycles, reports, traces.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.errors import SampleError
from tpuflow.execution.simulation import Run, program_ports, simulate
from tpuflow.io.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tpuflow import _core
    from tpuflow.execution.simulation.program import ArrayModel

__all__ = ["Interval", "simulate_stream", "stream_interval"]


@dataclass(frozen=True)
class Interval:
    """Cycles from one inference of a stream to the next in the steady state.

    Attributes:
        cycles: Simulated cycles, rounded up.
        bound: Lower bound of them.
        binding: Which bound that is.
    """

    cycles: int
    bound: int
    binding: str


def stream_interval(program: _core.Program) -> Interval | None:
    """The interval that a program states for its stream, which the checker compares with the simulation.

    Returns:
        None if the program was compiled without a stream.
    """
    stream = json.loads(program.metadata()).get("stream")
    if stream is None:
        return None
    binding = max(stream["bounds"], key=lambda name: stream["bounds"][name])
    return Interval(stream["predicted_interval"], stream["bounds"][binding], binding)


def simulate_stream(
    program: _core.Program,
    inferences: int,
    inputs: Mapping[str, NDArray[Any]] | Samples | None = None,
    *,
    values: bool = True,
    trace: bool = False,
    array: ArrayModel = "closed",
    seed: int = 0,
) -> tuple[_core.Program, Run]:
    """Simulates a stream of inferences, each beginning before the one before has ended.

    Args:
        program: Compiled with `Schedule(pipeline=True)`.
        inferences: How many, each of a batch of the program.
        inputs: Samples as for `simulate`; inferences take batches in turn, beginning anew after the last.
            None: random codes.
        values: Compute values; otherwise only cycles are counted.
        trace: Record what every unit did when.
        array: Model of the systolic array.
        seed: Seed of the random codes.

    Returns:
        The stream as a program, whose layers of the second inference are `NAME@2` and so on; and its run,
        whose outputs have the batches of all inferences in their order.

    Raises:
        SampleError: Arrays that do not fit.
        ProgramError: The program has no stream, or so many inferences do not fit the DDR.
    """
    unrolled = program.unrolled(inferences)
    if not values:
        return unrolled, simulate(unrolled, values=False, trace=trace, array=array)
    if inputs is None:
        return unrolled, _with_all_outputs(
            program, inferences, simulate(unrolled, trace=trace, array=array, seed=seed)
        )
    names = [port.name for port in program_ports(program)[0]]
    samples = (
        inputs if isinstance(inputs, Samples) else Samples.of(inputs, program_ports(program)[0], "inputs")
    )
    batches = [batch.arrays for batch in samples.batches()]
    if not batches:
        raise SampleError("no samples")
    feed = {
        _name(name, run): batches[run % len(batches)][name] for run in range(inferences) for name in names
    }
    return unrolled, _with_all_outputs(
        program, inferences, simulate(unrolled, feed, trace=trace, array=array)
    )


def _with_all_outputs(program: _core.Program, inferences: int, run: Run) -> Run:
    """The same run with the outputs of all inferences in one array by output."""
    names = [port.name for port in program_ports(program)[1]]
    outputs = {
        name: np.concatenate([run.outputs[_name(name, number)] for number in range(inferences)])
        for name in names
    }
    return Run(outputs, run.report, run.intervals)


def _name(name: str, run: int) -> str:
    """The name of an input or output in an inference of a stream."""
    return name if run == 0 else f"{name}@{run + 1}"
