"""The four levels on the same input, tensor by tensor.

    original ONNX --> normalised float --> integer graph --> program
                 similarity           similarity        equality of every bit

Original and normalised network share the names of their tensors, and a graph's tensor knows the model's
tensor it stands for: what exists at both ends of an arrow is compared there. A program runs the first
feed instruction by instruction, which shows every tensor; of later feeds its outputs are compared, since
the checker proves of all feeds that every value on the way is the graph's.

Over several samples the worst of each measure is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import FileError, ShortfallError, TpuflowError
from tpuflow.evaluation.similarity import Similarity, similarity
from tpuflow.execution.debug import stepped_level
from tpuflow.execution.levels import graph_level
from tpuflow.frontend import FloatModel, FloatSession, generated
from tpuflow.io.samples import Samples, load_samples
from tpuflow.partitioning.storage import (
    broken_rules,
    graph_beside,
    is_program,
    load_graph,
    load_program,
    require_pair,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tpuflow.execution.levels import IntegerLevel
    from tpuflow.partitioning.storage import AnyGraph, AnyProgram

__all__ = [
    "Comparison",
    "ComparisonError",
    "DifferenceError",
    "Pair",
    "TensorComparison",
    "compare_levels",
    "open_pair",
]

Array = NDArray[Any]


class ComparisonError(TpuflowError):
    """Levels or files do not belong together, so that they cannot be compared."""


class DifferenceError(ComparisonError, ShortfallError):
    """Levels or files differ more than they may."""


@dataclass(frozen=True)
class Pair:
    """A graph and, if there is one, the program compiled from it."""

    graph: IntegerLevel
    program: IntegerLevel | None
    name: str

    @classmethod
    def of(cls, network: AnyGraph | AnyProgram, graph: AnyGraph | None = None, name: str = "") -> Pair:
        """A graph alone, or a program with the graph it was compiled from, which is proved.

        Raises:
            ComparisonError: The program does not compute the graph, or comes without one.
        """
        name = name or network.name
        if not is_program(network):
            return cls(graph_level(network), None, name)  # type: ignore[arg-type]
        if graph is None:
            raise ComparisonError(f'program "{name}": give the graph it was compiled from, too')
        broken = broken_rules(network, graph)
        if broken:
            raise ComparisonError(f'program "{name}": does not compute the graph: {broken[0]}')
        return cls(graph_level(graph), stepped_level(network, graph), name)


@dataclass(frozen=True)
class TensorComparison:
    """One tensor of the model.

    Attributes:
        name: Its name in the model.
        normalized: Normalised against original float; None if normalisation removed the tensor.
        quantized: Integer graph, dequantised, against normalised float; None if no stored tensor stands for
            it, or its shape depends on values and is another one.
        equal: Whether program and graph agree in every bit; None where the program does not show the tensor.
        difference: Where the first different code is, with both codes.
        shapes: The shapes at the levels, where they differ, as those of what the host selects may.
    """

    name: str
    normalized: Similarity | None
    quantized: Similarity | None
    equal: bool | None = None
    difference: str | None = None
    shapes: str | None = None


@dataclass(frozen=True)
class Comparison:
    """All tensors, in the order of the model.

    Attributes:
        name: What was compared.
        samples: Number of samples.
        tensors: One entry per tensor that exists at two levels.
        outputs: Names of the network's outputs.
    """

    name: str
    samples: int
    tensors: list[TensorComparison] = field(default_factory=list)
    outputs: frozenset[str] = frozenset()

    @property
    def bit_equal(self) -> bool | None:
        """Whether graph and program agree wherever both show a tensor; None without a program."""
        seen = [tensor.equal for tensor in self.tensors if tensor.equal is not None]
        return all(seen) if seen else None

    def failures(
        self,
        least: tuple[float, float] | None,
        excepts: Collection[str] = (),
        least_db: float = -math.inf,
    ) -> str:
        """Describes the failures in one sentence; empty if there are none.

        Args:
            least: Cosine and Euclidean similarity every float-integer and float-float pair must reach.
            excepts: Tensors that need not.
            least_db: Signal to noise every output must reach beside float.
        """
        for tensor in self.tensors:
            if tensor.equal is False:
                what = f'first in tensor "{tensor.name}": {tensor.difference}'
                return f"{self.name}: graph and program differ, {what}"
        for tensor in self.tensors:
            pair = tensor.quantized
            if tensor.name in self.outputs.difference(excepts) and pair is not None and pair.sqnr < least_db:
                return (
                    f'{self.name}: output "{tensor.name}" has {pair.sqnr:.1f} dB of signal to noise, less '
                    f"than {least_db:g} dB: `tpuflow build --calib` names the layer (--least-sqnr)"
                )
        if least is None:
            return ""
        low = self._low(least, excepts)
        if not low:
            return ""
        name, pair = low[0]
        return (
            f"{self.name}: {len(low)} tensors are below {least[0]:g}, {least[1]:g}, first "
            f'"{name}": cosine {pair.cosine:.3f}, euclid {pair.euclid:.3f}'
        )

    def failing_tensors(self, least: tuple[float, float] | None, excepts: Collection[str] = ()) -> set[str]:
        """Names of the tensors `failures` speaks of: those that differ in any bit, those that are unlike."""
        low = [] if least is None else self._low(least, excepts)
        different = {tensor.name for tensor in self.tensors if tensor.equal is False}
        return different | {name for name, _ in low}

    def _low(self, least: tuple[float, float], excepts: Collection[str]) -> list[tuple[str, Similarity]]:
        return [
            (tensor.name, pair)
            for tensor in self.tensors
            for pair in (tensor.normalized, tensor.quantized)
            if tensor.name not in excepts and pair is not None and not pair.reaches(least)
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""

        def measures(found: Similarity | None) -> dict[str, Any] | None:
            return None if found is None else found.to_json()

        rows = [
            {
                "name": tensor.name,
                "normalized": measures(tensor.normalized),
                "quantized": measures(tensor.quantized),
                "equal": tensor.equal,
                "difference": tensor.difference,
                "shapes": tensor.shapes,
            }
            for tensor in self.tensors
        ]
        return {"name": self.name, "samples": self.samples, "bit_equal": self.bit_equal, "tensors": rows}


def open_pair(path: Path, graph: Path | None = None) -> Pair:
    """Opens a program with the graph it was compiled from, or a graph alone.

    The graph lies beside the program unless `graph` names it. That it is the right one is proved, not
    believed: the checker follows every value of the program and compares it with what the graph asks for.

    Raises:
        FileError: A file cannot be read, or there is no graph.
        ComparisonError: The program does not compute the graph.
    """
    if path.suffix == ".tpuq":
        return Pair(graph_level(load_graph(path)), None, path.name)
    if path.suffix != ".tpu":
        raise FileError(
            f'{path}: unknown kind of file "{path.suffix}": give a program (.tpu) or a graph (.tpuq)'
        )
    program = load_program(path)
    source = graph_beside(path) if graph is None else graph
    if graph is None and not source.is_file():
        raise FileError(
            f"{source}: the quantised graph of {path} is missing: `tpuflow build` writes it "
            "beside the program, else give it with --graph"
        )
    require_pair(path, source)
    loaded = load_graph(source)
    broken = broken_rules(program, loaded)
    if broken:
        raise ComparisonError(f"{path}: does not compute the graph {source}: {broken[0]}")
    return Pair(graph_level(loaded), stepped_level(program, loaded), path.name)


def compare_levels(
    model: FloatModel,
    pair: Pair,
    inputs: Path | Samples | None = None,
    *,
    count: int = 1,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[str, Array, Array], None] | None = None,
) -> Comparison:
    """Runs all levels on the first `count` samples.

    Args:
        model: Both float levels.
        pair: Graph and program.
        inputs: Samples; generated ones by default.
        count: How many of them.
        seed: Seed of generated samples.
        progress: Told after every feed.
        watch: Shown every tensor of every feed that float and graph have: its name, and both arrays.

    Raises:
        SampleError: The samples do not fit the network.
        ComparisonError: Float network and graph have different inputs.
    """
    ours, theirs = ([(port.name, port.shape) for port in level] for level in (model.inputs, pair.graph.ports))
    if ours != theirs:
        raise ComparisonError(f"{pair.name}: was not made from this model: the inputs differ")
    if inputs is None:
        samples = generated(model, count, seed)
    else:
        samples = inputs if isinstance(inputs, Samples) else load_samples(inputs, model.inputs)
    original = FloatSession(model.origin, "all")
    normalized = FloatSession(model.model, "all")
    found: dict[str, TensorComparison] = {}
    done = 0
    for batch in samples.batches():
        feeds = dict(batch.arrays)
        levels = (original.run(feeds), {**feeds, **normalized.run(feeds)})
        for tensor in _compare_feed(*levels, pair, feeds, pair.graph.outputs, watch, steps=done == 0):
            found[tensor.name] = _worst(found.get(tensor.name), tensor)
        done += batch.count
        if progress is not None:
            progress(min(done, count), min(count, samples.count))
        if done >= count:
            break
    outputs = frozenset(port.name for port in model.outputs)
    return Comparison(pair.name, min(done, samples.count), list(found.values()), outputs)


def _compare_feed(
    original: dict[str, Array],
    normalized: dict[str, Array],
    pair: Pair,
    feeds: dict[str, Array],
    outputs: Collection[str],
    watch: Callable[[str, Array, Array], None] | None = None,
    *,
    steps: bool,
) -> list[TensorComparison]:
    """Every tensor of one feed that two levels have; with `steps` the program shows those on its way, too."""
    integers = pair.graph.compute(feeds, all_tensors=True)
    rows: dict[str, TensorComparison] = {}
    for name, array in normalized.items():
        ours = integers.tensors.get(name)
        first, second = _similar(original.get(name), array), _similar(array, ours)
        shapes = _shapes(original.get(name), array, ours)
        if watch is not None and second is not None and ours is not None:
            watch(name, array, ours)
        if first is not None or second is not None or (shapes is not None and name in outputs):
            rows[name] = TensorComparison(name, first, second, shapes=shapes)
    if pair.program is not None:
        theirs = pair.program.compute(feeds, all_tensors=steps).codes
        for name, code in integers.codes.items():
            if name not in theirs:
                continue
            row = rows.setdefault(name, TensorComparison(name, None, None))
            difference = _difference(code, theirs[name])
            rows[name] = replace(row, equal=difference is None, difference=difference)
    return list(rows.values())


def _similar(reference: Array | None, test: Array | None) -> Similarity | None:
    numbers = all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in (reference, test))
    if reference is None or test is None or not numbers or reference.shape != test.shape:
        return None
    return similarity(reference, test)


def _shapes(original: Array | None, normalized: Array, integers: Array | None) -> str | None:
    """The shapes of one tensor at the levels, where they differ; None where they do not."""
    levels = {"original": original, "normalised": normalized, "graph": integers}
    shapes = {name: list(array.shape) for name, array in levels.items() if isinstance(array, np.ndarray)}
    if all(shape == list(normalized.shape) for shape in shapes.values()):
        return None
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _difference(ours: Array, theirs: Array) -> str | None:
    """Where codes of graph and program differ; None if they do not."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"graph {ours.dtype} {list(ours.shape)}, program {theirs.dtype} {list(theirs.shape)}"
    if ours.dtype.kind == "f" and np.array_equal(ours, theirs, equal_nan=True):
        return None
    wrong = np.argwhere(ours != theirs)
    if not len(wrong):
        return None
    first = tuple(int(index) for index in wrong[0])
    codes = f"graph {ours[first]}, program {theirs[first]}"
    return f"{len(wrong)} of {ours.size} codes, first at {list(first)}: {codes}"


def _worst(before: TensorComparison | None, now: TensorComparison) -> TensorComparison:
    if before is None:
        return now
    return TensorComparison(
        now.name,
        _lower(before.normalized, now.normalized),
        _lower(before.quantized, now.quantized),
        before.equal if now.equal is None else now.equal and before.equal is not False,
        before.difference or now.difference,
        before.shapes or now.shapes,
    )


def _lower(a: Similarity | None, b: Similarity | None) -> Similarity | None:
    """The worse of each measure; NaN is worse than anything."""
    if a is None or b is None:
        return a or b
    return Similarity(
        float(np.minimum(a.cosine, b.cosine)),
        float(np.minimum(a.euclid, b.euclid)),
        float(np.minimum(a.sqnr, b.sqnr)),
        float(np.maximum(a.max_error, b.max_error)),
        max(a.nonfinite, b.nonfinite),
        float(np.maximum(a.rmse, b.rmse)),
        float(np.minimum(a.psnr, b.psnr)),
    )
