"""Nodes outside the closed set that stay in a normalised model: onnxruntime must be able to run them.

It is also asked for the types and shapes that ONNX's own inference left open, so that a model can be cut
anywhere, and what follows an operator ONNX does not know is known all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from tpuflow.errors import Finding, ModelError, UnsupportedModelError
from tpuflow.frontend.session import FloatSession
from tpuflow.frontend.supported import operator_name
from tpuflow.frontend.values import bodies, shape_of, state_shape

__all__ = ["complete"]


def complete(model: ir.Model, label: str, found: Sequence[Finding]) -> bool:
    """Makes sure that onnxruntime runs the whole model, and states types and shapes of values, in place.

    Returns:
        Whether a shape became known: normalisation then may find more.

    Raises:
        UnsupportedModelError: If operators are unknown to onnxruntime too; it lists all of them.
        ModelError: If onnxruntime refuses the model for another reason.
    """
    unknown = list(_unknown(model, found))
    if unknown:
        raise UnsupportedModelError(label, unknown)
    try:
        session = FloatSession(model, "all")
    except ModelError as error:
        names = ", ".join(dict.fromkeys(f"{finding.node} ({finding.operator})" for finding in found[:3]))
        raise ModelError(
            f"{label}: the host cannot run what the machine cannot, such as {names}: {error}"
        ) from None
    learned = False
    for node in model.graph:
        for value in node.outputs:
            kind, shape = session.kinds.get(value.name or ""), session.shapes.get(value.name or "")
            if kind and (value.type is None or value.dtype == ir.DataType.UNDEFINED):
                value.type = _type(kind)
            if (
                shape
                and shape_of(value) is None
                and all(isinstance(size, int) and size > 0 for size in shape)
            ):
                state_shape(value, [int(size) for size in shape if isinstance(size, int)])
                learned = True
    return learned


def _unknown(model: ir.Model, found: Sequence[Finding]) -> Iterator[Finding]:
    known = {(schema.domain, schema.name) for schema in runtime.get_all_operator_schema()}
    known |= {(function.domain, function.name) for function in model.functions.values()}
    names = {finding.node for finding in found}
    for node in model.graph:
        if node.name not in names:
            continue
        for inner in _within(node):
            domain = "" if inner.domain == "ai.onnx" else inner.domain
            if (domain, inner.op_type) not in known:
                reason = "operator is unknown to machine and onnxruntime"
                yield Finding(node.name or "", operator_name(inner), None, reason)


def _within(node: ir.Node) -> Iterator[ir.Node]:
    """A node and all in its bodies."""
    yield node
    for body in bodies(node):
        for inner in body:
            yield from _within(inner)


_ELEMENTS = {"float": ir.DataType.FLOAT, "double": ir.DataType.DOUBLE}


def _type(text: str) -> ir.TypeProtocol | None:
    """The type onnxruntime writes as `tensor(int64)` or `seq(tensor(float))`; None for any other."""
    outer, _, rest = text.partition("(")
    inside = rest.removesuffix(")")
    if outer == "tensor":
        return ir.TensorType(_ELEMENTS.get(inside) or ir.DataType[inside.upper()])
    if outer == "seq" and (element := _type(inside)) is not None:
        return ir.SequenceType(element)
    return None
