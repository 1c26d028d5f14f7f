"""Runs a float model and hands out every intermediate value, a bounded amount at a time.

The nodes are cut, in topological order, into segments whose outputs fit a memory budget. Each segment is
a session of its own whose outputs are all values its nodes produce, so nothing is computed twice. A value is
dropped after the last segment that reads it. Most models are one segment, whose values are written to the
same memory at every run, and of which several batches are under way at a time, on a thread each: that keeps
processors busier than all of them at work on one layer. Where it fits there is memory for one more batch, so
that no thread waits for the values of the last one to be read.

What nothing but a Relu or Clip reads is not handed out: quantised, it never exists, as its sum is clamped on
its way out and only the range after that counts. The runtime then is free to fuse the two as well. Of a
network the host shares in, only what the device meets is handed out, and what follows that is not computed
at all.
"""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tpuflow.io.samples import Batch

from tpuflow.frontend.session import COPIED_BYTES, FloatSession, split_large_weights
from tpuflow.frontend.values import reads, shape_of
from tpuflow.io.threads import threads

__all__ = ["CLAMPED", "ActivationSession", "handed_out", "run_of", "segment_of"]

Array = NDArray[Any]


CLAMPED = frozenset({"Add", "Conv", "ConvTranspose", "MatMul"})
"""Operators whose output is clamped in the same step by a Relu or Clip that alone reads it."""


@dataclass(frozen=True)
class Segment:
    """Some nodes, ready to run."""

    session: FloatSession
    inputs: tuple[str, ...]
    last_read: frozenset[str]  # values no later segment reads


