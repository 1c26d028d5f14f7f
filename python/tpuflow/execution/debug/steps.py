"""Every instruction of a program against the integers of its graph.

Instructions are executed one after another; what each writes is compared with the tensor of its layer, which
the interpreter computes, bit for bit. The first that differs names the layer: everything before it was right,
so the fault lies in this instruction or in what was loaded for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import ProgramError
from tpuflow.execution.debug.replay import Stepper, in_parts
from tpuflow.execution.debug.tensors import TensorCheck, check_tensors
from tpuflow.execution.debug.written import Written, written_elements
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import program_ports

if TYPE_CHECKING:
    from tpuflow import _core

__all__ = ["LayerCheck", "StepReport", "check_steps"]

Array = NDArray[Any]


@dataclass
class LayerCheck:
    """The comparison of a layer of the program.

    Attributes:
        name: Its name.
        op: Its operator.
        elements: Of its tensor.
        compared: Elements compared, each as often as it is written.
        wrong: Of these, those that differ.
        first: First instruction that wrote a wrong element.
        detail: What it wrote, and what it should have.
    """

    name: str
    op: str
    elements: int
    compared: int = 0
    wrong: int = 0
    first: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class StepReport:
    """All layers, and where the run ended.

    Attributes:
        layers: In the order of the program; of a layer in parts every part.
        executed: Instructions executed.
        stopped: Why the run ended early; empty if it did not.
        outputs_equal: Whether the outputs are the graph's; None if the run ended early.
        first_wrong: The first layer that is wrong.
        tensors: Every tensor that a layer of the graph makes, parts joined.
    """

    layers: list[LayerCheck]
    executed: int
    stopped: str = ""
    outputs_equal: bool | None = None
    first_wrong: LayerCheck | None = None
    tensors: list[TensorCheck] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether everything is the graph's."""
        return self.first_wrong is None and not self.stopped and self.outputs_equal is True

    @property
    def codes(self) -> dict[str, Array]:
        """Every tensor whose elements are all known, as instructions left it, by its name in the graph."""
        return {each.name: each.codes for each in self.tensors if each.codes is not None}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "passed": self.passed,
            "executed": self.executed,
            "stopped": self.stopped,
            "outputs_equal": self.outputs_equal,
            "first_wrong_layer": None if self.first_wrong is None else self.first_wrong.name,
            "layers": [dict(layer.__dict__) for layer in self.layers],
            "tensors": [each.to_json() for each in self.tensors],
        }


