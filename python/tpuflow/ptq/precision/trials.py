"""Networks whose layers have other precisions: what comes out, and what it costs.

An assignment says which layers differ from the configuration, and how:

    {"/conv1": "16", "/head": "f32"}

A layer is known by the name settings by layer have for it: the last node it computes, or a network's input.
Ranges of a tensor follow from the precision it has, as they do where a whole configuration is calibrated;
both kinds are found once, so that a trial is a lowering and a run. Trials that do not depend on each other
run in an executor, a wave at a time (`Trials.in_waves`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibration import Range, Ranges
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import FLOATS, Config, LayerConfig, layer_names
from tpuflow.errors import TpuflowError
from tpuflow.execution.simulation import simulate
from tpuflow.executors import run_all
from tpuflow.lowering import lower
from tpuflow.partitioning import Partitioned, device_networks, partition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from os import PathLike

    from tpuflow.compiler.machine import Machine
    from tpuflow.evaluation.fidelity import Evaluator, Outputs
    from tpuflow.executors import Executor, Shared
    from tpuflow.frontend import FloatModel
    from tpuflow.io.journal import Journal
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["PRECISIONS", "Assignment", "Cost", "Layer", "PrecisionError", "Trials"]

Assignment = Mapping[str, str]

PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "4": {"dtype": "int8", "activation_bits": 8, "weight_bits": 4},
    "8": {"dtype": "int8", "activation_bits": 8, "weight_bits": 8},
    "16": {"dtype": "int16", "activation_bits": 16, "weight_bits": 16},
    "a8": {"dtype": "int8", "activation_bits": 8},
    "a16": {"dtype": "int16", "activation_bits": 16},
    "f16": {"dtype": "float16"},
    "bf16": {"dtype": "bfloat16"},
    "f32": {"dtype": "float32"},
}
"""By name, the narrowest first: what a layer is configured as; `weight_bits` only where it has weights.
Those with an `a` in front leave weights as they are configured."""

MOVES = frozenset(
    {"rearrange", "max_pool", "pad", "gather", "insert_zeros", "rescale", "quantize", "dequantize"}
)
"""Layers that round nothing themselves: more bits would not help them."""

CAN = "can have"
"""What a journal calls the question whether a layer can have a precision on its own."""

LINEAR = frozenset({"conv", "mat_mul"})
"""Layers whose second operand may be weights."""

KEPT = 64
"""Outputs kept of so many assignments."""

WAVE = 32
"""Trials begun together in an executor, however many processes there are; limits are checked in between."""


class PrecisionError(TpuflowError):
    """A search over precisions cannot be made as it was asked for."""


@dataclass(frozen=True)
class Layer:
    """A layer, or an input, that may have a precision of its own.

    Attributes:
        name: As settings by layer have it.
        number: Among all layers of the model.
        operator: Of the graph; `input` for what the network takes.
        weights: Whether it has weights of its own.
        nodes: All nodes of the model it computes.
    """

    name: str
    number: int
    operator: str
    weights: bool
    nodes: tuple[str, ...] = ()

    def allows(self, precision: str) -> bool:
        """Whether the precision is another one for this layer: 4 bits are for weights."""
        return precision != "4" or self.weights


@dataclass(frozen=True)
class Cost:
    """The cost of a network.

    Attributes:
        cycles: Of one inference, the host's part left out.
        bytes: Of all constants, weights counted at their own width. Programs store 4 bits in a byte.
        activations: Bytes of all that is computed or taken as input.
    """

    cycles: int
    bytes: int
    activations: int = 0

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.cycles - other.cycles, self.bytes - other.bytes, self.activations - other.activations
        )


class Trials:
    """Graphs of one network under assignments.

    Args:
        model: The float network.
        config: What holds where an assignment says nothing.
        calibrated: Gives the ranges for a configuration.
        evaluator: Compares outputs with float; None where only graphs and costs are asked for.
        machine: What cycles are counted on.
        level: Of the schedule.
        host: Let the host compute what the machine cannot.
        journal: Holds losses, metrics and costs by assignment; those it knows are not found anew.
        executor: Where waves of trials run; here, one after the other, without one.

    Attributes:
        layers: What assignments may name: inputs, then layers in the order of computation.
    """

    def __init__(
        self,
        model: FloatModel,
        config: Config,
        calibrated: Callable[[Config], Ranges],
        evaluator: Evaluator | None = None,
        *,
        machine: str | PathLike[str] | Machine = "128x128_asic",
        level: int = 1,
        host: bool = True,
        journal: Journal | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._parts = partition(model) if host else model
        self._model = model
        self._base = config
        self._calibrated: Callable[[Config], Ranges] | None = calibrated
        self._evaluator = evaluator
        self._machine, self._level = machine, level
        self._journal = journal
        self._executor = executor
        self._shared: Shared[Trials] | None = None
        self._answers: dict[str, Any] = {}
        self._ranges: dict[str, Ranges] = {}
        self._outputs: dict[frozenset[tuple[str, str]], Outputs] = {}
        self._makers = {
            value.name: node.name or "" for node in model.model.graph for value in node.outputs if value.name
        }
        self.layers: tuple[Layer, ...] = ()
        self._costs: dict[frozenset[tuple[str, str]], Cost] = {}
        self._last: tuple[frozenset[tuple[str, str]], AnyGraph] | None = None
        graph = self.graph({})
        self.layers = tuple(self._layers_of(graph))
        self._hosted = _host_nodes(graph)

    def __getstate__(self) -> dict[str, object]:
        # Other processes are sent all ranges there are, and no outputs.
        here = dict.fromkeys(("_calibrated", "_shared", "_journal", "_executor", "_last"))
        return self.__dict__ | here | {"_outputs": {}}

    def in_waves(self, alone: Iterable[tuple[Layer, str]]) -> Iterator[tuple[Layer, str]]:
        """Layers, each with a precision it is tried at alone, in order.

        With an executor all is known of a layer when it is handed out: a wave of them has been run. Without
        one nothing is.
        """
        asked = list(alone)
        for first in range(0, len(asked), WAVE):
            wave = asked[first : first + WAVE]
            if self._executor is not None:
                unknown = [own for layer, each in wave if not self._knows(own := {layer.name: each})]
                shared = self._share(self._executor, {precision for _, precision in asked})
                self._run_wave(unknown, shared, self._executor)
            yield from wave

    def _share(self, executor: Executor, precisions: Collection[str]) -> Shared[Trials]:
        """These trials for other processes, with all ranges that the precisions need."""
        known = set(self._ranges)
        for precision in precisions:
            if PRECISIONS[precision]["dtype"] not in FLOATS:
                self._kind(precision)
        if self._shared is None or known != set(self._ranges):
            self._shared = executor.share(self)
        return self._shared

    def _run_wave(self, wave: Sequence[Assignment], shared: Shared[Trials], executor: Executor) -> None:
        def note(at: int, answers: Mapping[str, tuple[Any, float]]) -> None:
            for question, (answer, seconds) in answers.items():
                self._note(_key(question, wave[at]), answer, seconds)

        run_all(executor, _answers_of, [(shared, each) for each in wave], note)

    def _knows(self, assignment: Assignment) -> bool:
        """Whether the journal, or an earlier wave, tells all of an assignment."""
        keys = [_key(question, assignment) for question in (CAN, "loss", "costs")]
        known = [self._find(key) for key in keys]
        return known[0] is False or None not in known

    def _find(self, key: str) -> Any:
        found = self._answers.get(key)
        return found if found is not None or self._journal is None else self._journal.find(key)

    def _note(self, key: str, answer: Any, seconds: float) -> None:
        self._answers[key] = answer
        if self._journal is not None:
            self._journal.note(key, answer, seconds=seconds)

    def answers(self, assignment: Assignment) -> dict[str, tuple[Any, float]]:
        """All that a wave asks of one layer's precision, with the seconds it took."""
        ((name, precision),) = assignment.items()
        layer = next(each for each in self.layers if each.name == name)
        asked: dict[str, Callable[[], Any]] = {CAN: lambda: self._can(layer, precision, host=False)}
        if not layer.allows(precision):
            return {CAN: (False, 0.0)}
        asked["loss"] = lambda: self.evaluator.loss(self.outputs(assignment))
        if self.evaluator.name:
            asked["metric"] = lambda: self.evaluator.value(self.outputs(assignment))
        asked["costs"] = lambda: self._cost(assignment)
        found: dict[str, tuple[Any, float]] = {}
        for question, answer in asked.items():
            start = time.perf_counter()
            found[question] = answer(), time.perf_counter() - start
            if question == CAN and not found[CAN][0]:
                break
        self._outputs.clear()
        return found

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator that compares outputs with float.

        Raises:
            PrecisionError: There is none.
        """
        if self._evaluator is None:
            raise PrecisionError("there is nothing to evaluate with: give samples")
        return self._evaluator

    def config(self, assignment: Assignment) -> Config:
        """The configuration with an assignment: an entry for every layer, after those there are."""
        known = {layer.name: layer for layer in self.layers}
        entries = []
        for name, precision in assignment.items():
            fields = dict(PRECISIONS[precision])
            if not known[name].weights:
                fields.pop("weight_bits", None)
            elif precision in {"a8", "a16"}:
                fields["weight_bits"] = self._weight_bits(known[name])
            entries.append(LayerConfig.model_validate({"names": [name], **fields}))
        return self._base.model_copy(update={"layers": (*self._base.layers, *entries)})

    def _weight_bits(self, layer: Layer) -> int:
        """Width of a layer's weights as configured."""
        settings = self._base.quantize
        dtype, bits = settings.dtype, settings.weight_bits
        for entry in self._base.layers:
            if any(map(entry.fits, layer.nodes)):
                own = entry.overrides()
                dtype, bits = own.get("dtype", dtype), own.get("weight_bits", bits)
        return bits or (8 if dtype == "int8" else 16)

    def graph(self, assignment: Assignment) -> AnyGraph:
        """The network under an assignment.

        Raises:
            TpuflowError: A layer cannot have its precision.
        """
        key = frozenset(assignment.items())
        if self._last is None or self._last[0] != key:
            found = lower(self._parts, self.ranges(assignment), self.config(assignment))
            # One is kept: whoever asks what a layer can be runs it next, and a graph may be large.
            self._last = key, found.whole or found if isinstance(found, Partitioned) else found
        return self._last[1]

    def ranges(self, assignment: Assignment) -> Ranges:
        """The ranges that calibrating the assignment's configuration would give."""
        base = self._kind("")
        # Floats have no grid: theirs is that of the layers which read them as codes.
        assigned = set(assignment.values())
        codes = [each for each, own in PRECISIONS.items() if each in assigned and own["dtype"] not in FLOATS]
        others = {precision: self._kind(precision).tensors for precision in codes}
        mixed = self._kind(codes[0]) if codes and self._base.quantize.dtype in FLOATS else base
        found: dict[str, Range] = dict(mixed.tensors)
        for name in found:
            precision = assignment.get(name) or assignment.get(self._makers.get(name, ""))
            if precision is not None and name in others.get(precision, {}):
                found[name] = others[precision][name]
        return Ranges(found, base.samples, base.strategy, base.means)

    def can(self, layer: Layer, precision: str, *, host: bool = False) -> bool:
        """Whether a layer can have a precision on its own, on the machine or, with `host`, there."""
        if not layer.allows(precision):
            return False
        question = f"{CAN}, with the host" if host else CAN
        return bool(
            self._answer(question, {layer.name: precision}, lambda: self._can(layer, precision, host=host))
        )

    def _can(self, layer: Layer, precision: str, *, host: bool) -> bool:
        try:
            moved = _host_nodes(self.graph({layer.name: precision})) - self._hosted
        except TpuflowError:
            return False
        # Views beside it may go with it.
        return not moved or (host and not moved.isdisjoint(layer.nodes))

    def _answer(self, question: str, assignment: Assignment, answer: Callable[[], Any]) -> Any:
        """An answer that depends on the assignment alone, from a wave or the journal if it is there."""
        key = _key(question, assignment)
        found = self._find(key)
        if found is None:
            start = time.perf_counter()
            found = answer()
            self._note(key, found, time.perf_counter() - start)
        return found

    def outputs(self, assignment: Assignment) -> Outputs:
        """Outputs of the network under an assignment for the evaluator's samples."""
        key = frozenset(assignment.items())
        if key not in self._outputs:
            # Searches come back to the last few, not to all.
            while len(self._outputs) >= KEPT:
                del self._outputs[next(iter(self._outputs))]
            self._outputs[key] = self.evaluator.outputs(self.graph(assignment))
        return self._outputs[key]

    def value(self, assignment: Assignment) -> float:
        """The metric under an assignment."""
        return float(
            self._answer("metric", assignment, lambda: self.evaluator.value(self.outputs(assignment)))
        )

    def loss(self, assignment: Assignment) -> float:
        """How far the outputs under an assignment are from float."""
        return float(self._answer("loss", assignment, lambda: self.evaluator.loss(self.outputs(assignment))))

    def cost(self, assignment: Assignment) -> Cost:
        """Cycles of the program of an assignment, as simulated, and bytes of its constants."""
        key = frozenset(assignment.items())
        if key not in self._costs:
            self._costs[key] = Cost(*self._answer("costs", assignment, lambda: self._cost(assignment)))
        return self._costs[key]

    def _cost(self, assignment: Assignment) -> tuple[int, int, int]:
        graph = self.graph(assignment)
        program = compile_graph(graph, machine=self._machine, level=self._level)
        cycles = int(simulate(program, values=False).report["cycles"])
        return cycles, _bytes(graph, assignment), _activations(graph)

    def host_layers(self, assignment: Assignment) -> tuple[str, ...]:
        """Names of assigned layers the host must compute, because the machine has no such numbers."""
        own = _host_nodes(self.graph(assignment)) - self._hosted
        return tuple(layer.name for layer in self.layers if layer.name in own)

    def _kind(self, precision: str) -> Ranges:
        """Ranges where every layer has one precision, or the configured one for an empty word."""
        if precision not in self._ranges:
            every = {layer.name: precision for layer in self.layers if layer.allows(precision)}
            assert self._calibrated is not None, "other processes are sent the ranges of every wave"
            self._ranges[precision] = self._calibrated(self.config(every) if precision else self._base)
        return self._ranges[precision]

    def _layers_of(self, graph: AnyGraph) -> list[Layer]:
        numbers = {name: number for number, name in enumerate(layer_names(self._model.model))}
        found: dict[str, Layer] = {}
        for network in device_networks(graph):
            tensors = network.tensors
            for index in network.inputs:
                name = tensors[index].name
                if tensors[index].scale is not None and name in numbers:
                    found[name] = Layer(name, numbers[name], "input", weights=False)
            for layer in network.layers:
                names = [name for name in layer.nodes if name in numbers]
                output = tensors[layer.output]
                rounds = output.scale is not None or output.dtype.startswith(("float", "bfloat"))
                if not names or layer.op in MOVES or not rounds:
                    continue
                linear = layer.op in LINEAR and tensors[layer.operands[1]].is_constant
                found.setdefault(
                    names[-1], Layer(names[-1], numbers[names[-1]], layer.op, linear, tuple(names))
                )
        return sorted(found.values(), key=lambda layer: layer.number)


