"""Whether the parts of a model file refer to each other as they must: values, attributes, functions, bodies.

Looked at on the protocol buffer, before any library follows these references: one that leads nowhere, or in
a circle, or that multiplies a small file into a model of millions of nodes, is told in one line.
"""

from __future__ import annotations

import graphlib
from typing import TYPE_CHECKING

import onnx

from tpuflow.errors import ModelError
from tpuflow.frontend.hazards import all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["check_references"]

MOST_NODES = 1 << 16
"""Nodes a model may have once its functions stand in place of their calls."""

ATTRIBUTE_TYPES = frozenset(onnx.AttributeProto.AttributeType.values()) - {onnx.AttributeProto.UNDEFINED}
"""The numbers of the types an attribute may have."""

GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
"""The types of attributes that are bodies."""

Key = tuple[str, str]
"""Domain and name of an operator or function."""


def check_references(proto: onnx.ModelProto, label: str) -> None:
    """Makes sure that every value is computed before it is read, and every function can be put in place.

    Raises:
        ModelError: Something is referred to that is not there, or in a circle; a name is not text; functions
            are of other opsets than the model, or multiply to more nodes than any network has.
    """
    graph = proto.graph
    _versions(proto, label)
    if not graph.output:
        raise ModelError(f"{label}: the graph has no outputs")
    texts = [*_texts(graph), *(text for each in proto.functions for text in _function_texts(each))]
    if not all(isinstance(text, str) for text in texts):
        raise ModelError(f"{label}: not a valid ONNX model: a name or word in it is not UTF-8 text")
    _check_graph(graph, (), label, None)
    for value in graph.input:
        if not value.name:
            raise ModelError(f"{label}: an input of the graph has no name")
    _check_functions(proto, label)


def _versions(proto: onnx.ModelProto, label: str) -> dict[str, int]:
    """The version the model states for each domain."""
    found: dict[str, int] = {}
    for each in proto.opset_import:
        if not 0 < each.version < 1 << 31:
            raise ModelError(f'{label}: {each.version} is no version of domain "{each.domain}"')
        if found.setdefault(_domain(each.domain), each.version) != each.version:
            raise ModelError(f'{label}: two versions of domain "{each.domain}" are stated')
    return found


