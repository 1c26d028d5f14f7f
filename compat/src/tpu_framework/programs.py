"""From a quantised model to a program, its file, and a run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tpu_framework.hardware import ModelParameters
from tpu_framework.missing import NotAvailableError
from tpu_framework.models import QuantizedModel
from tpuflow.compiler.parameters import CompileParameters
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.schedule import Schedule
from tpuflow.compiler.tiling import Segment, SlicingScheme, TensorAxis, Tiling
from tpuflow.errors import MachineError
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import simulate
from tpuflow.lowering import Graph
from tpuflow.partitioning.storage import AnyProgram
from tpuflow.runtime import TensorDescription, descriptions

__all__ = [
    "Executable", "ExecutionResult", "Network", "Segment", "TensorAxis", "TpuProgram", "compile_",
    "model_execute",
]  # fmt: skip

Array = NDArray[Any]


class Network:
    """A quantised model as the compiler takes it."""

    def __init__(self, graph: Graph, source: QuantizedModel | None = None) -> None:
        self.graph = graph
        self._source = source

    @staticmethod
    def from_quantized_model(quantized_model: QuantizedModel) -> tuple[Network, dict[str, str]]:
        """The network, and what the inputs and outputs of the model are called in it."""
        graph = quantized_model.graph
        tensors, level = graph.tensors, GraphLevel(graph)
        names = [tensors[index].name for index in (*graph.inputs, *graph.outputs)]
        shown = [port.name for port in (*level.ports, *level.results)]
        return Network(graph, quantized_model), dict(zip(shown, names, strict=True))

    def set_batch(self, batch: int) -> None:
        """Makes it a network for another batch.

        Raises:
            NotAvailableError: It was read from a file, which has one batch.
        """
        if self._source is None:
            raise NotAvailableError("set_batch: the network was not made from a quantised model")
        self.graph = self._source.with_batch(batch)


@dataclass(frozen=True)
class Executable:
    """A compiled network."""

    program: AnyProgram


def compile_(
    hardware_parameters: ModelParameters,
    network: Network,
    parameters: CompileParameters,
    slicing_scheme: SlicingScheme | None = None,
) -> tuple[Executable, dict[str, TensorDescription]]:
    """Compiles a network.

    Args:
        hardware_parameters: The machine.
        network: What to compile.
        parameters: `O1`, `O5`, or fields of your own.
        slicing_scheme: By name of a layer, the slices it is computed in; None: as the scheduler finds best.

    Returns:
        The program, and its inputs and outputs by name.

    Raises:
        ProgramError: A layer cannot be sliced so.
        MachineError: The machine makes no sense, or a layer does not fit it.
        TypeError: An argument is of another kind.
    """
    for name, given, expected, example in (
        ("hardware_parameters", hardware_parameters, ModelParameters, 'get_hw_params("128x128_asic")'),
        ("parameters", parameters, CompileParameters, "O1 or O5"),
    ):
        if not isinstance(given, expected):
            raise TypeError(f"compile_: {name} is {given!r}: give {expected.__name__}, such as {example}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{hardware_parameters.name}.toml"
        path.write_text(hardware_parameters.to_toml(), encoding="utf-8")
        try:
            program = compile_graph(
                network.graph,
                path,
                parameters.level,
                schedule=Schedule(parameters, Tiling(slices=slicing_scheme or {})),
            )
        except MachineError as error:
            raise MachineError(str(error).replace(str(path), hardware_parameters.name)) from None
    inputs, outputs = descriptions(program.metadata())
    return Executable(program), {tensor.name: tensor for tensor in (*inputs, *outputs)}


@dataclass(frozen=True)
class TpuProgram:
    """A program on its way to a file."""

    executable: Executable
    tensor_descriptions: Mapping[str, TensorDescription]

    @staticmethod
    def from_executable(
        executable: Executable, tensor_descriptions: Mapping[str, TensorDescription]
    ) -> TpuProgram:
        """The program of an executable; what its tensors are stands in it."""
        return TpuProgram(executable, dict(tensor_descriptions))

    def to_file(self, path: str | Path) -> None:
        """Writes the one file a runtime needs.

        Raises:
            FileError: It cannot be written.
        """
        self.executable.program.save(Path(path))


@dataclass(frozen=True)
class ExecutionResult:
    """What a run gave.

    Attributes:
        output_data: Outputs by name.
        execution_time_us: Cycles at the machine's clock, in microseconds.
    """

    output_data: dict[str, Array]
    execution_time_us: float


def model_execute(
    executable: Executable,
    tensor_descriptions: Mapping[str, TensorDescription],
    input_data: Mapping[str, Array],
) -> ExecutionResult:
    """Runs a program cycle by cycle on real numbers: packs, simulates, unpacks.

    Raises:
        SampleError: The data do not fit; the message names the input.
    """
    del tensor_descriptions  # the program carries them
    run = simulate(executable.program, input_data)
    return ExecutionResult(run.outputs, run.time_us)
