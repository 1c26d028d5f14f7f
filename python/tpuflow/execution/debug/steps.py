"""Every instruction of a program against the integers of its graph.

Instructions are executed one after another; what each writes is compared with the tensor of its layer, which
the interpreter computes, bit for bit. The first that differs names the layer: everything before it was right,
so the fault lies in this instruction or in what was loaded for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import ProgramError
from tpuflow.execution.debug.replay import Stepper, in_parts
from tpuflow.execution.debug.written import written
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import program_ports

__all__ = ["LayerCheck", "StepReport", "check_steps"]

Array = NDArray[Any]


@dataclass
class LayerCheck:
    """What was seen of a layer.

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
        layers: In the order of the program.
        executed: Instructions executed.
        stopped: Why the run ended early; empty if it did not.
        outputs_equal: Whether the outputs are the graph's; None if the run ended early.
        first_wrong: The first layer that is wrong.
        codes: Every tensor that instructions computed whole, as they left it, by its name in the graph.
    """

    layers: list[LayerCheck]
    executed: int
    stopped: str = ""
    outputs_equal: bool | None = None
    first_wrong: LayerCheck | None = None
    codes: dict[str, Array] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether everything is the graph's."""
        return self.first_wrong is None and not self.stopped and self.outputs_equal is True

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "passed": self.passed,
            "executed": self.executed,
            "stopped": self.stopped,
            "outputs_equal": self.outputs_equal,
            "first_wrong_layer": None if self.first_wrong is None else self.first_wrong.name,
            "layers": [dict(layer.__dict__) for layer in self.layers],
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
    inputs, outputs = program_ports(program)
    if content.get("tilings"):
        graph = GraphLevel(in_parts(graph.graph, program))
    tensors = graph.graph.tensors
    layers = graph.graph.layers
    if [layer.name for layer in layers] != [layer["name"] for layer in content["layers"]]:
        raise ProgramError(f'program "{program.name}": the graph has other layers: give its own')
    codes = [port.encode(feed[port.name]) for port in inputs]
    named = {tensors[index].name: code for index, code in zip(graph.graph.inputs, codes, strict=True)}
    truth = graph.graph.run(named, all_tensors=True)
    checks = [LayerCheck(layer.name, layer.op, truth[tensors[layer.output].name].size) for layer in layers]
    references = [_bytes(truth[tensors[layer.output].name]) for layer in layers]
    kept = [_WrittenBytes.like(reference) for reference in references]
    channels = [truth[tensors[layer.output].name].shape[-1:] or (1,) for layer in layers]
    word = content["machine"]["cache"]["word_bytes"]
    stepper, first_wrong, stopped, executed = Stepper(program, codes), None, "", 0
    for number, entry in enumerate(content["instructions"]):
        try:
            stepper.execute(number)
        except ProgramError as error:
            stopped = str(error)
            break
        executed = number + 1
        check, reference = checks[entry["layer"]], references[entry["layer"]]
        place = written(entry, content["descriptors"], channels[entry["layer"]][0], word)
        if place is not None:
            _compare(check, reference, place, stepper, number, kept[entry["layer"]])
        if check.wrong and first_wrong is None:
            first_wrong = check
            if fail_fast:
                stopped = f"instruction {number} is the first wrong one"
                break
        if progress is not None and number % 64 == 0:
            progress(number, len(content["instructions"]))
    equal = None if stopped else _outputs_equal(content["outputs"], outputs, graph, truth, stepper, word)
    codes_left = {}
    for layer, found in zip(layers, kept, strict=True):
        array = truth[tensors[layer.output].name]
        if found.known.all():
            codes_left[tensors[layer.output].name] = found.rows.view(array.dtype).reshape(array.shape)
    return StepReport(checks, executed, stopped, equal, first_wrong, codes_left)


@dataclass(frozen=True)
class _WrittenBytes:
    """What was written of a tensor: bytes of every element, and whether it was written."""

    rows: NDArray[np.uint8]
    known: NDArray[np.bool_]

    @staticmethod
    def like(reference: NDArray[np.uint8]) -> _WrittenBytes:
        return _WrittenBytes(np.zeros_like(reference), np.zeros(len(reference), np.bool_))


def _compare(
    check: LayerCheck,
    reference: NDArray[np.uint8],
    place: tuple[NDArray[np.int64], NDArray[np.int64]],
    stepper: Stepper,
    number: int,
    kept: _WrittenBytes,
) -> None:
    elements, addresses = place
    inside = elements < len(reference)
    elements, addresses = elements[inside], addresses[inside]
    if not elements.size:
        return
    low, size = int(addresses.min()), reference.shape[1]
    memory, _ = stepper.read("cache", low, int(addresses.max()) - low + size)
    found = memory[(addresses - low)[:, None] + np.arange(size)]
    kept.rows[elements], kept.known[elements] = found, True
    differs = (found != reference[elements]).any(axis=1)
    check.compared += len(elements)
    check.wrong += int(differs.sum())
    if differs.any() and check.first is None:
        at = int(np.argmax(differs))
        check.first = number
        check.detail = (
            f"element {int(elements[at])}, cache byte {int(addresses[at])}: "
            f"{found[at].tobytes().hex()}, not {reference[elements[at]].tobytes().hex()}"
        )


def _outputs_equal(
    ports: Sequence[Mapping[str, Any]],
    outputs: Sequence[Any],
    graph: GraphLevel,
    truth: Mapping[str, Array],
    stepper: Stepper,
    word: int,
) -> bool:
    """Whether the outputs lie in DDR as the graph has them."""
    for port, index, _ in zip(ports, graph.graph.outputs, outputs, strict=True):
        view, wanted = port["view"], truth[graph.graph.tensors[index].name]
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
