"""A program on the simulated machine, fed and read as the original model is.

    run = simulate(program, {"input": images})
    run.outputs["logits"], run.cycles, run.time_us

Inputs become the stored codes their ports describe, `clamp(RNE(x / scale) + zero_point)` with NaN as real
zero, in the port's axis order; outputs come back as real numbers under the model's names and in its shapes.
The machine itself sees codes only.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tpuflow import _core
from tpuflow.errors import SampleError
from tpuflow.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ProgramPort", "Run", "program_ports", "simulate"]

Array = NDArray[Any]


@dataclass(frozen=True)
class ProgramPort:
    """An input or output of a program, as the model calls it.

    Attributes:
        name: Name in the model.
        shape: Shape in the model, with its batch axis if it has one.
        dtype: Element type in the model.
        stored: Shape of the stored tensor, channels last.
        code: Element type of the stored tensor.
        scale: One number or one per channel; empty for indices, which are stored as they are.
        zero_point: Code of real zero.
        permutation: Axis order of the model's tensor in the stored one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: tuple[int, ...]
    code: np.dtype[Any]
    scale: tuple[float, ...]
    zero_point: int
    permutation: tuple[int, ...]

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> ProgramPort:
        """The port a program's metadata describes."""
        stored = tuple(content["shape"])
        quant = content["quant"] or {"scale": [], "zero_point": 0}
        source = content["source"] or {
            "name": content["name"],
            "shape": stored,
            "permutation": range(len(stored)),
            "dtype": "float32" if quant["scale"] else content["dtype"],
        }
        return cls(
            source["name"],
            tuple(source["shape"]),
            np.dtype(source["dtype"]),
            stored,
            np.dtype(content["dtype"]),
            tuple(quant["scale"]),
            quant["zero_point"],
            tuple(source["permutation"]),
        )

    @property
    def own_codes(self) -> int | None:
        """What to add to the model's integers to store them, where they are codes themselves; else None."""
        if not self.scale or not np.issubdtype(self.dtype, np.integer):
            return None
        return int(np.iinfo(self.code).min) - int(np.iinfo(self.dtype).min)

    def encode(self, array: Array) -> Array:
        """Stored codes of an array in the model's shape; codes of the model stay themselves.

        Raises:
            SampleError: An index does not fit the stored type.
        """
        ordered = array.transpose(self.permutation).reshape(self.stored)
        limits = np.iinfo(self.code)
        if not self.scale:
            if ordered.size and (ordered.min() < limits.min or ordered.max() > limits.max):
                raise SampleError(f'input "{self.name}": indices beyond {limits.min} to {limits.max}')
            return np.ascontiguousarray(ordered, self.code)
        if self.own_codes is not None:
            return np.ascontiguousarray(ordered.astype(np.int64) + self.own_codes, self.code)
        real = ordered.astype(np.float64)
        scaled = np.where(np.isnan(real), 0.0, real) / np.asarray(self.scale, np.float32)
        codes = np.clip(np.rint(scaled) + self.zero_point, limits.min, limits.max)
        return np.ascontiguousarray(codes, self.code)

    def decode(self, codes: Array) -> Array:
        """The model's array of stored codes: `scale * (code - zero_point)`, or its own integers."""
        values: Array = codes
        if self.own_codes is not None:
            values = codes.astype(np.int64) - self.own_codes
        elif self.scale:
            values = (codes.astype(np.float64) - self.zero_point) * np.asarray(self.scale, np.float32)
        ordered = values.reshape([self.shape[axis] for axis in self.permutation])
        return np.ascontiguousarray(ordered.transpose(np.argsort(self.permutation)), self.dtype)

    def random_codes(self, generator: np.random.Generator) -> Array:
        """Codes drawn evenly from the stored type; of indices only 0, which every table has."""
        if not self.scale:
            return np.zeros(self.stored, self.code)
        limits = np.iinfo(self.code)
        return generator.integers(limits.min, limits.max, self.stored, self.code, endpoint=True)


@dataclass(frozen=True)
class Run:
    """What a program computed and how long it took.

    Attributes:
        outputs: By the model's names, for all samples; empty without values.
        report: Every figure, in the form of `simulate --json`.
        intervals: What every unit did when, by first cycle; None where no trace was asked for.
    """

    outputs: dict[str, Array]
    report: dict[str, Any]
    intervals: list[dict[str, Any]] | None

    @property
    def cycles(self) -> int:
        """Cycles of one inference (of the program's whole batch)."""
        return int(self.report["cycles"])

    @property
    def time_us(self) -> float:
        """The same in microseconds."""
        return float(self.report["time_us"])

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Name, unit, start, end, busy cycles and lower bound of every layer."""
        layers: list[dict[str, Any]] = self.report["layers"]
        return layers

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.report, indent=1)


def program_ports(program: _core.Program) -> tuple[tuple[ProgramPort, ...], tuple[ProgramPort, ...]]:
    """Inputs and outputs of a program in the model's order."""
    metadata = json.loads(program.metadata())
    inputs, outputs = (tuple(map(ProgramPort.parse, metadata[key])) for key in ("inputs", "outputs"))
    return inputs, outputs


