"""Whether a node is as ONNX demands, as far as rewrites and lowering rely on it.

A model can pass ONNX's checker and still hold a convolution of zero groups, a window of negative stride or
a scale that fits no channel. Rewrites are only shown nodes to which there is no objection, and find no others
among those before them (`values.maker_of`), so that each may take for granted what the standard promises;
what is objected to stays where it is and is listed, with all else that cannot be compiled, by
`tpuflow.frontend.supported`.

An objection is (attribute or input, what is wrong with it). What is not known yet (a shape, a constant) is
not objected to; nodes are looked at again once more is known. The constraints of each operator stand in
`tpuflow.frontend.constraints`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir

from tpuflow.frontend.constraints import LARGEST, Objection, violations
from tpuflow.frontend.constraints.contributed import contributed_violations
from tpuflow.frontend.inference import DOMAIN, infer_output
from tpuflow.frontend.values import SEEN, input_at, shape_of

__all__ = ["note_types", "objection"]

FUNCTIONS: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "Silu": (1, {}),
    "RMSNormalization": (2, {"axis": "INT", "epsilon": "FLOAT"}),
}
"""Our own functions: how many inputs each takes, and the types of its attributes."""

CONTRIBUTED = "com.microsoft"
"""Domain of operators that onnxruntime has beside ONNX's own."""

DEPRECATED = "has been deprecated"
"""Errors of inference on operators that are replaced, or listed as not supported."""

TYPES = "tpuflow.types"
"""Key under which a node keeps what is wrong with the types of its inputs."""


def objection(node: ir.Node, versions: Mapping[str, int]) -> Objection | None:
    """The first objection to a node; None without one, as far as is known."""
    known = [*map(_is_known, node.inputs), *(value.shape is not None for value in node.outputs[:1])]
    seen = node.meta.get(SEEN)
    if seen is not None and seen[0] == (node.op_type, known):
        found: Objection | None = seen[1]
        return found
    found = node.meta.get(TYPES) or next(_objections(node, versions), None)
    node.meta[SEEN] = ((node.op_type, known), found)
    return found


def _is_known(value: ir.Value | None) -> tuple[bool, bool]:
    """Whether the shape of an input is known, and its elements."""
    return value is None or shape_of(value) is not None, value is not None and value.const_value is not None


def _objections(node: ir.Node, versions: Mapping[str, int]) -> Iterator[Objection]:
    if node.domain == DOMAIN:
        count, types = FUNCTIONS.get(node.op_type, (-1, {}))
        if len([value for value in node.inputs if value is not None]) != count:
            yield None, "is no function of this domain, or has another number of inputs"
        for name in node.attributes:
            if name not in types:
                yield name, "is no attribute of this function"
        yield from _check_types(node, types)
        yield from violations(node)
    if node.domain == CONTRIBUTED:
        contributed = _contributed_schemas().get(node.op_type)
        if contributed is not None:
            yield from _check_counts(node, contributed)
            yield from _left_out(node, contributed)
            yield from _check_types(node, _types_of(contributed))
            yield from contributed_violations(node)
    if node.domain:
        return
    schema = _schema(node.op_type, node.version)
    if schema is None:
        return
    yield from _check_counts(node, schema)
    left_out = next(_left_out(node, schema), None)
    if left_out is not None:
        yield left_out
        return
    yield from _check_types(node, _attribute_types(node.op_type, node.version))
    yield from violations(node)
    for value in node.outputs:
        sizes = [] if value.shape is None else [size for size in value.shape.dims if isinstance(size, int)]
        if any(size < 0 for size in sizes) or math.prod(sizes) > LARGEST:
            yield None, f"its output has the shape {sizes}"
    known = all(value is None or shape_of(value) is not None for value in node.inputs)
    if known and node.outputs and node.outputs[0].shape is None:
        wrong = infer_output(node, versions)
        if wrong is not None and DEPRECATED not in wrong:
            yield None, wrong


def _check_counts(node: ir.Node, schema: Any) -> Iterator[Objection]:
    """More inputs or outputs than the operator has."""
    for what, values, most in (
        ("input", node.inputs, schema.max_input),
        ("output", node.outputs, schema.max_output),
    ):
        if len(values) > most:
            yield f"{what} {most}", "is one more than the operator has"


def _check_types(node: ir.Node, types: Mapping[str, str]) -> Iterator[Objection]:
    for name, kind in types.items():
        if name in node.attributes and node.attributes[name].type.name != kind:
            yield name, f"is of the type {node.attributes[name].type.name}, not {kind}"


@cache
def _schema(operator: str, version: int | None) -> Any:
    """The schema of an operator; the newest of one that its opset does not have yet."""
    newest = onnx.defs.onnx_opset_version()
    try:
        return onnx.defs.get_schema(operator, version or newest, "")
    except onnx.defs.SchemaError:
        return None if version in {None, newest} else _schema(operator, None)


def _left_out(node: ir.Node, schema: Any) -> Iterator[Objection]:
    """Inputs that may not be left out: single ones, and all there are of one that repeats."""
    single, repeated = _required_inputs(schema)
    for index in (*single, *range(repeated, len(node.inputs))):
        if input_at(node, index) is None:
            yield f"input {index}", "is left out"
            return


@cache
def _required_inputs(schema: Any) -> tuple[tuple[int, ...], int]:
    """The inputs there must be, and the first of those that repeat, none of which may be left out."""
    options = [each.option.name for each in schema.inputs]
    single = tuple(index for index, option in enumerate(options) if option == "Single")
    return single, len(options) - 1 if options[-1:] == ["Variadic"] else LARGEST


@cache
def _attribute_types(operator: str, version: int | None) -> Mapping[str, str]:
    schema = _schema(operator, version)
    return {} if schema is None else _types_of(schema)


def _types_of(schema: Any) -> Mapping[str, str]:
    return {name: each.type.name for name, each in schema.attributes.items()}


@cache
def _contributed_schemas() -> Mapping[str, Any]:
    """The schemas of the operators onnxruntime has beside ONNX's own, which take a second to be listed."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime  # noqa: PLC0415 - few models need it

    return {each.name: each for each in runtime.get_all_operator_schema() if each.domain == CONTRIBUTED}


def note_types(graph: ir.Graph) -> None:
    """Notes for every node what is wrong with the types of its inputs, which later are replaced by others."""
    for node in graph.all_nodes():
        if not node.domain and (found := _type_objection(node)) is not None:
            node.meta[TYPES] = found


def _type_objection(node: ir.Node) -> Objection | None:
    schema = _schema(node.op_type, node.version)
    if schema is None:
        return None
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    bound: dict[str, str] = {}
    for index, value in enumerate(node.inputs):
        if value is None or not isinstance(value.type, ir.TensorType):
            continue
        if not schema.inputs:
            return f"input {index}", "is not taken"
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        text = f"tensor({str(value.dtype).lower()})"
        variable = formal.type_str
        possible = allowed.get(variable, [variable])
        if not all(each.startswith("tensor(") for each in possible):
            continue  # sequences and optional values, whose types inference does not follow
        if text not in possible:
            return f"input {index}", f"the type {str(value.dtype).lower()} is not taken"
        if formal.is_homogeneous and bound.setdefault(variable, text) != text:
            return f"input {index}", f"has another type than those before it, {str(value.dtype).lower()}"
    return None