def _answers_of(shared: Shared[Trials], assignment: Assignment) -> dict[str, tuple[Any, float]]:
    return shared.value.answers(assignment)


def _key(question: str, assignment: Assignment) -> str:
    return f"{question} {json.dumps(sorted(assignment.items()))}"


def _bytes(graph: AnyGraph, assignment: Assignment) -> int:
    narrow = {name for name, precision in assignment.items() if precision == "4"}
    total = 0
    for network in device_networks(graph):
        tensors = network.tensors
        halves = {
            layer.operands[1]
            for layer in network.layers
            if layer.op in LINEAR and narrow.intersection(layer.nodes)
        }
        for index, tensor in enumerate(tensors):
            if tensor.is_constant:
                count = int(np.prod(tensor.shape, dtype=np.int64))
                size = 2 if tensor.dtype in {"float16", "bfloat16"} else np.dtype(tensor.dtype).itemsize
                total += (count + 1) // 2 if index in halves else count * size
    return total


def _activations(graph: AnyGraph) -> int:
    """Bytes of all tensors of a network but its constants."""
    total = 0
    for network in device_networks(graph):
        for tensor in network.tensors:
            size = 2 if tensor.dtype == "bfloat16" else np.dtype(tensor.dtype).itemsize
            total += 0 if tensor.is_constant else int(np.prod(tensor.shape, dtype=np.int64)) * size
    return total


def _host_nodes(graph: AnyGraph) -> frozenset[str]:
    if not isinstance(graph, Partitioned):
        return frozenset()
    return frozenset(name for part in graph.host for name in part.nodes)