class ActivationSession:
    """Values of a model, segment by segment.

    Args:
        model: Model whose every value has a name and a type.
        memory_bytes: Largest sum of a segment's outputs, except for a single node above it.
        wanted: Names of the values to hand out; all by default.
        several: Several batches are to be run, by `runs`.
        clamped: Hand out also what nothing but a Relu or Clip reads.
        integers: Hand out integers as well, in their own type.

    Attributes:
        made: By segment, names of what is handed out of its nodes' results.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        memory_bytes: int,
        wanted: Collection[str] | None = None,
        several: bool = False,
        clamped: bool = False,
        integers: bool = False,
    ) -> None:
        self._integers = integers
        nodes = list(model.graph) if wanted is None else run_of(list(model.graph), wanted)
        self._static = all(shape_of(value) is not None for node in nodes for value in node.outputs)
        parts = list(_cut(nodes, memory_bytes)) if nodes else []
        used = sum(_bytes(value) for node in nodes for value in node.outputs)
        fit = memory_bytes // max(1, used) - 1
        together = several and len(parts) == 1 and fit > 1
        self._workers = min(threads(), fit) if together else 1
        self._memories = min(self._workers + 1, max(1, fit))
        each = 1 if together else None
        # What sessions keep for themselves adds up: memory of their runs, and copies of their weights.
        arena, once = len(parts) < 2, len(parts) > 1 and _weight_bytes(model) > COPIED_BYTES
        self._segments = [
            segment_of(model, part, later, wanted, each, once=once, arena=arena, clamped=clamped)
            for part, later in parts
        ]
        self._wanted = wanted
        self.made = [
            [name for name in segment.session.outputs if wanted is None or name in wanted]
            for segment in self._segments
        ]
        self._memory: dict[str, Array] | None = None

    @property
    def segments(self) -> int:
        """Number of sessions run in turn."""
        return len(self._segments)

    def runs(
        self, batches: Iterable[Batch]
    ) -> Iterator[tuple[Batch, Iterable[dict[str, NDArray[np.float32]]]]]:
        """Results of `run` for every batch, in order; valid until the next one is asked for."""
        if self._workers == 1:
            yield from ((batch, self.run(batch.arrays)) for batch in batches)
            return
        (segment,) = self._segments
        pending: deque[tuple[Batch, Future[dict[str, Array]]]] = deque()
        memories: list[dict[str, Array] | None] = [None] * self._memories

        def oldest() -> tuple[Batch, Iterable[dict[str, NDArray[np.float32]]]]:
            batch, future = pending.popleft()
            made = future.result()
            memories.append(made if self._static else None)
            return batch, [self._floats({**batch.arrays, **made})]

        with ThreadPoolExecutor(self._workers) as pool:
            for batch in batches:
                feeds = {name: batch.arrays[name] for name in segment.inputs}
                pending.append((batch, pool.submit(segment.session.run, feeds, memories.pop())))
                if not memories:  # the next batch has to wait until values of the oldest have been read
                    yield oldest()
            while pending:
                yield oldest()

    def run(self, feeds: Mapping[str, Array]) -> Iterator[dict[str, NDArray[np.float32]]]:
        """Float values of one batch: the inputs with the first segment, then what each segment computes.

        Args:
            feeds: Every network input by name, with the model's own shape and dtype.

        Yields:
            Value name to float32 array, valid until the next batch; integers only where they are asked for.
        """
        live: dict[str, Array] = dict(feeds)
        fresh: dict[str, Array] = dict(feeds)
        if not self._segments:  # nothing but inputs is wanted
            yield self._floats(fresh)
        for segment in self._segments:
            computed = segment.session.run({name: live[name] for name in segment.inputs}, self._memory)
            if (
                self.segments == 1 and self._static
            ):  # kept memory of several would add up to what segments are there to avoid
                self._memory = computed
            fresh.update(computed)
            live.update(computed)
            del computed
            for name in segment.last_read:
                live.pop(name, None)
            yield self._floats(fresh)
            fresh = {}

    def _floats(self, made: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
        shown = {name: made[name] for name in made if self._wanted is None or name in self._wanted}
        return {
            name: array.astype(np.float32, copy=False) if array.dtype.kind == "f" else array
            for name, array in shown.items()
            if array.dtype.kind == "f" or self._integers
        }


def handed_out(model: ir.Model, wanted: Collection[str] | None = None) -> list[str]:
    """Names of the floats that a session of the model hands out, nothing being run."""
    inputs = [value for value in model.graph.inputs if wanted is None or value.name in wanted]
    made = [value for node in model.graph for value in node.outputs if value.name]
    shown = [*inputs, *(value for value in made if _is_shown(value, wanted))]
    return [_name(value) for value in shown if value.dtype is not None and value.dtype.is_floating_point()]


def _name(value: ir.Value) -> str:
    if not value.name:
        raise ValueError("a value of the graph has no name")
    return value.name


def run_of(nodes: Sequence[ir.Node], wanted: Collection[str]) -> list[ir.Node]:
    """Those of nodes in topological order that wanted values depend on."""
    needed: set[ir.Value] = set()
    found: list[ir.Node] = []
    for node in reversed(nodes):
        if any(value in needed or value.name in wanted for value in node.outputs):
            found.append(node)
            needed.update(reads(node))
    return found[::-1]


def _cut(nodes: list[ir.Node], memory_bytes: int) -> Iterator[tuple[list[ir.Node], set[str]]]:
    """Runs of nodes within the budget, each with the names that later nodes read."""
    runs: list[list[ir.Node]] = [[]]
    used = 0
    for node in nodes:
        size = sum(_bytes(value) for value in node.outputs)
        if runs[-1] and used + size > memory_bytes:
            runs.append([])
            used = 0
        runs[-1].append(node)
        used += size
    later: set[str] = set()
    read_later: list[set[str]] = []
    for run in reversed(runs):
        read_later.append(set(later))
        later |= {_name(value) for node in run for value in reads(node)}
    return zip(runs, reversed(read_later), strict=True)


def _is_shown(value: ir.Value, wanted: Collection[str] | None, *, clamped: bool = False) -> bool:
    """Whether a value is handed out: it is wanted, and not clamped by a step that is wanted too."""
    if wanted is None:
        return clamped or not _is_clamped(value)
    if value.name not in wanted:
        return False
    return clamped or not (
        _is_clamped(value) and all(use.node.outputs[0].name in wanted for use in value.uses())
    )


def _is_clamped(value: ir.Value) -> bool:
    """Whether a sum is read by nothing but a Relu or a Clip with constant bounds."""
    producer, uses = value.producer(), value.uses()
    if producer is None or producer.op_type not in CLAMPED or value.is_graph_output() or len(uses) != 1:
        return False
    ((user, index),) = uses
    known = all(bound is None or bound.const_value is not None for bound in user.inputs[1:])
    return index == 0 and user.op_type in {"Relu", "Clip"} and known


def _weight_bytes(model: ir.Model) -> int:
    weights = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in weights if tensor is not None)


def _bytes(value: ir.Value) -> int:
    if value.shape is None or value.dtype in {None, ir.DataType.UNDEFINED, ir.DataType.STRING}:
        return 0
    dims = [dim if isinstance(dim, int) else 1 for dim in value.shape]
    return int(math.prod(dims) * value.dtype.itemsize)


def segment_of(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    later: set[str],
    wanted: Collection[str] | None,
    threads: int | None = None,
    *,
    once: bool = False,
    arena: bool = True,
    clamped: bool = False,
) -> Segment:
    """A session of some nodes, which gives what is wanted and what later nodes read.

    Args:
        model: The model the nodes are of.
        nodes: The nodes, in topological order.
        later: Names of what later nodes read.
        wanted: Names of what is handed out beside that; None: everything.
        threads: As of `FloatSession`.
        once: As of `FloatSession`.
        arena: As of `FloatSession`.
        clamped: Hand out also what nothing but a Relu or Clip reads.
    """
    initializers = model.graph.initializers
    made = [value for node in nodes for value in node.outputs if value.name]
    produced = {_name(value) for value in made}
    handed_out = [
        name for value in made if (name := _name(value)) in later or _is_shown(value, wanted, clamped=clamped)
    ]
    read = {_name(value): value for node in nodes for value in reads(node)}
    inputs = tuple(name for name in read if name not in initializers and name not in produced)
    proto = onnx.ModelProto(ir_version=min(model.ir_version or 8, 10))
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.functions.extend(ir.serde.serialize_function(function) for function in model.functions.values())
    graph = proto.graph
    graph.name = "segment"
    graph.node.extend(ir.serde.serialize_node(node) for node in nodes)
    weights = {
        name: tensor
        for name, value in read.items()
        if name in initializers and (tensor := value.const_value) is not None
    }
    listed, apart = split_large_weights(weights)
    graph.initializer.extend(ir.serde.serialize_tensor(tensor) for tensor in listed.values())
    graph.input.extend(ir.serde.serialize_value(read[name]) for name in inputs)
    # Types of outputs are left to the runtime's inference.
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in handed_out)
    last_read = frozenset(name for name in (*inputs, *handed_out) if name not in later)
    session = FloatSession(proto, threads=threads, once=once, arena=arena, apart=apart)
    return Segment(session, inputs, last_read)
