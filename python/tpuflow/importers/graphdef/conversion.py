"""The walk over a TensorFlow graph that writes an ONNX graph, and what operators write with.

A tensor is known by `node:number` in both. Operators of images are channels last here and channels first in
ONNX, so each is written between two transposes; the frontend cancels them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tpuflow.errors import Finding, ModelError, UnsupportedModelError
from tpuflow.importers.graphdef.messages import DTYPES, Message, array_of, shape_of

__all__ = ["CONVERSIONS", "Context", "ConversionError", "converts", "tensor_name"]

OPSET = 18
IR_VERSION = 10

Array = npt.NDArray[Any]
Convert = Callable[["Context", Message], "Sequence[str] | str"]
CONVERSIONS: dict[str, Convert] = {}
"""By TensorFlow operator: writes its ONNX nodes, gives the names of its results."""

VARIABLES = {"Variable", "VariableV2", "VarHandleOp", "ReadVariableOp", "RestoreV2"}
WITHOUT_RESULT = {"NoOp", "Assert"}


class ConversionError(Exception):
    """A node cannot be written as ONNX; becomes one line of the error that lists all of them."""


def converts(*operators: str) -> Callable[[Convert], Convert]:
    """Registers a conversion of these operators."""

    def register(function: Convert) -> Convert:
        CONVERSIONS.update(dict.fromkeys(operators, function))
        return function

    return register


def tensor_name(reference: str) -> str:
    """`node:number` of an input as a node lists it."""
    node, colon, number = reference.rpartition(":")
    return reference if colon and number.isdecimal() and node else f"{reference}:0"


class Context:
    """An ONNX graph under construction, and questions about the TensorFlow graph.

    Attributes:
        users: Nodes by the tensors they read.
        replaced: Nodes that other nodes have computed already: they pass their first input on.
    """

    def __init__(self, graph: Message, label: str) -> None:
        self._label = label
        self._defs: dict[str, Message] = {node.name: node for node in graph.node}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[str, Array] = {}
        self._types: dict[str, onnx.TypeProto] = {}
        self.users: dict[str, list[Message]] = {}
        self.replaced: set[str] = set()
        for node in graph.node:
            for name in self.inputs_of(node):
                self.users.setdefault(name, []).append(node)

    # The TensorFlow graph.

    @staticmethod
    def inputs_of(node: Message) -> list[str]:
        """The tensors a node reads, without those it only waits for."""
        return [tensor_name(name) for name in node.input if not name.startswith("^")]

    def producer(self, tensor: str) -> Message | None:
        """The node that makes a tensor."""
        return self._defs.get(tensor.rpartition(":")[0])

    def constant(self, tensor: str) -> Array | None:
        """The elements of a constant, also through nodes that pass it on; None for anything else."""
        node = self.producer(tensor)
        while node is not None and node.op in {"Identity", "StopGradient"} and node.input:
            tensor = tensor_name(node.input[0])
            node = self.producer(tensor)
        if node is None or node.op != "Const":
            return None
        return self.tensor(node)

    def require_constant(self, node: Message, index: int, what: str) -> Array:
        """A constant input.

        Raises:
            ConversionError: If it is computed.
        """
        array = self.constant(self.inputs_of(node)[index])
        if array is None:
            raise ConversionError(f"{what} must be constant")
        return array

    @staticmethod
    def attribute(node: Message, name: str) -> Any:
        """The message of an attribute of a node; None if it is left out."""
        return next((entry.value for entry in node.attr if entry.key == name), None)

    def tensor(self, node: Message) -> Array:
        """The elements of a Const node.

        Raises:
            ModelError: If there are none, or they do not fill its shape.
        """
        value, where = self.attribute(node, "value"), f'{self._label}: node "{node.name}"'
        if value is None:
            raise ModelError(f"{where}: a constant without a value")
        return array_of(value.tensor, where)

    def integer(self, node: Message, name: str, default: int) -> int:
        """An integer attribute."""
        found = self.attribute(node, name)
        return default if found is None else int(found.i)

    def number(self, node: Message, name: str, default: float) -> float:
        """A float attribute."""
        found = self.attribute(node, name)
        return default if found is None else float(found.f)

    def flag(self, node: Message, name: str, *, default: bool = False) -> bool:
        """A boolean attribute."""
        found = self.attribute(node, name)
        return default if found is None else bool(found.b)

    def word(self, node: Message, name: str, default: str) -> str:
        """A text attribute."""
        found = self.attribute(node, name)
        return default if found is None else found.s.decode("utf-8", "replace")

    def integers(self, node: Message, name: str, default: Sequence[int] = ()) -> list[int]:
        """An attribute that lists integers."""
        found = self.attribute(node, name)
        return list(default) if found is None else [int(value) for value in found.list.i]

    def onnx_type(self, node: Message, name: str, default: int) -> int:
        """An attribute that names an element type, as ONNX numbers it.

        Raises:
            ConversionError: If the type is not supported.
        """
        found = self.attribute(node, name)
        number = default if found is None else int(found.type)
        if number not in DTYPES:
            raise ConversionError(f"element type {number} is not supported")
        return DTYPES[number][1]

    # The ONNX graph.

    def emit(
        self, operator: str, inputs: Sequence[str], outputs: str | Sequence[str], **attributes: Any
    ) -> str:
        """Adds a node; `outputs` is one name or several. Returns the first."""
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        node = helper.make_node(operator, inputs, names, name=names[0].removesuffix(":0"), **attributes)
        self._nodes.append(node)
        self._infer(node)
        return names[0]

    def value(self, name: str, array: npt.ArrayLike) -> str:
        """Adds a constant under `name` and returns it."""
        self._constants[name] = np.asarray(array)
        tensor = numpy_helper.from_array(self._constants[name], name)
        self._types[name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        return name

    def int64(self, node: Message, index: int, label: str) -> str:
        """An integer input as int64: a constant where it is one, else a cast."""
        source = self.inputs_of(node)[index]
        array = self.constant(source)
        name = f"{node.name}/{label}"
        if array is not None:
            return self.value(name, np.atleast_1d(array).astype(np.int64))
        return self.emit("Cast", [source], name, to=onnx.TensorProto.INT64)

    def rank(self, name: str) -> int | None:
        """The number of axes of a tensor, as far as known."""
        kind = self._types.get(name)
        return (
            None
            if kind is None or not kind.tensor_type.HasField("shape")
            else len(kind.tensor_type.shape.dim)
        )

    def sizes(self, name: str) -> list[int | None]:
        """The sizes of a tensor, None for those that are not known; empty for an unknown rank."""
        kind = self._types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return []
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim]

    def _infer(self, node: onnx.NodeProto) -> None:
        """Notes types and shapes of a node's results, as far as ONNX infers them from its operands alone."""
        if any(name and name not in self._types for name in node.input):
            return
        known = {name: self._types[name] for name in node.input if name}
        constants = {
            name: numpy_helper.from_array(self._constants[name], name)
            for name in node.input
            if name in self._constants and self._constants[name].size <= 64
        }
        try:
            schema = onnx.defs.get_schema(node.op_type, OPSET)
            self._types |= onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                known,
                constants,
                opset_imports=[helper.make_opsetid("", OPSET)],
                ir_version=IR_VERSION,
            )
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
            return  # whoever loads the model says what is wrong with it

    # The walk.

    def run(self) -> onnx.ModelProto:
        """Converts the whole graph.

        Raises:
            ModelError: If a node reads what does not exist, or nodes read each other in a circle.
            UnsupportedModelError: Listing every node that cannot be converted.
        """
        findings: list[Finding] = []
        for node in self._topological_order():
            if node.op in WITHOUT_RESULT:
                continue
            try:
                self._convert(node)
            except ConversionError as error:
                findings.append(Finding(node.name, f"TensorFlow {node.op}", None, str(error)))
        if findings:
            raise UnsupportedModelError(self._label, findings)
        used = {name for node in self._nodes for name in node.input}
        made = dict.fromkeys(name for node in self._nodes for name in node.output)
        ends = [
            name
            for node in self._defs.values()
            if node.op not in WITHOUT_RESULT | {"Const", "Placeholder"}
            for name in self._results(node, made)
            if name not in used
        ]
        outputs = ends or list(made)[-1:]
        if not outputs or not self._inputs:
            raise ModelError(f"{self._label}: the graph has no {'output' if self._inputs else 'Placeholder'}")
        graph = helper.make_graph(
            self._nodes,
            "graph",
            self._inputs,
            [onnx.ValueInfoProto(name=name, type=self._types.get(name)) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self._constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    @staticmethod
    def _results(node: Message, made: Container[str]) -> Iterator[str]:
        """The results of a node that were written; of a normalisation only the first is one."""
        for number in count():
            name = f"{node.name}:{number}"
            if name not in made or (number and node.op.startswith("FusedBatchNorm")):
                return
            yield name

    def _convert(self, node: Message) -> None:
        if node.name in self.replaced:
            self.emit("Identity", self.inputs_of(node)[:1], f"{node.name}:0")
        elif node.op == "Placeholder":
            self._input(node)
        elif node.op == "Const":
            self.value(f"{node.name}:0", self.tensor(node))
        elif node.op in VARIABLES:
            raise ConversionError("the graph is not frozen: turn its variables into constants first")
        elif node.op not in CONVERSIONS:
            raise ConversionError("operator is not supported")
        else:
            CONVERSIONS[node.op](self, node)

    def _input(self, node: Message) -> None:
        found = self.attribute(node, "shape")
        sizes = None if found is None else shape_of(found.shape)
        dims: list[int | str] | None = None
        if sizes:
            # The first open axis is the batch in all inputs; others may differ.
            dims = [
                size if size >= 0 else "batch" if axis == 0 else f"{node.name}_{axis}"
                for axis, size in enumerate(sizes)
            ]
        elif sizes == [] and found is not None and self.users.get(f"{node.name}:0") is None:
            return
        info = helper.make_tensor_value_info(f"{node.name}:0", self.onnx_type(node, "dtype", 1), dims)
        self._inputs.append(info)
        self._types[info.name] = info.type

    def _topological_order(self) -> list[Message]:
        """All nodes, each behind those it reads."""
        order: list[Message] = []
        state: dict[str, int] = {}  # 1: being visited, 2: done
        for root in self._defs:
            stack = [root]
            while stack:
                name = stack[-1]
                if state.get(name) == 2:
                    stack.pop()
                    continue
                sources = [source.rpartition(":")[0] for source in self.inputs_of(self._defs[name])]
                if state.get(name) == 1:
                    state[name] = 2
                    order.append(self._defs[name])
                    stack.pop()
                    continue
                state[name] = 1
                for source in sources:
                    if source not in self._defs:
                        raise ModelError(
                            f'{self._label}: node "{name}" reads "{source}", which does not exist'
                        )
                    if state.get(source) == 1:
                        raise ModelError(f'{self._label}: nodes "{name}" and "{source}" read each other')
                    if source not in state:
                        stack.append(source)
        return order
