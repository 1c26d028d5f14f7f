"""Operators from outside: nodes that neither the machine nor onnxruntime computes, but functions of a caller.

    with operators({"Halved": function}):
        model = load("model.onnx", host=True)    # its nodes of type Halved run on the host

Such nodes bear the domain `tpuflow.outside` from the import on, so that no rule takes them for operators of
ONNX. A session that meets them runs in stages: what lies between them in onnxruntime, they by their function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from tpuflow.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["OUTSIDE", "StagedSession", "infer_outside", "mark", "operators", "provide"]

OUTSIDE = "tpuflow.outside"

Array = Any
Operator = Callable[
    [str, Mapping[str, Any], Sequence["NDArray[Any] | None"], frozenset[int], Sequence[str]], Sequence[Any]
]
"""From a node's name, attributes, inputs, which of these are constants, and names of outputs, to outputs."""

_ACTIVE: ContextVar[Mapping[str, Operator] | None] = ContextVar("operators", default=None)
_PROVIDERS: list[Callable[[], Mapping[str, Operator]]] = []


@contextmanager
def operators(found: Mapping[str, Operator]) -> Iterator[None]:
    """While models are imported and sessions made, these are the operators from outside, by type."""
    token = _ACTIVE.set(found)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def provide(find: Callable[[], Mapping[str, Operator]]) -> None:
    """Says where operators come from when a program needs some and `operators` gave none."""
    _PROVIDERS[:] = [find]


def mark(model: ir.Model) -> None:
    """Gives nodes of those types the domain of operators from outside, in place."""
    found = _ACTIVE.get() or {}
    marked = [node for node in model.graph if node.op_type in found and node.domain != OUTSIDE]
    for node in marked:
        node.domain = OUTSIDE
    if marked:
        model.graph.opset_imports[OUTSIDE] = 1


def _operator(kind: str) -> Operator:
    found = _ACTIVE.get()
    if found is None and _PROVIDERS:
        found = _PROVIDERS[0]()
    if not found or kind not in found:
        raise ModelError(
            f'operator "{kind}" is one of a plugin, and none is loaded that has it: name its folder, '
            "--plugins DIR or TPUFLOW_PLUGINS=DIR"
        )
    return found[kind]


def infer_outside(node: ir.Node) -> str | None:
    """Sets types and shapes of a node's outputs by running it on zeros; as `inference.infer_output`."""
    inputs: list[NDArray[Any] | None] = []
    for value in node.inputs:
        if value is None:
            inputs.append(None)
        elif value.const_value is not None:
            inputs.append(value.const_value.numpy())
        elif value.shape is None or not value.shape.is_static() or value.dtype is None:
            return None
        else:
            inputs.append(np.zeros(value.shape.numpy(), value.dtype.numpy()))
    proto = ir.serde.serialize_node(node)
    held = enumerate(node.inputs)
    constants = frozenset(at for at, value in held if value is not None and value.const_value is not None)
    for value, array in zip(node.outputs, _run(proto, inputs, constants), strict=True):
        value.type, value.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
    return None


def _run(node: onnx.NodeProto, inputs: Sequence[Any], constants: frozenset[int]) -> list[NDArray[Any]]:
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    words = {name: each.decode() if isinstance(each, bytes) else each for name, each in attributes.items()}
    made = _operator(node.op_type)(node.name, words, inputs, constants, list(node.output))
    found = [np.asarray(array) for array in made]
    if len(found) != len(node.output):
        raise ModelError(f'"{node.name}" ({node.op_type}): gave {len(found)} outputs, not {len(node.output)}')
    return found


class StagedSession:
    """A model with operators from outside, run part by part.

    Args:
        proto: The model.
        outputs: Tensors to return.
        session: Makes what runs a part: from a model and the tensors it is to give.
        apart: Constants the model lists by name alone.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        outputs: Sequence[str],
        session: Callable[[onnx.ModelProto, Sequence[str]], Any],
        apart: Mapping[str, NDArray[Any]],
    ) -> None:
        self._proto, self._outputs, self._make = proto, outputs, session
        self._constants = {each.name: each for each in proto.graph.initializer}
        self._apart = apart
        self._inputs = [each.name for each in proto.graph.input if each.name not in self._constants]
        self._parts: list[list[onnx.NodeProto]] = []
        for node in proto.graph.node:
            alone = node.domain == OUTSIDE
            if alone:
                _operator(node.op_type)  # better known to be missing now than at the first sample
            if alone or not self._parts or self._parts[-1][0].domain == OUTSIDE:
                self._parts.append([])
            self._parts[-1].append(node)
        self._sessions: dict[int, tuple[Any, list[str]]] = {}
        self._active = _ACTIVE.get()

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs all parts on one feed.

        Raises:
            ModelError: An input is missing, or a part cannot be run.
        """
        known: dict[str, Array] = {name: np.asarray(array) for name, array in feeds.items()}
        for name in self._inputs:
            if name not in known:
                raise ModelError(f'no array for input "{name}"')
        token = _ACTIVE.set(self._active) if self._active is not None else None
        try:
            for at, nodes in enumerate(self._parts):
                if nodes[0].domain == OUTSIDE:
                    known |= self._outside(nodes[0], known)
                    continue
                if at not in self._sessions:
                    self._sessions[at] = self._part(at, known)
                session, reads = self._sessions[at]
                if session is not None:
                    known |= session.run({name: known[name] for name in reads})
        finally:
            if token is not None:
                _ACTIVE.reset(token)
        return {name: known[name] for name in self._outputs}

    def _outside(self, node: onnx.NodeProto, known: Mapping[str, Array]) -> dict[str, Array]:
        constants = frozenset(at for at, name in enumerate(node.input) if name not in known and name)
        inputs = [known[name] if name in known else self._constant(name) for name in node.input]
        return dict(zip(node.output, _run(node, inputs, constants), strict=True))

    def _constant(self, name: str) -> Array | None:
        if not name:
            return None
        if name in self._apart:
            return self._apart[name]
        return numpy_helper.to_array(self._constants[name])

    def _part(self, at: int, known: Mapping[str, Array]) -> tuple[Any, list[str]]:
        """The session of a part, None where nobody reads what it computes; and the tensors it reads."""
        nodes = self._parts[at]
        made = {name for node in nodes for name in node.output if name}
        read = set(_names_read(nodes)) - made
        later = set(self._outputs) | set(
            _names_read([node for part in self._parts[at + 1 :] for node in part])
        )
        given = sorted(name for name in made if name in later)
        if not given:
            return None, []
        part = onnx.ModelProto(ir_version=self._proto.ir_version)
        part.opset_import.extend(each for each in self._proto.opset_import if each.domain != OUTSIDE)
        part.functions.extend(self._proto.functions)
        part.graph.name = "part"
        part.graph.node.extend(nodes)
        part.graph.initializer.extend(each for name, each in self._constants.items() if name in read)
        reads = sorted(name for name in read if name in known)
        for name in reads:
            kind = onnx.helper.np_dtype_to_tensor_dtype(known[name].dtype)
            part.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, known[name].shape))
        part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in given)
        return self._make(part, given), reads


def _names_read(nodes: Sequence[onnx.NodeProto]) -> Iterator[str]:
    """Names of the tensors that nodes, and nodes in their bodies, read."""
    for node in nodes:
        yield from (name for name in node.input if name)
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _names_read(body.node)