def _check_graph(
    graph: onnx.GraphProto, outer: Sequence[set[str]], label: str, parameters: set[str] | None
) -> None:
    """`outer` are the values around a body, `parameters` the attributes of the function it is in."""
    if graph.sparse_initializer:
        raise ModelError(f"{label}: sparse initialisers are not supported")
    known = {"", *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
    _check_nodes(graph.node, [*outer, known], label, parameters)
    for value in graph.output:
        if not any(value.name in names for names in ([*outer, known] if value.name else [])):
            raise ModelError(f'{label}: nothing computes output "{value.name}"')


def _check_nodes(
    nodes: Iterable[onnx.NodeProto], scopes: Sequence[set[str]], label: str, parameters: set[str] | None
) -> None:
    """The last of `scopes` takes up what the nodes compute."""
    for node in nodes:
        which = f'{label}: node "{node.name or ", ".join(node.output)}" ({node.op_type})'
        for name in node.input:
            if not any(name in names for names in scopes):
                raise ModelError(f'{which} reads "{name}", which nothing before it computes')
        if not node.output:
            raise ModelError(f"{which} has no outputs")
        named: set[str] = set()
        for attribute in node.attribute:
            if not attribute.name or attribute.name in named:
                raise ModelError(f'{which} has two attributes "{attribute.name}", or one without a name')
            named.add(attribute.name)
            if attribute.ref_attr_name and attribute.ref_attr_name not in (parameters or ()):
                raise ModelError(
                    f'{which[:-1]}, {attribute.name}): refers to the attribute "{attribute.ref_attr_name}" '
                    "of a function, and stands in none that has it"
                )
            if attribute.type not in ATTRIBUTE_TYPES:
                raise ModelError(
                    f"{which[:-1]}, {attribute.name}): {attribute.type} is no type of attributes"
                )
            for body in _bodies(attribute):
                _check_graph(body, scopes, label, parameters)
        scopes[-1].update(node.output)


def _check_functions(proto: onnx.ModelProto, label: str) -> None:
    functions: dict[Key, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = _key(function.domain, function.name)
        what = f'{label}: function "{"::".join(key)}"'
        if key in functions:
            raise ModelError(f"{what} is defined twice")
        functions[key] = function
        if len(set(function.input)) < len(function.input) or "" in function.input:
            raise ModelError(f"{what} has inputs without a name, or two of one name")
        parameters = {*function.attribute, *(each.name for each in function.attribute_proto)}
        known = {"", *function.input}
        _check_nodes(function.node, [known], what, parameters)
        for name in function.output:
            if name not in known or not name:
                raise ModelError(f'{what}: nothing computes output "{name}"')
    if functions:
        _check_calls(proto, functions, label)


def _check_calls(proto: onnx.ModelProto, functions: Mapping[Key, onnx.FunctionProto], label: str) -> None:
    """Every call fits its function, and all of them in place make no more nodes than a network has."""
    versions = _versions(proto, label)
    calls = {key: [*all_nodes(function.node)] for key, function in functions.items()}
    order = graphlib.TopologicalSorter(
        {key: {_operator_key(node) for node in nodes} & functions.keys() for key, nodes in calls.items()}
    )
    try:
        inner_first = list(order.static_order())
    except graphlib.CycleError as error:
        circle = " -> ".join("::".join(key) for key in error.args[1])
        raise ModelError(f"{label}: functions call each other in a circle: {circle}") from None
    sizes: dict[Key, int] = {}
    for key in inner_first:
        sizes[key] = min(_size(calls[key], sizes), MOST_NODES + 1)
    own = [*all_nodes(proto.graph.node)]
    # Those of functions that nothing calls count as well: libraries put functions in place there, too.
    if max(_size(own, sizes), *sizes.values()) > max(MOST_NODES, len(own)):
        raise ModelError(f"{label}: with its functions in place it has more than {MOST_NODES} nodes")
    for node in (*own, *(node for nodes in calls.values() for node in nodes)):
        function = functions.get(_operator_key(node))
        if function is None:
            continue
        what = (
            f'{label}: node "{node.name or ", ".join(node.output)}" calls "{"::".join(_operator_key(node))}"'
        )
        if len(node.input) > len(function.input) or len(node.output) > len(function.output):
            raise ModelError(f"{what} with more inputs or outputs than it has")
        if any(attribute.type in GRAPHS or [*_bodies(attribute)] for attribute in node.attribute):
            raise ModelError(f"{what} with a graph as attribute, which is not supported")
        for each in function.opset_import:
            domain = _domain(each.domain)
            if versions.setdefault(domain, each.version) != each.version:
                raise ModelError(
                    f'{what}, which is of opset {each.version} of domain "{domain}", the model of '
                    f"{versions[domain]}: export both of one opset"
                )


def _size(nodes: Iterable[onnx.NodeProto], sizes: Mapping[Key, int]) -> int:
    return sum(1 + sizes.get(_operator_key(node), 0) for node in nodes)


def _operator_key(node: onnx.NodeProto) -> Key:
    return _key(node.domain, node.op_type)


def _key(domain: str, name: str) -> Key:
    return (_domain(domain), name)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _bodies(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _function_texts(function: onnx.FunctionProto) -> Iterator[str | bytes]:
    yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
    yield from _node_texts(function.node)


def _texts(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    """The names and words in a graph; what is not UTF-8 comes as bytes."""
    for named in (*graph.input, *graph.output, *graph.initializer):
        yield named.name
    yield from _node_texts(graph.node)


def _node_texts(nodes: Iterable[onnx.NodeProto]) -> Iterator[str | bytes]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            if not node.domain and attribute.type in {
                onnx.AttributeProto.STRING,
                onnx.AttributeProto.STRINGS,
            }:
                yield from (_decoded_text(text) for text in (attribute.s, *attribute.strings))
            for body in _bodies(attribute):
                yield from _texts(body)


def _decoded_text(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text
