"""Walks a whole quantised graph: every tensor from the functions of this package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tpuflow.reference import activation, elementwise, linear, movement, normalisation, pooling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuflow.reference.rounding import Integers

DTYPES = {"int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64}


class Graph(Protocol):
    """What is read of a graph."""

    def to_json(self) -> str:
        """Tensors and layers, without the elements of constants."""

    def constant(self, tensor: int) -> NDArray[Any]:
        """Elements of a constant."""


class Layer:
    """One layer's fields, with tensors of the run looked up by number.

    Attributes:
        op: The operator's fields as in the graph's JSON.
    """

    def __init__(self, op: Mapping[str, Any], values: Mapping[int, Integers], tensors: list[Any]) -> None:
        self.op = op
        self._values = values
        self._tensors = tensors

    def value(self, field: str) -> Integers:
        """The tensor that a field names."""
        return self._values[self.op[field]]

    def optional(self, field: str) -> Integers | None:
        """The tensor that a field names, None where the field is absent."""
        return None if self.op.get(field) is None else self.value(field)

    def zero_point(self, field: str) -> int:
        """Zero point of the tensor that a field names."""
        return self.zero_point_of(self.op[field])

    def zero_point_of(self, tensor: int) -> int:
        """Zero point of a tensor, 0 where it has no quantisation."""
        quant = self._tensors[tensor].get("quant")
        return 0 if quant is None else int(quant["zero_point"])

    def tensor(self, number: int) -> Integers:
        """A tensor by number."""
        return self._values[number]

    def fields(self, *names: str) -> dict[str, Any]:
        """Some fields, as keyword arguments."""
        return {name: self.op[name] for name in names}

    def table(self) -> dict[str, Any] | None:
        """The fused table with its entries in place of their tensor's number."""
        table = self.op["epilogue"].get("table")
        return None if table is None else {**table, "entries": self.tensor(table["entries"])}

    def finish(self, accumulator: Integers) -> Integers:
        """Codes of the accumulators of a linear operator."""
        return linear.epilogue(accumulator, self.op["epilogue"]["requant"], self.table())


def _conv(layer: Layer) -> Integers:
    return layer.finish(
        linear.conv(
            layer.value("input"),
            layer.value("weights"),
            layer.value("bias"),
            zero_points=(layer.zero_point("input"), layer.zero_point("weights")),
            groups=layer.op["groups"],
            **layer.op["window"],
        )
    )


def _mat_mul(layer: Layer) -> Integers:
    zero_points = (layer.zero_point("a"), layer.zero_point("b"))
    bias = layer.optional("bias")
    return layer.finish(linear.mat_mul(layer.value("a"), layer.value("b"), bias, zero_points=zero_points))


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
    return activation.softmax(layer.value("input"), layer.optional("mask"), **layer.op["exponentials"])


def _layer_norm(layer: Layer) -> Integers:
    return normalisation.layer_norm(
        layer.value("input"),
        layer.value("gamma"),
        layer.value("beta"),
        zero_point=layer.zero_point("input"),
        center=layer.op["center"],
        **layer.op["norm"],
    )


def _reduce(layer: Layer) -> Integers:
    zero_point = layer.zero_point("input")
    fields = layer.fields("axes", "requant")
    return normalisation.reduce(layer.op["kind"], layer.value("input"), zero_point=zero_point, **fields)


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
    "arg_max": lambda layer: normalisation.arg_max(
        layer.value("input"), **layer.fields("largest", "select_last")
    ),
    "concat": _concat,
    "pad": lambda layer: movement.pad(layer.value("input"), **layer.fields("before", "after", "mode")),
    "rearrange": lambda layer: movement.rearrange(
        layer.value("input"), **layer.fields("dims", "strides", "offset")
    ),
    "gather": lambda layer: movement.gather(layer.value("input"), **layer.fields("axis", "indices")),
    "embedding": lambda layer: movement.embedding(layer.value("table"), layer.value("indices")),
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
        graph: The quantised graph.
        inputs: Codes by input name, of the inputs' shapes and types.

    Returns:
        Codes by tensor name, of the tensors' shapes and types.

    Raises:
        KeyError: An input is missing.
    """
    document = json.loads(graph.to_json())
    tensors: list[dict[str, Any]] = document["tensors"]
    produced = {layer["output"] for layer in document["layers"]}
    fed = {number: inputs[tensors[number]["name"]] for number in document["inputs"]}
    constants = set(range(len(tensors))) - produced - set(fed)
    values: dict[int, NDArray[Any]] = fed | {number: graph.constant(number) for number in constants}
    for layer in document["layers"]:
        output = tensors[layer["output"]]
        codes = OPERATORS[layer["op"]["op"]](Layer(layer["op"], values, tensors))
        values[layer["output"]] = _stored(codes, output)
    return {tensors[number]["name"]: values[number] for number in sorted(values) if number not in constants}


def _stored(codes: Integers, tensor: Mapping[str, Any]) -> NDArray[Any]:
    """Codes in their tensor's type and shape; every code must fit the type."""
    stored = codes.astype(DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    if not np.array_equal(stored.astype(object).ravel(), codes.astype(object).ravel()):
        raise OverflowError(f'a code of "{tensor["name"]}" does not fit {tensor["dtype"]}')
    return stored
