"""Programs of a decoder: one for every phase and context, in one bundle.

Rows of tokens are all it takes to calibrate: the float model makes the caches that belong to them. All phases
store caches on one grid, that of the rows any of them showed, so that what one writes another reads as it is.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from tpuflow.calibration import Range
from tpuflow.errors import SampleError
from tpuflow.execution.decoder import Decoder, PhaseLevel, phase_feed
from tpuflow.execution.graph_decoder import graph_decoder
from tpuflow.execution.levels import FloatLevel, graph_level, program_level
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import Phase, caches_of, load, specialize
from tpuflow.io.arrays import read_arrays
from tpuflow.io.files import temporary_folder
from tpuflow.io.samples import Samples
from tpuflow.partitioning import Partitioned
from tpuflow.partitioning.storage import load_graph, load_program
from tpuflow.pipeline.builder import build as build_one
from tpuflow.pipeline.bundle import Bundle, load_bundle
from tpuflow.pipeline.stateful import StatefulDecoder, has_states

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuflow.partitioning.storage import AnyGraph, AnyProgram
    from tpuflow.pipeline.builder import BuildResult
    from tpuflow.pipeline.request import Request
    from tpuflow.ptq import Listener

__all__ = [
    "BuiltDecoder",
    "BuiltPhase",
    "build_decoder",
    "float_decoder",
    "open_decoder",
    "phases_of",
    "rows_of_at_least",
    "token_rows",
]

Tokens = NDArray[np.int64]
NAMES = ("input_ids", "ids", "tokens")


def phases_of(prefill: int | None, decode: int, contexts: Sequence[int]) -> dict[str, Phase]:
    """Phases by the names of their programs: every sequence in every context that holds it."""
    found = {}
    for context in sorted(set(contexts)):
        for word, sequence in (("prefill", prefill), ("decode", decode)):
            if sequence is not None and sequence <= context:
                found[f"{word}{sequence}_context{context}"] = Phase(sequence, context)
    return found


def token_rows(path: Path) -> Tokens:
    """Rows of tokens from an `.npz` with one array of integers, or one called `input_ids`, `ids` or `tokens`.

    Raises:
        SampleError: There is no such array.
    """
    arrays = read_arrays(path)
    named = [arrays[name] for name in NAMES if name in arrays] or list(arrays.values())
    rows = named[0] if len(named) == 1 else None
    if rows is None or rows.ndim != 2 or rows.dtype.kind not in "iu" or not rows.size:
        shapes = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in arrays.items())
        raise SampleError(f"{path}: rows of tokens are needed, input_ids [rows, tokens]; it has {shapes}")
    return rows.astype(np.int64)


class BuiltPhase:
    """A phase of a decoder as files in a folder that lasts as long as it does, which take no memory.

    Attributes:
        report: Figures of the program's run.
    """

    def __init__(self, name: str, built: BuildResult) -> None:
        self.report: Mapping[str, Any] = simulate(built.program, values=False).report
        held = ExitStack()
        folder = held.enter_context(temporary_folder())
        finalize(self, held.close)
        self._program, self._graph = folder / f"{name}.tpu", folder / f"{name}.tpuq"
        built.program.save(self._program)
        built.graph.save(self._graph)

    @property
    def files(self) -> tuple[bytes, bytes]:
        """The contents of the files of program and graph."""
        return self._program.read_bytes(), self._graph.read_bytes()

    @property
    def program(self) -> AnyProgram:
        """The program, read anew."""
        return load_program(self._program)

    @property
    def graph(self) -> AnyGraph:
        """The graph, read anew."""
        return load_graph(self._graph)


@dataclass(frozen=True)
class BuiltDecoder:
    """The result of a build of several phases.

    Attributes:
        parts: By the names of the programs.
    """

    parts: dict[str, BuiltPhase]

    @property
    def bundle(self) -> Bundle:
        """Programs and graphs in one file."""
        files = {name: part.files for name, part in self.parts.items()}
        programs = {name: program for name, (program, _) in files.items()}
        return Bundle(programs, {}, {name: graph for name, (_, graph) in files.items()})


def build_decoder(
    request: Request,
    phases: dict[str, Phase],
    listener: Listener | None = None,
    begin: Callable[[str], None] = lambda _: None,
    *,
    seed: int = 0,
) -> BuiltDecoder:
    """Builds every phase of a decoder.

    Args:
        request: What to build; its calibration is a file or an array of rows of tokens.
        phases: By the names of their programs.
        listener: Told what is being done.
        begin: Told the name of every program before it is made.
        seed: Chooses where in its row a sample begins.

    Raises:
        TpuflowError: A stage cannot do its work; the text says why.
    """
    if not phases:
        raise SampleError("no phase: a context is shorter than every sequence")
    rows = None
    if isinstance(request.calibration, Path):
        rows = rows_of_at_least(
            token_rows(request.calibration), max(each.sequence for each in phases.values())
        )
    caches, ranges = _float_caches(request, rows, max(each.context for each in phases.values()))
    parts = {}
    for name, phase in phases.items():
        begin(name)
        samples = None if rows is None else _samples(request, phase, rows, caches, seed)
        part = replace(request, phase=phase, calibration=samples, set_ranges=ranges)
        parts[name] = BuiltPhase(name, build_one(part, listener))
    return BuiltDecoder(parts)


def rows_of_at_least(rows: Tokens, length: int) -> Tokens:
    """Rows of at least so many tokens: of short ones, each is continued by those after it."""
    count = -(-length // rows.shape[1])
    if count == 1:
        return rows
    return np.concatenate([np.roll(rows, -shift, axis=0) for shift in range(count)], axis=1)


def _float_caches(
    request: Request, rows: Tokens | None, longest: int
) -> tuple[list[dict[str, NDArray[Any]]], dict[str, Range]]:
    """The caches of every row by the float model, and the ranges they share."""
    if rows is None:
        return [], {}
    size = min(rows.shape[1], longest)
    names = caches_of(*_ports(request.model))
    level = FloatLevel(load(specialize(request.model, size, size), host=True))
    found: list[dict[str, NDArray[Any]]] = []
    for row in rows:
        outputs = level.run(phase_feed(level, Phase(size, size), {}, row[:size].tolist(), 0))
        # Copies: results keep all the memory of the run that made them.
        found.append({cache.past: outputs[cache.present].copy() for cache in names})
    ranges = {}
    for cache in names:
        low = min(0.0, *(float(each[cache.past].min()) for each in found))
        high = max(0.0, *(float(each[cache.past].max()) for each in found))
        for name in (cache.past, cache.present, f"{cache.present}/all"):
            ranges[name] = Range(low, high)
    return found, ranges


def _ports(path: Path) -> tuple[list[str], list[str]]:
    """Names of a decoder's inputs and outputs, its caches among them."""
    model = specialize(path, 1, 2)
    return [value.name or "" for value in model.graph.inputs], [
        value.name or "" for value in model.graph.outputs
    ]


