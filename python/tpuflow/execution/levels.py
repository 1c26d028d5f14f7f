"""One network at any level, behind one face: float (`.onnx`), integer graph (`.tpuq`), program (`.tpu`).

    level = open_level("model.tpuq")
    outputs = run_samples(level, load_samples("x.npz", level.ports))

A level takes and gives the user's arrays, under the names of the original model, whatever it computes with.
The two integer levels also hand out the stored codes, which is where they are compared bit for bit.
"""

from __future__ import annotations

import json
import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numpy.typing import NDArray

from tpuflow import _core
from tpuflow.errors import FileError
from tpuflow.execution.simulation import ProgramPort, program_ports
from tpuflow.frontend import FloatModel, FloatSession, is_model_file, load
from tpuflow.io.samples import joined_samples
from tpuflow.io.threads import threads
from tpuflow.partitioning import DeviceSegment, HostRunner, Partitioned, walk
from tpuflow.partitioning.storage import load_graph, load_program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from tpuflow.io.samples import Port, Samples
    from tpuflow.partitioning.storage import AnyGraph, AnyProgram

__all__ = [
    "FloatLevel",
    "GraphLevel",
    "IntegerLevel",
    "Level",
    "LevelOutputs",
    "PartitionedLevel",
    "ProgramLevel",
    "graph_level",
    "open_level",
    "program_level",
    "run_feeds",
    "run_samples",
    "shared_state",
]  # fmt: skip

Array = NDArray[Any]
LARGE_OUTPUTS = 1 << 24
"""Elements of outputs from which on one feed runs at a time."""

Kind = Literal["float", "graph", "program"]


