"""One network at any level, behind one face: float (`.onnx`), integer graph (`.tpuq`), program (`.tpu`).

    level = open_level("model.tpuq")
    outputs = run_samples(level, load_samples("x.npz", level.ports))

A level takes and gives the user's arrays, under the names of the original model, whatever it computes with.
The two integer levels also hand out the stored codes, which is where they are compared bit for bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tpuflow import _core
from tpuflow.errors import FileError
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.simulate import ProgramPort, program_ports
from tpuflow.store import load_graph, load_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuflow.samples import Port, Samples

__all__ = ["FloatLevel", "GraphLevel", "Level", "ProgramLevel", "open_level", "run_samples"]

Array = NDArray[Any]
Kind = Literal["float", "graph", "program"]


class Level(Protocol):
    """A network ready to run."""

    @property
    def kind(self) -> Kind:
        """What computes it."""

    @property
    def ports(self) -> Sequence[Port]:
        """Its inputs, as the model has them."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of its outputs in the model."""

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
        self._model = model
        self._sessions: dict[bool, FloatSession] = {}

    def run(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> dict[str, Array]:
        """See `Level`."""
        if all_tensors not in self._sessions:
            wanted: Literal["all"] | None = "all" if all_tensors else None
            self._sessions[all_tensors] = FloatSession(self._model.original, wanted)
        return self._sessions[all_tensors].run(arrays)


class GraphLevel:
    """The integer graph in the interpreter."""

    kind: Kind = "graph"

    def __init__(self, graph: _core.Graph) -> None:
        tensors = graph.tensors
        self.graph = graph
        self.ports = tuple(_port(tensors[index]) for index in graph.inputs)
        # Tensors that stand for one of the model's; an output always does, by its own name if it has no
        # other.
        shown = [tensor for tensor in tensors if not tensor.is_constant and tensor.source_json is not None]
        shown += [tensors[index] for index in graph.outputs]
        self._shown = {tensor.name: _port(tensor) for tensor in shown}
        self._outputs = [tensors[index].name for index in graph.outputs]
        self.outputs = tuple(self._shown[name].name for name in self._outputs)

    def run(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> dict[str, Array]:
        """See `Level`."""
        return self.decode(self.codes(arrays, all_tensors=all_tensors))

    def codes(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> dict[str, Array]:
        """As `run`, but stored codes by the names of the graph's tensors."""
        tensors = self.graph.tensors
        inputs = {
            tensors[index].name: port.encode(arrays[port.name])
            for index, port in zip(self.graph.inputs, self.ports, strict=True)
        }
        return self.graph.run(inputs, all_tensors=all_tensors)

    def decode(self, codes: Mapping[str, Array]) -> dict[str, Array]:
        """Stored codes as the model's tensors; those that stand for none are left out."""
        return {
            self._shown[name].name: self._shown[name].decode(array)
            for name, array in codes.items()
            if name in self._shown
        }

    def output_codes(self, codes: Mapping[str, Array]) -> dict[str, Array]:
        """The stored codes of the outputs alone, by the model's names."""
        return {self._shown[name].name: codes[name] for name in self._outputs}


class ProgramLevel:
    """The program on the simulated machine; it shows its outputs only."""

    kind: Kind = "program"

    def __init__(self, program: _core.Program) -> None:
        self.program = program
        self.ports, self._results = program_ports(program)
        self.outputs = tuple(port.name for port in self._results)

    def run(self, arrays: Mapping[str, Array], *, all_tensors: bool = False) -> dict[str, Array]:
        """See `Level`; a program has no tensors but its outputs once it has ended."""
        if all_tensors:
            raise FileError(
                f'program "{self.program.name}": only outputs outlive a program; run its graph for all '
                "tensors (.tpuq), which equals it in every bit"
            )
        codes = self.output_codes(arrays)
        return {port.name: port.decode(codes[port.name]) for port in self._results}

    def cycles(self) -> int:
        """Cycles of one inference, which do not depend on the values."""
        return _core.simulate(self.program, [], values=False).cycles

    def output_codes(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The stored codes of the outputs, by the model's names."""
        codes = [port.encode(arrays[port.name]) for port in self.ports]
        run = _core.simulate(self.program, codes)
        return {port.name: array for port, array in zip(self._results, run.outputs, strict=True)}


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


def open_level(path: str | Path) -> Level:
    """Opens a file by its suffix.

    Raises:
        FileError: The suffix is none of `.onnx`, `.tpuq` and `.tpu`, or the file cannot be read.
        ModelError: The ONNX model cannot be used.
    """
    path = Path(path)
    if path.suffix == ".tpuq":
        return GraphLevel(load_graph(path))
    if path.suffix == ".tpu":
        return ProgramLevel(load_program(path))
    if path.suffix == ".onnx":
        return FloatLevel(load(path))
    raise FileError(f'{path}: unknown kind of file "{path.suffix}": give .onnx, .tpuq or .tpu')


def run_samples(
    level: Level,
    samples: Samples,
    *,
    all_tensors: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Array]:
    """Runs a level on all samples.

    Returns:
        Per tensor one array whose first axis is the sample: in place of the batch axis where the tensor has
        one, before its own axes where it has none. What a partial batch was filled up with is cut off.
    """
    rows: dict[str, list[Array]] = {}
    done = 0
    for batch in samples.batches():
        for name, array in level.run(batch.arrays, all_tensors=all_tensors).items():
            rows.setdefault(name, []).append(_by_sample(array, samples)[: batch.count])
        done += batch.count
        if progress is not None:
            progress(done, samples.count)
    return {name: np.concatenate(arrays) for name, arrays in rows.items()}


def _by_sample(array: Array, samples: Samples) -> Array:
    """A tensor of one feed with its samples along the first axis.

    The batch axis leads where the network's inputs have one of the same length; a tensor without it belongs
    to the whole feed and is given to each of its samples.
    """
    batched = any(port.shape and port.shape[0] == samples.batch for port in samples.ports)
    if batched and array.ndim > 0 and array.shape[0] == samples.batch:
        return array
    return np.broadcast_to(array, (samples.batch, *array.shape))
