"""A layer's cycles in a program: memories before and after them, operands and result as codes.

The program is executed one instruction after another in the order in which they begin, as the debugger does.
The memories before are those that the first computing instruction of the layer finds, those after hold all
that was begun before the layer's last instruction ended. What the layer's instructions write is compared with
the integers of the graph as it is written, so that vectors that are given out are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.compiler.units import UNITS
from tpuflow.errors import ProgramError
from tpuflow.execution.debug.replay import Instruction, Replay, in_parts
from tpuflow.execution.debug.written import written_elements
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import program_ports
from tpuflow.execution.vectors.images import Image
from tpuflow.execution.vectors.trace import Trace, Words, record_trace

__all__ = ["LayerVectors", "Tensor", "VectorError", "layer_vectors"]

Array = NDArray[Any]
Progress = Callable[[int, int], None]
LINES = frozenset(unit.name for unit in UNITS if unit.is_dma)


class VectorError(ProgramError):
    """Vectors of a layer cannot be given."""


@dataclass(frozen=True)
class Tensor:
    """An operand or the result of a layer.

    Attributes:
        name: In the graph.
        role: `input`, `constant` or `output`.
        codes: Its elements as they are stored, channels last.
        scale: One number or one per channel; empty for floats and indices.
        zero_point: Code of real zero.
    """

    name: str
    role: str
    codes: Array
    scale: tuple[float, ...]
    zero_point: int


@dataclass(frozen=True)
class LayerVectors:
    """Everything of one layer.

    Attributes:
        replay: The program, after the layer.
        layer: Number of the layer.
        cycles: First cycle of the layer, and one past its last.
        before: Memories at the first cycle.
        after: Memories at the end.
        instructions: The layer's own.
        others: Those of other layers that begin between `before` and `after`.
        tensors: Operands and result.
        places: Bytes of the cache `after` that hold elements of the result: address, first element, elements.
        trace: What is seen in the cycles asked for.
    """

    replay: Replay
    layer: int
    cycles: tuple[int, int]
    before: tuple[Image, ...]
    after: tuple[Image, ...]
    instructions: tuple[Instruction, ...]
    others: tuple[Instruction, ...]
    tensors: tuple[Tensor, ...]
    places: tuple[tuple[int, int, int], ...]
    trace: Trace


def layer_vectors(
    program: Any,
    graph: GraphLevel,
    feed: Mapping[str, Array],
    layer: str,
    *,
    cycles: tuple[int, int] | None = None,
    most_events: int = 1 << 22,
    progress: Progress | None = None,
) -> LayerVectors:
    """Runs a program and keeps what is needed of one layer.

    Args:
        program: The program, whole on the device.
        graph: The graph it was made of.
        feed: Every input in the model's shape.
        layer: Name of the layer, a part of it that no other has, or its number.
        cycles: The cycles to trace; by default the layer's.
        most_events: Of the trace, beyond which there is none.
        progress: Told now and then how many instructions are done.

    Raises:
        VectorError: There is no such layer, the cycles are none of the program's, there are too many events,
            or the program does not compute the graph.
        SampleError: The inputs do not fit.
    """
    codes = [port.encode(feed[port.name]) for port in program_ports(program)[0]]
    replay = Replay(program, codes)
    number = replay.find_layer(layer)
    own = [each for each in replay.instructions if each.layer == number]
    if not own:
        with_own = sorted({each.layer for each in replay.instructions}, key=lambda other: abs(other - number))
        near = " or ".join(f'"{replay.layer_name(other)}"' for other in sorted(with_own[:2]))
        raise VectorError(
            f'layer "{replay.layer_name(number)}" has no instruction, others write its result: take {near}'
        )
    computing = [each for each in own if each.unit not in LINES] or own
    span = min(each.begin for each in computing), max(each.end for each in own)
    first, last = cycles or span
    if not 0 <= first < last <= replay.cycles:
        raise VectorError(f"cycles {first}:{last}: the program has cycles 0 to {replay.cycles}, write A:B")
    tensors = _tensors(replay, graph, number, codes)
    words = Words(replay, (first, last), most_events)
    result = _Result(replay, number, tensors[-1].codes)
    before, after = _run(replay, span, max(span[1], last), words, result, progress)
    begun = [each for each in replay.instructions if span[0] <= each.begin < span[1] and each.layer != number]
    return LayerVectors(
        replay=replay,
        layer=number,
        cycles=span,
        before=before,
        after=after,
        instructions=tuple(own),
        others=tuple(begun),
        tensors=tensors,
        places=result.places(after[0]),
        trace=record_trace(replay, words),
    )


def _run(
    replay: Replay,
    span: tuple[int, int],
    end: int,
    words: Words,
    result: _Result,
    progress: Progress | None,
) -> tuple[tuple[Image, ...], tuple[Image, ...]]:
    """Executes all that begins before `end`; memories at the borders of `span`."""
    found: list[tuple[Image, ...]] = []
    while (following := replay.next()) is not None and following.begin < end:
        while len(found) < len(span) and following.begin >= span[len(found)]:
            found.append(_images(replay))
        words.read(replay, following.number)
        replay.step()
        words.write(replay, following.number)
        result.compare(following)
        if progress is not None and replay.done % 64 == 0:
            progress(replay.done, len(replay.order))
    while len(found) < len(span):
        found.append(_images(replay))
    return found[0], found[1]


def _images(replay: Replay) -> tuple[Image, ...]:
    """All memories as they are now; the shared cache first."""
    machine = replay.content["machine"]
    word, ddr_word = machine["cache"]["word_bytes"], machine["ddr"]["word_bytes"]
    spaces = [("cache", word), ("ewp", word)]
    spaces += [(f"ddr{number}", ddr_word) for number in range(len(replay.content["ddr_bytes"]))]
    return tuple(Image.of(name, size, *replay.read(name, 0, 1 << 62)) for name, size in spaces)


def _tensors(replay: Replay, level: GraphLevel, number: int, codes: Sequence[Array]) -> tuple[Tensor, ...]:
    """Operands of a layer, then its result, as the graph computes them."""
    graph, _ = in_parts(level.graph, replay.program)
    layers, tensors = graph.layers, graph.tensors
    if [layer.name for layer in layers] != [layer["name"] for layer in replay.content["layers"]]:
        raise VectorError(f'program "{replay.program.name}": the graph has other layers: give its own')
    named = {tensors[index].name: code for index, code in zip(graph.inputs, codes, strict=True)}
    truth = named | graph.run(named, all_tensors=True)
    found = []
    for role, index in [("input", each) for each in layers[number].operands] + [
        ("output", layers[number].output)
    ]:
        tensor = tensors[index]
        values = graph.constant(index) if tensor.is_constant else truth[tensor.name]
        kind = "constant" if tensor.is_constant else role
        scale = tuple(tensor.scale or ())
        found.append(Tensor(tensor.name, kind, np.ascontiguousarray(values), scale, tensor.zero_point))
    return tuple(found)


class _Result:
    """Where the elements of a layer's result were written last."""

    def __init__(self, replay: Replay, layer: int, codes: Array) -> None:
        self._replay = replay
        self._layer = layer
        self._shape = codes.shape
        self._op = replay.content["layers"][layer]["op"]
        self._rows = np.ascontiguousarray(codes).reshape(-1).view(np.uint8).reshape(codes.size, -1)
        self._addresses = np.full(codes.size, -1, np.int64)

    def compare(self, done: Instruction) -> None:
        """Compares what an instruction wrote of the layer with the graph.

        Raises:
            VectorError: It differs.
        """
        if done.layer != self._layer:
            return
        content = self._replay.content
        entry, word = content["instructions"][done.number], content["machine"]["cache"]["word_bytes"]
        place = written_elements(entry, content["descriptors"], self._shape, self._op, word)
        if place is None or not place.final:
            return
        inside = place.elements < len(self._rows)
        elements, addresses = place.elements[inside], place.addresses[inside]
        if not elements.size:
            return
        size = self._rows.shape[1]
        low = int(addresses.min())
        memory, _ = self._replay.read("cache", low, int(addresses.max()) - low + size)
        if (memory[(addresses - low)[:, None] + np.arange(size)] != self._rows[elements]).any():
            raise VectorError(
                f'layer "{self._replay.layer_name(self._layer)}": instruction {done.number} writes '
                "other codes than the graph has: `tpuflow compare PROGRAM` says which"
            )
        self._addresses[elements] = addresses

    def places(self, cache: Image) -> tuple[tuple[int, int, int], ...]:
        """The part of the result that a memory still holds, as stretches of whole elements in a row."""
        elements = np.flatnonzero(self._addresses >= 0)
        size = self._rows.shape[1]
        at = self._addresses[elements][:, None] + np.arange(size)
        kept = (cache.content[at] == self._rows[elements]).all(axis=1) & cache.known[at].all(axis=1)
        elements = elements[kept]
        if not elements.size:
            return ()
        addresses = self._addresses[elements]
        joined = (np.diff(elements) == 1) & (np.diff(addresses) == size)
        starts = np.concatenate([[0], np.flatnonzero(~joined) + 1, [len(elements)]])
        return tuple(
            (int(addresses[begin]), int(elements[begin]), int(end - begin)) for begin, end in pairwise(starts)
        )