def simulate(
    program: _core.Program,
    inputs: Mapping[str, Array] | Samples | None = None,
    *,
    values: bool = True,
    trace: bool = False,
    array: Literal["closed", "register"] = "closed",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Runs a program cycle by cycle.

    Args:
        program: The program.
        inputs: One array per input by the model's names, `[samples, ...]` in place of the batch axis (or
            before the whole shape, for models without one); any number of samples, run batch after batch,
            the last one filled up and trimmed. None: one batch of random codes.
        values: Compute values; without, `inputs` must be None and only cycles are counted.
        trace: Record what every unit did when (in the first batch).
        array: Model of the systolic array: its closed form, or register by register.
        seed: Seed of the random codes.
        progress: Told after every batch how many samples are done, and of how many.

    Returns:
        Outputs of all samples; figures of the first batch.

    Raises:
        SampleError: Arrays that do not fit.
        ProgramError: The program breaks a rule of the machine.
    """
    ins, outs = program_ports(program)
    if not values:
        if inputs is not None:
            raise SampleError("inputs are given, but no values are to be computed")
        run, seconds = _timed(program, [], values=False, trace=trace, array=array)
        return Run({}, _report(run, seconds), _intervals(run, trace=trace))
    if inputs is None:
        generator = np.random.default_rng(seed)
        run, seconds = _timed(
            program, [port.random_codes(generator) for port in ins], values=True, trace=trace, array=array
        )
        outputs = {port.name: port.decode(codes) for port, codes in zip(outs, run.outputs, strict=True)}
        return Run(outputs, _report(run, seconds), _intervals(run, trace=trace))
    samples = inputs if isinstance(inputs, Samples) else Samples.of(inputs, ins, "inputs")
    rows: dict[str, list[Array]] = {port.name: [] for port in outs}
    report: dict[str, Any] | None = None
    intervals = None
    events: dict[tuple[str, str], int] = {}
    done = 0
    for batch in samples.batches():
        first = report is None
        codes = [port.encode(batch.arrays[port.name]) for port in ins]
        run, seconds = _timed(program, codes, values=True, trace=trace and first, array=array)
        for port, stored in zip(outs, run.outputs, strict=True):
            rows[port.name].append(_by_sample(port, port.decode(stored), ins, samples)[: batch.count])
        done += batch.count
        if progress is not None:
            progress(done, samples.count)
        own = _report(run, seconds)
        for event in own["events"]:
            key = (event["layer"], event["kind"])
            events[key] = events.get(key, 0) + event["count"]
        if report is None:
            report, intervals = own, _intervals(run, trace=trace)
    assert report is not None, "samples are never empty"
    report["events"] = [
        {"layer": layer, "kind": kind, "count": count} for (layer, kind), count in events.items()
    ]
    return Run({name: np.concatenate(parts) for name, parts in rows.items()}, report, intervals)


def _timed(
    program: _core.Program, codes: list[Array], *, values: bool, trace: bool, array: str
) -> tuple[_core.Run, float]:
    start = time.perf_counter()
    run = _core.simulate(program, codes, values=values, trace=trace, array=array)
    return run, time.perf_counter() - start


def _report(run: _core.Run, seconds: float) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run.to_json())
    # A program exists only once the scheduler's checker has passed it, and a file of one only unaltered.
    return report | {"host_seconds": seconds, "checker": "passed"}


def _intervals(run: _core.Run, *, trace: bool) -> list[dict[str, Any]] | None:
    if not trace:
        return None
    intervals: list[dict[str, Any]] = json.loads(run.trace_json())
    return intervals


def _by_sample(port: ProgramPort, array: Array, ins: tuple[ProgramPort, ...], samples: Samples) -> Array:
    """An output of one batch with the samples along its first axis.

    The output's own first axis is the batch axis if the model's inputs have one and it is as long; an output
    without one belongs to the whole batch and is given to each of its samples.
    """
    batched = any(spec.shape and spec.shape[0] == samples.batch for spec in ins)
    if batched and port.shape and port.shape[0] == samples.batch:
        return array
    return np.broadcast_to(array, (samples.batch, *array.shape))
