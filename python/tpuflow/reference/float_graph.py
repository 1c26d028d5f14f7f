"""How each operator of the graph is computed in floats: operands as float32, results in the output's type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.reference import elementwise, floating, movement
from tpuflow.reference.floating import finish, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tpuflow.reference.floating import Singles
    from tpuflow.reference.layer import Layer

    Operator = Callable[[Layer, str], NDArray[Any]]


def applies(layer: Layer, output: str) -> bool:
    """Whether a layer whose output has type `output` computes in floats."""
    field = "input" if "input" in layer.op else "a"
    return output in floating.DTYPES or (field in layer.op and layer.dtype(field) in floating.DTYPES)


def _singles(array: NDArray[Any]) -> Singles:
    """Float elements as float32, exactly."""
    return array.astype(np.float32)


def _conv(layer: Layer, dtype: str) -> NDArray[Any]:
    found = floating.conv(
        _singles(layer.value("input")),
        _singles(layer.value("weights")),
        layer.value("bias"),
        window=layer.op["window"],
        groups=layer.op["groups"],
    )
    return finish(found, layer.op["epilogue"]["float"], dtype)


def _mat_mul(layer: Layer, dtype: str) -> NDArray[Any]:
    found = floating.mat_mul(_singles(layer.value("a")), _singles(layer.value("b")), layer.optional("bias"))
    return finish(found, layer.op["epilogue"]["float"], dtype)


def _average_pool(layer: Layer, dtype: str) -> NDArray[Any]:
    fields = layer.fields("window", "count_include_pad", "beyond")
    found = floating.average_pool(_singles(layer.value("input")), **fields)
    return finish(found, layer.op["average"]["float"], dtype)


def _binary(layer: Layer, dtype: str) -> NDArray[Any]:
    kind, a, b = layer.op["kind"], _singles(layer.value("a")), _singles(layer.value("b"))
    if kind in floating.COMPARISONS:
        return np.asarray(floating.COMPARISONS[kind](a, b))
    return finish(np.asarray(floating.ARITHMETIC[kind](a, b)), layer.op["requant"]["float"], dtype)


def _p_relu(layer: Layer, dtype: str) -> NDArray[Any]:
    slopes = layer.op["slopes"]["float"]
    return finish(
        floating.p_relu(_singles(layer.value("input")), slopes["negative"]), slopes["finish"], dtype
    )


def _softmax(layer: Layer, dtype: str) -> NDArray[Any]:
    found = floating.softmax(_singles(layer.value("input")), layer.optional("mask"))
    return finish(found, layer.op["exponentials"]["float"], dtype)


def _layer_norm(layer: Layer, dtype: str) -> NDArray[Any]:
    norm = layer.op["norm"]["float"]
    found = floating.layer_norm(
        _singles(layer.value("input")),
        layer.value("gamma"),
        layer.value("beta"),
        center=layer.op["center"],
        epsilon=norm["epsilon"],
    )
    return finish(found, norm["finish"], dtype)


def _reduce(layer: Layer, dtype: str) -> NDArray[Any]:
    fields = layer.op["requant"]["float"]
    found = floating.reduce(
        layer.op["kind"], _singles(layer.value("input")), axes=layer.op["axes"], divisor=fields["divisor"]
    )
    return finish(found, fields["finish"], dtype)


def _dequantize(layer: Layer, dtype: str) -> NDArray[Any]:
    found = floating.dequantize(
        layer.value("input"), scale=layer.op["scale"], zero_point=layer.zero_point("input")
    )
    return finish(found, layer.op["finish"], dtype)


def _pad(layer: Layer, dtype: str) -> NDArray[Any]:
    mode = layer.op["mode"]
    if isinstance(mode, dict):
        mode = {"constant": nearest(np.array([float(mode["value"])]), dtype)[0]}
    return movement.pad(layer.value("input"), **layer.fields("before", "after"), mode=mode)


OPERATORS: dict[str, Operator] = {
    "conv": _conv,
    "mat_mul": _mat_mul,
    "max_pool": lambda layer, dtype: nearest(
        floating.max_pool(_singles(layer.value("input")), layer.op["window"]), dtype
    ),
    "average_pool": _average_pool,
    "binary": _binary,
    "unary": lambda layer, dtype: finish(
        _singles(layer.value("input")), layer.op["function"]["float"], dtype
    ),
    "rescale": lambda layer, dtype: finish(
        _singles(layer.value("input")), layer.op["requant"]["float"], dtype
    ),
    "quantize": lambda layer, _: floating.quantize(
        _singles(layer.value("input")), **layer.fields("scale", "zero_point", "lo", "hi")
    ),
    "dequantize": _dequantize,
    "p_relu": _p_relu,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "reduce": _reduce,
    "arg_max": lambda layer, _: floating.arg_max(
        _singles(layer.value("input")), **layer.fields("largest", "select_last")
    ),
    "concat": lambda layer, _: np.concatenate(
        [layer.tensor(number) for number in layer.op["inputs"]], axis=layer.op["axis"]
    ),
    "pad": _pad,
    "rearrange": lambda layer, _: movement.rearrange(
        layer.value("input"), **layer.fields("dims", "strides", "offset")
    ),
    "gather": lambda layer, _: movement.gather(layer.value("input"), **layer.fields("axis", "indices")),
    "embedding": lambda layer, _: movement.embedding(
        layer.value("table"), layer.value("indices"), layer.op.get("entry", "row")
    ),
    "resize_linear": lambda layer, dtype: nearest(
        floating.resize_linear(_singles(layer.value("input")), **layer.fields("rows", "columns")), dtype
    ),
    "insert_zeros": lambda layer, _: movement.insert_zeros(
        layer.value("input"), stride=layer.op["stride"], zero_point=0
    ),
    "select": lambda layer, _: elementwise.select(
        layer.value("condition"), layer.value("a"), layer.value("b")
    ),
}
"""By name, as the integer ones in `graph`; the second argument is the output's element type."""