def check_steps(
    program: Any,
    graph: GraphLevel,
    feed: Mapping[str, Array],
    *,
    fail_fast: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> StepReport:
    """Runs a program instruction by instruction.

    Args:
        program: The program.
        graph: The graph it should compute.
        feed: Every input in the model's shape.
        fail_fast: Stop at the first wrong instruction.
        progress: Told now and then how many instructions are done.

    Raises:
        ProgramError: The graph has other layers than the program.
        SampleError: The inputs do not fit.
    """
    content = json.loads(program.to_json())
    inputs, _ = program_ports(program)
    parts, boxes = in_parts(graph.graph, program)
    if [layer.name for layer in parts.layers] != [layer["name"] for layer in content["layers"]]:
        raise ProgramError(f'program "{program.name}": the graph has other layers: give its own')
    tensors = parts.tensors
    codes = [port.encode(feed[port.name]) for port in inputs]
    named = {tensors[index].name: code for index, code in zip(parts.inputs, codes, strict=True)}
    truth = parts.run(named, all_tensors=True)
    stepper, word = Stepper(program, codes), content["machine"]["cache"]["word_bytes"]
    seen = [_SeenLayer(layer, truth[tensors[layer.output].name]) for layer in parts.layers]
    ends = {entry["layer"]: number for number, entry in enumerate(content["instructions"])}
    # Stores change nothing in the cache, and may come after others have read the tensor.
    ends |= {entry["layer"]: n for n, entry in enumerate(content["instructions"]) if not _is_store(entry)}
    first_wrong, stopped, executed = None, "", 0
    for number, entry in enumerate(content["instructions"]):
        layer = seen[entry["layer"]]
        try:
            stepper.execute(number)
        except ProgramError as error:
            stopped = str(error)
            break
        executed = number + 1
        found = written_elements(entry, content["descriptors"], layer.shape, layer.check.op, word)
        if found is not None:
            layer.take(found, stepper, number)
        if ends[entry["layer"]] == number:
            layer.end()
        if layer.check.wrong and first_wrong is None:
            first_wrong = layer.check
            if fail_fast:
                stopped = f"instruction {layer.check.first} is the first wrong one"
                break
        if progress is not None and number % 64 == 0:
            progress(number, len(content["instructions"]))
    equal = None if stopped else _outputs_equal(content["outputs"], parts, truth, stepper, word)
    left = {
        tensors[layer.output].name: found.final_tensor()
        for layer, found in zip(parts.layers, seen, strict=True)
    }
    whole = check_tensors(graph.graph, parts, boxes, named, left)
    return StepReport([each.check for each in seen], executed, stopped, equal, first_wrong, whole)


def _is_store(instruction: Mapping[str, Any]) -> bool:
    transfer = instruction["work"].get("Transfer")
    return transfer is not None and transfer["direction"] == "store"


class _SeenLayer:
    """The written elements of a layer's tensor, beside those of the graph.

    An element that no later instruction may replace is compared when it is written; others are when the last
    instruction of the layer has been executed.

    Attributes:
        check: The figures.
        shape: Of the tensor.
    """

    def __init__(self, layer: Any, reference: Array) -> None:
        self.check = LayerCheck(layer.name, layer.op, reference.size)
        self.shape = reference.shape
        self._dtype = reference.dtype
        self._reference = _bytes(reference)
        self._rows = np.zeros_like(self._reference)
        self._known = np.zeros(reference.size, np.bool_)
        # By element: the instruction and the address of a write that is still to be compared.
        self._waiting: NDArray[np.int64] | None = None

    def take(self, place: Written, stepper: Stepper, number: int) -> None:
        """Reads what an instruction has written."""
        inside = place.elements < len(self._reference)
        elements, addresses = place.elements[inside], place.addresses[inside]
        if not elements.size:
            return
        low, size = int(addresses.min()), self._reference.shape[1]
        memory, _ = stepper.read("cache", low, int(addresses.max()) - low + size)
        self._rows[elements] = memory[(addresses - low)[:, None] + np.arange(size)]
        self._known[elements] = True
        if place.final:
            self._compare(elements, addresses, np.full(len(elements), number))
            return
        if self._waiting is None:
            self._waiting = np.full((2, len(self._reference)), -1)
        self._waiting[0][elements], self._waiting[1][elements] = number, addresses

    def end(self) -> None:
        """Compares what no later instruction has replaced."""
        if self._waiting is not None:
            elements = np.flatnonzero(self._waiting[0] >= 0)
            self._compare(elements, self._waiting[1][elements], self._waiting[0][elements])

    def final_tensor(self) -> tuple[Array, NDArray[np.bool_]]:
        """The tensor as it was left, and which elements of it were written."""
        return self._rows.view(self._dtype).reshape(self.shape), self._known.reshape(self.shape)

    def _compare(
        self, elements: NDArray[np.int64], addresses: NDArray[np.int64], by: NDArray[np.int64]
    ) -> None:
        found, reference, check = self._rows[elements], self._reference[elements], self.check
        differs = np.flatnonzero((found != reference).any(axis=1))
        check.compared += len(elements)
        check.wrong += len(differs)
        if len(differs) and check.first is None:
            at = differs[np.argmin(by[differs])]
            check.first = int(by[at])
            check.detail = (
                f"element {int(elements[at])}, cache byte {int(addresses[at])}: "
                f"{found[at].tobytes().hex()}, not {reference[at].tobytes().hex()}"
            )


def _outputs_equal(
    ports: Sequence[Mapping[str, Any]],
    graph: _core.Graph,
    truth: Mapping[str, Array],
    stepper: Stepper,
    word: int,
) -> bool:
    """Whether the outputs lie in DDR as the graph has them."""
    for port, index in zip(ports, graph.outputs, strict=True):
        view, wanted = port["view"], truth[graph.tensors[index].name]
        rows, width, pixel = view["rows"], view["width"], view["pixel_bytes"]
        row_bytes = -(-width * pixel // word) * word
        space = f"ddr{view['space']['Ddr']}"
        memory, _ = stepper.read(space, view["address"], rows * row_bytes)
        grid = memory.reshape(rows, row_bytes)[:, : width * pixel].reshape(rows * width, pixel)
        payload = view["channels"] * wanted.dtype.itemsize
        if np.ascontiguousarray(grid[:, :payload]).tobytes() != wanted.tobytes():
            return False
    return True


def _bytes(array: Array) -> NDArray[np.uint8]:
    """Elements as rows of bytes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize)
