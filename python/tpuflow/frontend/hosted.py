"""The host's part of a normalised model: nodes outside the closed set, and outputs that are constants.

Of such nodes onnxruntime must be able to run all. It is also asked for the types and shapes that ONNX's own
inference left open, so that a model can be cut anywhere, and what follows an operator ONNX does not know is
known all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from tpuflow.errors import Finding, ModelError, UnsupportedModelError
from tpuflow.frontend.constraints.indices import FATAL
from tpuflow.frontend.hazards import DIVISORS
from tpuflow.frontend.outside import OUTSIDE, infer_outside
from tpuflow.frontend.session import FloatSession
from tpuflow.frontend.supported import operator_name
from tpuflow.frontend.values import bodies, shape_of, state_shape

__all__ = ["complete", "make_constant_outputs"]


def complete(model: ir.Model, label: str, found: Sequence[Finding]) -> bool:
    """Makes sure that onnxruntime runs the whole model, and states types and shapes of values, in place.

    Returns:
        Whether a shape became known: normalisation then may find more.

    Raises:
        UnsupportedModelError: If operators are unknown to onnxruntime too; it lists all of them.
        ModelError: If onnxruntime refuses the model for another reason.
    """
    unknown = [*_unknown_operators(model, found), *(each for each in found if _is_fatal(each))]
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
        if node.domain == OUTSIDE and any(shape_of(value) is None for value in node.outputs):
            infer_outside(node)
            for value in node.outputs:
                if (sizes := shape_of(value)) is not None:
                    state_shape(value, list(sizes))
                    learned = True
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
                learned = learned or shape_of(value) is not None  # that of a sequence is not the value's
    return learned


def _is_fatal(finding: Finding) -> bool:
    """Whether onnxruntime would not survive a node, or not finish it."""
    invalid = finding.reason.startswith("is not valid")
    return finding.attribute in DIVISORS or (invalid and any(word in finding.reason for word in FATAL))


def make_constant_outputs(graph: ir.Graph) -> bool:
    """Has nodes make the outputs that are constants, so that the host gives them.

    Returns:
        Whether there were any.
    """
    changed = False
    for index, value in enumerate(graph.outputs):
        if value.const_value is None or not value.is_initializer() or value.is_graph_input():
            continue
        node = ir.node("Constant", [], {"value": value.const_value}, name=value.name)
        made = node.outputs[0]
        made.type, made.shape = value.type, value.shape
        made.name, value.name = value.name, f"{value.name}/constant"
        graph.outputs[index] = made
        graph.insert_before(next(iter(graph)), node) if len(graph) else graph.append(node)
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[value.name]
        changed = True
    return changed


def _unknown_operators(model: ir.Model, found: Sequence[Finding]) -> Iterator[Finding]:
    known = {(schema.domain, schema.name) for schema in runtime.get_all_operator_schema()}
    known |= {(function.domain, function.name) for function in model.functions.values()}
    names = {finding.node for finding in found}
    for node in model.graph:
        if node.name not in names or node.domain == OUTSIDE:
            continue
        for inner in _nested_nodes(node):
            domain = "" if inner.domain == "ai.onnx" else inner.domain
            if (domain, inner.op_type) not in known:
                reason = "operator is unknown to machine and onnxruntime"
                yield Finding(node.name or "", operator_name(inner), None, reason)


def _nested_nodes(node: ir.Node) -> Iterator[ir.Node]:
    """A node and all in its bodies."""
    yield node
    for body in bodies(node):
        for inner in body:
            yield from _nested_nodes(inner)


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