class Level(Protocol):
    """A network ready to run."""

    @property
    def kind(self) -> Kind:
        """The kind of level: what computes it."""

    @property
    def ports(self) -> Sequence[Port]:
        """Its inputs, as the model has them."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of its outputs in the model."""

    @property
    def dynamic(self) -> frozenset[str]:
        """Those whose shape depends on values."""

    def run(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> dict[str, Array]:
        """Runs one feed: every input in the network's own shape.

        Returns:
            The outputs; with `all_tensors` also every other tensor of the model this level can show.
        """


class FloatLevel:
    """The original float model in onnxruntime."""

    kind: Kind = "float"

    def __init__(self, model: FloatModel) -> None:
        self.ports = model.inputs
        self.outputs = tuple(port.name for port in model.outputs)
        self.dynamic = frozenset(port.name for port in model.outputs if not port.static)
        self.model = model
        self._sessions: dict[bool, FloatSession] = {}

    def run(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> dict[str, Array]:
        """See `Level`."""
        if all_tensors not in self._sessions:
            wanted: Literal["all"] | None = "all" if all_tensors else None
            self._sessions[all_tensors] = FloatSession(self.model.origin, wanted)
        return self._sessions[all_tensors].run(arrays)


@dataclass(frozen=True)
class LevelOutputs:
    """Outputs of an integer level for one feed.

    Attributes:
        tensors: The model's tensors by name: the outputs, and others where they were asked for.
        codes: Every output as it is stored, by the model's name, with the other tensors where they were asked
            for; of a network in segments every tensor that leaves a segment, too.
    """

    tensors: dict[str, Array]
    codes: dict[str, Array]


class IntegerLevel(Level, Protocol):
    """A level that computes with codes."""

    def compute(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> LevelOutputs:
        """As `run`, with the stored codes beside the tensors."""


class GraphLevel:
    """The integer graph in the interpreter."""

    kind: Kind = "graph"
    dynamic: frozenset[str] = frozenset()

    def __init__(self, graph: _core.Graph) -> None:
        tensors = graph.tensors
        self.graph = graph
        self.name = graph.name
        self.ports = tuple(_port(tensors[index]) for index in graph.inputs)
        self.input_names = [tensors[index].name for index in graph.inputs]
        self.states = tuple((tensors[past].name, tensors[new].name) for past, new in graph.states)
        # Tensors that stand for one of the model's; an output always does, by its own name if it has no
        # other. Of several that hold one of the model's, as on another grid for a reader, it is the first.
        of_model = [tensor for tensor in tensors if not tensor.is_constant and tensor.source_json is not None]
        ports = {tensor.name: _port(tensor) for tensor in (*(tensors[i] for i in graph.outputs), *of_model)}
        first = {port.name: name for name, port in reversed(ports.items())}
        self.shown = {name: port for name, port in ports.items() if first[port.name] == name}
        self._outputs = [tensors[index].name for index in graph.outputs]
        self.results = tuple(self.shown[name] for name in self._outputs)
        self.outputs = tuple(port.name for port in self.results)

    def run(
        self, arrays: Mapping[str, Array], *, all_tensors: bool = False, names: Collection[str] | None = None
    ) -> dict[str, Array]:
        """See `Level`; of all tensors only those of some names are kept, where these are given."""
        return self.decode(self.codes(arrays, all_tensors=all_tensors, names=names))

    def compute(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> LevelOutputs:
        """See `IntegerLevel`."""
        codes = self.codes(arrays, all_tensors=all_tensors)
        return LevelOutputs(self.decode(codes), self.shown_codes(codes))

    def codes(
        self, arrays: Mapping[str, Array], *, all_tensors: bool = False, names: Collection[str] | None = None
    ) -> dict[str, Array]:
        """Codes by the graph's names; see `run`."""
        inputs = self.input_codes(arrays)
        if all_tensors and names is not None:
            return self.graph.run(inputs, tensors=self.stored_names(names))
        return self.graph.run(inputs, all_tensors=all_tensors)

    def input_codes(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Codes of the inputs, by the graph's names."""
        ports = zip(self.input_names, self.ports, strict=True)
        return {name: port.encode(arrays[port.name]) for name, port in ports}

    def step(self, arrays: Mapping[str, Array], state: _core.GraphState, position: int) -> dict[str, Array]:
        """Runs behind the first rows of a state, which stays in the interpreter: outputs but the new rows.

        Args:
            arrays: Every input that is no state.
            state: Rows of this graph's states; the new ones are written behind the position.
            position: Rows that come before.

        Raises:
            SampleError: A position beyond the context or behind the rows there are, or another graph's state.
        """
        pasts = {past for past, _ in self.states}
        ports = [
            (name, port) for name, port in zip(self.input_names, self.ports, strict=True) if name not in pasts
        ]
        codes = {name: port.encode(arrays[port.name]) for name, port in ports}
        return self.decode(self.graph.step(codes, state, position))

    def stored_names(self, names: Collection[str]) -> list[str]:
        """The graph's names of those tensors of the model that it can show."""
        return [name for name, port in self.shown.items() if port.name in names]

    def run_apart(self, exact: Mapping[str, Array], names: Collection[str] | None = None) -> dict[str, Array]:
        """Results of layers for given operands, by the model's names: their own errors alone.

        Args:
            exact: Tensors of the model, inputs included; what is not given is what another layer made.
            names: The model's names of the results, all by default.
        """
        given = {
            name: port.encode(exact[port.name])
            for name, port in self.shown.items()
            if port.name in exact and exact[port.name].shape == port.shape
        }
        return self.decode(self.graph.run_apart(given, None if names is None else self.stored_names(names)))

    def decode(self, codes: Mapping[str, Array]) -> dict[str, Array]:
        """The model's tensors that stored ones stand for; others are left out."""
        return {
            self.shown[name].name: self.shown[name].decode(array)
            for name, array in codes.items()
            if name in self.shown
        }

    def shown_codes(self, codes: Mapping[str, Array]) -> dict[str, Array]:
        """As `decode`, but the codes themselves."""
        return {self.shown[name].name: array for name, array in codes.items() if name in self.shown}


def shared_state(levels: Sequence[GraphLevel]) -> _core.GraphState:
    """Rows for the states of graphs of one network, as many as the longest past: none is written yet.

    Raises:
        SampleError: Graphs without states, or with different ones.
    """
    return _core.GraphState([level.graph for level in levels])


class ProgramLevel:
    """The program on the simulated machine; it shows its outputs only."""

    kind: Kind = "program"
    dynamic: frozenset[str] = frozenset()

    def __init__(self, program: _core.Program) -> None:
        self.program = program
        self.name = program.name
        self.ports, self._results = program_ports(program)
        self.outputs = tuple(port.name for port in self._results)

    def run(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> dict[str, Array]:
        """See `Level`; a program has no tensors but its outputs once it has ended."""
        return self.compute(arrays, all_tensors=all_tensors).tensors

    def compute(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> LevelOutputs:
        """See `IntegerLevel`.

        Raises:
            FileError: More than the outputs was asked for.
        """
        if all_tensors:
            raise FileError(
                f'program "{self.program.name}": only outputs outlive a program: `tpuflow compare PROGRAM '
                "--dump` writes what its instructions leave, `tpuflow run` of its graph (.tpuq) the same"
            )
        run = _core.simulate(self.program, [port.encode(arrays[port.name]) for port in self.ports])
        codes = {port.name: array for port, array in zip(self._results, run.outputs, strict=True)}
        return LevelOutputs({port.name: port.decode(codes[port.name]) for port in self._results}, codes)

    def cycles(self) -> int:
        """Cycles of one inference, which do not depend on the values."""
        return _core.simulate(self.program, [], values=False).cycles


class PartitionedLevel:
    """A network in segments: device segments at one level, host segments in onnxruntime."""

    def __init__(self, network: Partitioned[GraphLevel | ProgramLevel]) -> None:
        self.network = network
        self.name = network.name
        self.kind: Kind = network.device[0].network.kind
        self.ports = network.inputs
        self.outputs = tuple(port.name for port in network.outputs)
        self.dynamic = frozenset(port.name for port in network.outputs if not port.static)
        self._host = HostRunner()

    def run(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> dict[str, Array]:
        """See `Level`."""
        return self.compute(arrays, all_tensors=all_tensors).tensors

    def compute(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> LevelOutputs:
        """See `IntegerLevel`."""
        codes: dict[str, Array] = {}

        def device(
            part: DeviceSegment[GraphLevel | ProgramLevel], taken: dict[str, Array]
        ) -> dict[str, Array]:
            found = part.network.compute(taken, all_tensors=all_tensors)
            # As of tensors: codes of one that this segment reads are those of the segment that made it.
            codes.update(found.codes | codes)
            return found.tensors

        met = walk(self.network, arrays, self._host, device, every=all_tensors, given=codes)
        return LevelOutputs(met, codes)

    @property
    def host_seconds(self) -> dict[str, float]:
        """Seconds of each host segment when it last ran, by name."""
        return dict(self._host.seconds)


def _port(tensor: _core.Tensor) -> ProgramPort:
    """A graph's tensor as a port: the same five facts in another form."""
    return ProgramPort.parse(
        {
            "name": tensor.name,
            "shape": tensor.shape,
            "dtype": tensor.dtype,
            "quant": None
            if tensor.scale is None
            else {"scale": tensor.scale, "zero_point": tensor.zero_point},
            "source": None if tensor.source_json is None else json.loads(tensor.source_json),
        }
    )


def open_level(
    path: str | Path, input_shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
) -> Level:
    """Opens a file by its suffix.

    Args:
        path: The file.
        input_shapes: Shapes of a model's inputs that it leaves open.
        batch: Size of a model's batch.

    Raises:
        FileError: The suffix is none of `.onnx`, `.tpuq` and `.tpu`, or the file cannot be read; or shapes
            are given for what has its own.
        ModelError: The ONNX model cannot be used.
    """
    path = Path(path)
    if (input_shapes or batch is not None) and path.suffix in {".tpuq", ".tpu"}:
        raise FileError(f"{path}: has the shapes it was made for: --input-shape and --batch are for models")
    if path.suffix == ".tpuq":
        return graph_level(load_graph(path))
    if path.suffix == ".tpu":
        return program_level(load_program(path))
    if is_model_file(path):
        return FloatLevel(load(path, input_shapes=input_shapes, batch=batch, host=True))
    raise FileError(f'{path}: unknown kind of file "{path.suffix}": give .onnx, .tpuq or .tpu')


def graph_level(graph: AnyGraph) -> GraphLevel | PartitionedLevel:
    """A graph, whole or in segments, ready to run."""
    return PartitionedLevel(graph.map(GraphLevel)) if isinstance(graph, Partitioned) else GraphLevel(graph)


def program_level(program: AnyProgram) -> ProgramLevel | PartitionedLevel:
    """A program, whole or in segments, ready to run."""
    if isinstance(program, Partitioned):
        return PartitionedLevel(program.map(ProgramLevel))
    return ProgramLevel(program)


def run_samples(
    level: Level,
    samples: Samples,
    *,
    all_tensors: bool = False,
    names: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Array]:
    """Runs a level on all samples; with `names` only tensors of these are kept.

    Returns:
        Per tensor one array whose first axis is the sample, see `joined_samples`.
    """
    feeds = run_feeds(level, samples, all_tensors=all_tensors, names=names, progress=progress)
    return joined_samples(feeds, samples, level.dynamic)


def run_feeds(
    level: Level,
    samples: Samples,
    *,
    all_tensors: bool = False,
    names: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[Array]]:
    """As `run_samples`, per tensor one array for every feed, as the level gives it."""
    feeds: dict[str, list[Array]] = {}
    done = 0
    for count, tensors in _results(level, samples, all_tensors=all_tensors, names=names):
        for name, array in tensors.items():
            if names is None or name in names:
                feeds.setdefault(name, []).append(array)
        done += count
        if progress is not None:
            progress(done, samples.count)
    return feeds


def _results(
    level: Level, samples: Samples, *, all_tensors: bool, names: Collection[str] | None
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Every feed's number of samples and tensors, in order.

    Integer levels run one feed per processor at a time, while the next ones are read, if outputs are not too
    large for that; their results do not depend on it. onnxruntime spreads a single feed over all processors
    by itself.
    """
    if not isinstance(level, GraphLevel | ProgramLevel):
        for batch in samples.batches():
            yield batch.count, level.run(batch.arrays, all_tensors=all_tensors)
        return
    size = sum(math.prod(port.shape) for port in (level.results if isinstance(level, GraphLevel) else ()))
    workers = threads() if size < LARGE_OUTPUTS else 1
    run = partial(level.run, names=names) if isinstance(level, GraphLevel) else level.run
    with ThreadPoolExecutor(workers) as pool:
        under_way: deque[tuple[int, Future[dict[str, Array]]]] = deque()
        for batch in samples.batches():
            under_way.append((batch.count, pool.submit(run, batch.arrays, all_tensors=all_tensors)))
            if len(under_way) > workers:
                count, future = under_way.popleft()
                yield count, future.result()
        for count, future in under_way:
            yield count, future.result()