def _samples(
    request: Request, phase: Phase, rows: Tokens, caches: list[dict[str, NDArray[Any]]], seed: int
) -> Samples:
    """A sample of every row: the tokens of a phase from a place on, behind those before it."""
    last = min(rows.shape[1], phase.context) - phase.sequence
    level = FloatLevel(load(specialize(request.model, phase.sequence, phase.context), host=True))
    generator = np.random.default_rng(seed)
    feeds = []
    for row, held in zip(rows, caches, strict=True):
        start = int(generator.integers(0, last + 1))
        tokens = row[start : start + phase.sequence].tolist()
        feeds.append(phase_feed(level, phase, held if phase.past else {}, tokens, start))
    return Samples.of_feeds(feeds, level.ports)


def float_decoder(path: Path, phases: Sequence[Phase]) -> Decoder:
    """The float model of a decoder, in the same phases."""
    return Decoder(
        [FloatLevel(load(specialize(path, each.sequence, each.context), host=True)) for each in phases]
    )


def open_decoder(
    path: Path, ran: Callable[[PhaseLevel, int], None] = lambda _, __: None, *, simulated: bool = False
) -> Decoder:
    """The decoder in a bundle: its graphs, or its programs on the simulated machine, of the same bits.

    Raises:
        FileError: The file is no bundle.
        SampleError: Its networks are no decoders.
    """
    held = load_bundle(path)
    if simulated or not held.graphs:
        programs = [held.program(name) for name in held.programs]
        if has_states(programs):
            return StatefulDecoder([each for each in programs if not isinstance(each, Partitioned)], ran)
        return Decoder([program_level(program) for program in programs], ran)
    return graph_decoder([graph_level(held.graph(name)) for name in held.graphs], ran)
