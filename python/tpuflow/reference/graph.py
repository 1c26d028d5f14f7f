"""Walks a whole graph: every tensor from the functions of this package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tpuflow.reference import (
    activation,
    elementwise,
    float_graph,
    floating,
    linear,
    movement,
    normalization,
    pooling,
)
from tpuflow.reference.layer import Layer
from tpuflow.reference.packed import expand

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuflow.reference.rounding import Integers

DTYPES = {
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    **floating.DTYPES,
}


class Graph(Protocol):
    """The methods of a graph that are used here."""

    def to_json(self) -> str:
        """Tensors and layers, without the elements of constants."""

    def constant(self, tensor: int) -> NDArray[Any]:
        """Elements of a constant."""

    def packed(self, tensor: int) -> tuple[int, NDArray[Any], NDArray[Any], NDArray[Any] | None, bool] | None:
        """Rows of a block, codes, scales, zero points of a constant of 4 bits, whether codes are floats.

        None of others.
        """


def _conv(layer: Layer) -> Integers:
    return layer.finish(
        linear.conv(
            layer.value("input"),
            layer.value("weights"),
            layer.op["window"],
            zero_points=(layer.zero_point("input"), layer.zero_point("weights")),
            groups=layer.op["groups"],
        ),
        layer.value("bias"),
    )


def _mat_mul(layer: Layer) -> Integers:
    zero_points = (layer.zero_point("a"), layer.zero_point("b"))
    sums = linear.mat_mul(layer.value("a"), layer.value("b"), zero_points=zero_points)
    return layer.finish(sums, layer.optional("bias"))


def _average_pool(layer: Layer) -> Integers:
    return pooling.average_pool(
        layer.value("input"),
        layer.op["window"],
        input_zero_point=layer.zero_point("input"),
        **layer.fields("count_include_pad", "beyond"),
        **layer.op["average"],
    )


def _binary(layer: Layer) -> Integers:
    return elementwise.binary(
        layer.op["kind"],
        layer.value("a"),
        layer.value("b"),
        zero_points=(layer.zero_point("a"), layer.zero_point("b")),
        multipliers=(layer.op["ka"], layer.op["kb"]),
        requant=layer.op["requant"],
    )


def _unary(layer: Layer) -> Integers:
    table = layer.op["function"]
    entries = layer.tensor(table["entries"])
    return activation.unary(layer.value("input"), entries, lo=table["lo"], hi=table["hi"])


def _p_relu(layer: Layer) -> Integers:
    slopes = layer.op["slopes"]
    return activation.p_relu(layer.value("input"), zero_point=layer.zero_point("input"), **slopes)


def _softmax(layer: Layer) -> Integers:
    return activation.softmax(layer.value("input"), layer.optional("mask"), layer.op["exponentials"])


def _layer_norm(layer: Layer) -> Integers:
    return normalization.layer_norm(
        layer.value("input"),
        layer.value("gamma"),
        layer.value("beta"),
        layer.op["norm"],
        zero_point=layer.zero_point("input"),
        center=layer.op["center"],
    )


def _reduce(layer: Layer) -> Integers:
    zero_point = layer.zero_point("input")
    fields = layer.fields("axes", "requant")
    return normalization.reduce(layer.op["kind"], layer.value("input"), zero_point=zero_point, **fields)


def _concat(layer: Layer) -> Integers:
    numbers = layer.op["inputs"]
    return movement.concat(
        [layer.tensor(number) for number in numbers],
        zero_points=[layer.zero_point_of(number) for number in numbers],
        **layer.fields("axis", "requants"),
    )


def _select(layer: Layer) -> Integers:
    return elementwise.select(layer.value("condition"), layer.value("a"), layer.value("b"))


OPERATORS: dict[str, Callable[[Layer], Integers]] = {
    "conv": _conv,
    "mat_mul": _mat_mul,
    "max_pool": lambda layer: pooling.max_pool(layer.value("input"), layer.op["window"]),
    "average_pool": _average_pool,
    "binary": _binary,
    "unary": _unary,
    "rescale": lambda layer: activation.rescale(
        layer.value("input"), zero_point=layer.zero_point("input"), requant=layer.op["requant"]
    ),
    "p_relu": _p_relu,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "reduce": _reduce,
    "arg_max": lambda layer: normalization.arg_max(
        layer.value("input"), **layer.fields("largest", "select_last")
    ),
    "concat": _concat,
    "pad": lambda layer: movement.pad(layer.value("input"), **layer.fields("before", "after", "mode")),
    "rearrange": lambda layer: movement.rearrange(
        layer.value("input"), **layer.fields("dims", "strides", "offset")
    ),
    "gather": lambda layer: movement.gather(layer.value("input"), **layer.fields("axis", "indices")),
    "embedding": lambda layer: movement.embedding(
        layer.value("table"), layer.value("indices"), layer.op.get("entry", "row")
    ),
    "resize_linear": lambda layer: movement.resize_linear(
        layer.value("input"), **layer.fields("rows", "columns")
    ),
    "insert_zeros": lambda layer: movement.insert_zeros(
        layer.value("input"), stride=layer.op["stride"], zero_point=layer.zero_point("input")
    ),
    "select": _select,
}
"""How each operator of the graph is computed."""


def run(graph: Graph, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Computes every tensor of a graph that is not a constant.

    Args:
        graph: The graph.
        inputs: Elements by input name, of the inputs' shapes and types.

    Returns:
        Elements by tensor name, of the tensors' shapes and types.

    Raises:
        KeyError: An input is missing.
    """
    document = json.loads(graph.to_json())
    tensors: list[dict[str, Any]] = document["tensors"]
    produced = {layer["output"] for layer in document["layers"]}
    fed = {number: inputs[tensors[number]["name"]] for number in document["inputs"]}
    constants = set(range(len(tensors))) - produced - set(fed)
    values: dict[int, NDArray[Any]] = fed | {number: _constant(graph, number) for number in constants}
    for layer in document["layers"]:
        output = tensors[layer["output"]]
        seen = Layer(layer["op"], values, tensors)
        if float_graph.applies(seen, output["dtype"]):
            with np.errstate(all="ignore"):  # infinities and NaN are results like any other
                found = float_graph.OPERATORS[layer["op"]["op"]](seen, output["dtype"])
            values[layer["output"]] = found.astype(DTYPES[output["dtype"]]).reshape(output["shape"])
            continue
        values[layer["output"]] = _store(OPERATORS[layer["op"]["op"]](seen), output)
    return {tensors[number]["name"]: values[number] for number in sorted(values) if number not in constants}


def _constant(graph: Graph, tensor: int) -> NDArray[Any]:
    packed = graph.packed(tensor)
    if packed is None:
        return graph.constant(tensor)
    block, codes, scales, zero_points, is_float = packed
    return expand(codes, scales, zero_points, block, is_float=is_float).astype(np.int8)


def _store(codes: Integers, tensor: Mapping[str, Any]) -> NDArray[Any]:
    """Codes in their tensor's type and shape; every code must fit the type."""
    stored = codes.astype(DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    if not np.array_equal(stored.astype(object).ravel(), codes.astype(object).ravel()):
        raise OverflowError(f'a code of "{tensor["name"]}" does not fit {tensor["dtype"]}')
    return stored
