"""Which tensor is computed from which: what a comparison needs to find the first failing tensor."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpuflow.errors import FileError
from tpuflow.frontend import is_model_file, load
from tpuflow.partitioning import device_networks
from tpuflow.partitioning.storage import load_graph

__all__ = ["Network", "Step", "network_of"]


@dataclass(frozen=True)
class Step:
    """The operator that computes a tensor.

    Attributes:
        name: Of the layer or node.
        op: Its operator.
        dtype: Element type of what it gives; empty where unknown.
        inputs: Tensors it reads, without constants.
        output: The tensor.
    """

    name: str
    op: str
    dtype: str
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Network:
    """Steps in an order in which they can be computed, by the tensor they give."""

    steps: Mapping[str, Step]

    def first_failing(self, failing: Collection[str], compared: Collection[str]) -> list[str]:
        """Failing tensors all of whose sources that were compared pass, in order of computation.

        A tensor nobody compared hands on what it is computed from.
        """
        clean: dict[str, bool] = {}
        found = []
        for step in self.steps.values():
            above = all(clean.get(name, name not in failing) for name in step.inputs)
            if step.output in compared:
                fails = step.output in failing
                if fails and above:
                    found.append(step.output)
                clean[step.output] = not fails
            else:
                clean[step.output] = above
        return found


def network_of(path: Path) -> Network:
    """The network in a graph (`.tpuq`) or a model, by the model's names of tensors.

    Raises:
        FileError: The file is neither, or cannot be read.
        ModelError: The model cannot be used.
    """
    if path.suffix == ".tpuq":
        steps = [step for graph in device_networks(load_graph(path)) for step in _steps(graph.to_json())]
    elif is_model_file(path):
        steps = list(_nodes(path))
    else:
        raise FileError(f"{path}: neither a graph (.tpuq) nor a model (.onnx)")
    return Network({step.output: step for step in steps})


def _steps(text: str) -> Iterator[Step]:
    """Layers of a graph's JSON form; a tensor is called as the model's it stands for."""
    content = json.loads(text)
    names, constant = [], set()
    given = {layer["output"] for layer in content["layers"]} | set(content["inputs"])
    for number, tensor in enumerate(content["tensors"]):
        source = tensor.get("source")
        names.append(source["name"] if source else tensor["name"])
        if number not in given:
            constant.add(number)
    for layer in content["layers"]:
        op = dict(layer["op"])
        kind = str(op.pop("op"))
        read = [number for number in _operands(op) if number not in constant]
        dtype = content["tensors"][layer["output"]]["dtype"]
        yield Step(
            layer["name"], kind, dtype, tuple(names[number] for number in read), names[layer["output"]]
        )


OPERANDS = ("input", "a", "b", "mask", "condition", "inputs", "weights", "table", "indices", "gamma", "beta")


def _operands(op: Mapping[str, object]) -> list[int]:
    found: list[int] = []
    for key in OPERANDS:
        value = op.get(key)
        if isinstance(value, int):
            found.append(value)
        elif key == "inputs" and isinstance(value, Sequence):
            found += [number for number in value if isinstance(number, int)]
    return found


def _nodes(path: Path) -> Iterator[Step]:
    graph = load(path, host=True).model.graph
    constants = set(graph.initializers)
    for node in graph:
        inputs = tuple(
            value.name
            for value in node.inputs
            if value is not None and value.name and value.name not in constants
        )
        for output in node.outputs:
            if output.name:
                yield Step(node.name or output.name, node.op_type, "", inputs, output.name)
