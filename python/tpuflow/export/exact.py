"""Layers of an exported model that no pair of quantisers makes exact, in nodes of integers.

A runtime computes a float operator between quantisers anew, and even its kernels of integers multiply sums
in float32: a norm, a function, a sum of two tensors, now and then a convolution rounds to the other side than
the graph, and in a deep network each such step reaches every element. Of all layers but those that only move
codes the codes are therefore computed as the graph does:

    ... -> Q -> codes -> [Softmax in integers] -> codes -> DQ -> ...

The float nodes this replaces go. What stands between the operands a layer reads and the values the model
knows, such as another order of the same elements, is written out as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tpuflow.export.operators import OPERATORS, LayerContext
from tpuflow.export.tape import Tape

if TYPE_CHECKING:
    from tpuflow.lowering import Graph

__all__ = ["with_integers"]

INTEGERS = frozenset({"int8", "int16", "int32", "int64"})

ANEW = frozenset(
    {
        "average_pool",
        "binary",
        "conv",
        "layer_norm",
        "mat_mul",
        "p_relu",
        "reduce",
        "rescale",
        "resize_linear",
        "softmax",
        "unary",
    }
)
"""Operators that floats do not repeat to the letter."""

UNSIGNED = 128
"""Offset of exported 8-bit codes above the graph's."""


def with_integers(proto: onnx.ModelProto, graphs: Sequence[Graph]) -> None:
    """Puts the integer forms of layers into a model that has its quantisers."""
    for graph in graphs:
        _Network(proto, graph).write()
    _prune(proto.graph)


class _Tape(Tape):
    """Nodes of one layer.

    Attributes:
        narrow: Sums stay below 2^38, so that float64 holds what is rounded exactly, in fewer nodes.
    """

    narrow = False

    def requantize(
        self, value: str, *, multiplier: Any, shift: Any, zero_point: int, lo: int, hi: int
    ) -> str:
        """As of any tape."""
        if not self.narrow:
            limits = {"zero_point": zero_point, "lo": lo, "hi": hi}
            return super().requantize(value, multiplier=multiplier, shift=shift, **limits)
        factor = np.ldexp(np.asarray(multiplier, np.float64), -np.asarray(shift))
        scaled = self.op("Mul", self.cast(value, "float64"), self.constant(factor))
        bounds = (self.constant(np.array(bound - zero_point, np.float64)) for bound in (lo, hi))
        return self.add(self.cast(self.op("Round", self.op("Clip", scaled, *bounds))), zero_point)


class _Network:
    """One graph's layers beside the values of the model."""

    def __init__(self, proto: onnx.ModelProto, graph: Graph) -> None:
        self._proto = proto
        self._graph = graph
        self._constants = [tensor.is_constant for tensor in graph.tensors]
        document = json.loads(graph.to_json())
        self._tensors: list[dict[str, Any]] = document["tensors"]
        self._layers: list[dict[str, Any]] = document["layers"]
        self._inputs: list[int] = document["inputs"]
        self._makers = {layer["output"]: layer for layer in self._layers}
        self._quantizers = {
            node.output[0]: node for node in proto.graph.node if node.op_type == "QuantizeLinear"
        }

    def write(self) -> None:
        """Replaces quantisers by the integers of their layer."""
        made: dict[str, list[onnx.NodeProto]] = {}
        for number in self._inputs:
            codes = self._codes_name(number)
            if codes is not None and self._tensors[number]["dtype"] == "int16":
                made[codes] = self._input(number, codes)
        for layer in self._layers:
            codes = self._codes_name(layer["output"])
            if codes is None or codes in made or not self._is_anew(layer):
                continue
            # Nodes of a layer stand where its quantiser did, so all they need must be theirs alone.
            tape = _Tape(f"{codes}/integers")
            if (value := self._emit(layer, tape, {})) is not None:
                self._give(tape, value, layer["output"], codes)
                made[codes] = tape.nodes
                self._proto.graph.initializer.extend(tape.constants.values())
        nodes: list[onnx.NodeProto] = []
        for node in self._proto.graph.node:
            integers = made.get(node.output[0]) if node.op_type == "QuantizeLinear" else None
            nodes += [onnx.NodeProto.FromString(node.SerializeToString())] if integers is None else integers
        del self._proto.graph.node[:]
        self._proto.graph.node.extend(nodes)

    def _input(self, tensor: int, codes: str) -> list[onnx.NodeProto]:
        """Codes of an input in 16 bits: a quotient in float32 is near ties too often."""
        tape, quant = Tape(f"{codes}/integers"), self._tensors[tensor]["quant"]
        (scale,), zero = quant["scale"], quant["zero_point"]
        real = tape.cast(self._quantizers[codes].input[0], "float64")
        quotient = tape.op("Round", tape.op("Div", real, tape.constant(np.array(scale, np.float64))))
        limits = np.iinfo(np.int16)
        bounds = [tape.constant(np.array(limit - zero, np.float64)) for limit in (limits.min, limits.max)]
        kept = tape.cast(tape.op("Clip", quotient, *bounds))
        tape.name(tape.cast(tape.add(kept, zero), "int16"), codes)
        self._proto.graph.initializer.extend(tape.constants.values())
        return tape.nodes

    def _is_anew(self, layer: Mapping[str, Any]) -> bool:
        """Whether a runtime would compute a layer otherwise than the graph."""
        op = layer["op"]
        if op["op"] == "reduce":
            return op["kind"] not in {"max", "min"}
        if op["op"] == "concat" and any(requant is not None for requant in op["requants"]):
            return True
        if op["op"] in {"concat", "rearrange"}:  # of what the model has no value of: parts of one it has
            makers = (self._makers.get(each) for each in _operands(op) if self._codes_name(each) is None)
            return any(maker is not None and self._is_anew(maker) for maker in makers)
        return op["op"] in ANEW

    def _codes_name(self, tensor: int) -> str | None:
        """The value of the model's codes of a tensor; None where it has none."""
        source = self._tensors[tensor].get("source")
        if source is None or self._is_constant(tensor):
            return None
        names = (f"{source['name']}/codes", f"{source['name']}/quantised/codes")
        return next((name for name in names if name in self._quantizers), None)

    def _value(self, tensor: int, tape: _Tape, values: dict[int, str]) -> str | None:
        """The codes of a tensor, int64 in the graph's order; None where they cannot be had."""
        if tensor in values:
            return values[tensor]
        facts, codes = self._tensors[tensor], self._codes_name(tensor)
        if facts["dtype"] not in INTEGERS:
            return None
        if codes is None:
            layer = self._makers.get(tensor)
            return None if layer is None else self._emit(layer, tape, values)
        source = facts["source"]
        value = tape.add(tape.cast(codes), -UNSIGNED if facts["dtype"] == "int8" else 0)
        if source["shape"]:
            value = tape.op("Transpose", value, perm=source["permutation"])
        values[tensor] = tape.reshape(value, facts["shape"])
        return values[tensor]

    def _emit(self, layer: Mapping[str, Any], tape: _Tape, values: dict[int, str]) -> str | None:
        """The codes of a layer's result, int64 in the graph's order, kept in `values`; None as above."""
        op, output = layer["op"], layer["output"]
        if op["op"] not in OPERATORS or self._tensors[output]["dtype"] not in INTEGERS:
            return None
        for number in _operands(op):
            if not self._is_constant(number) and self._value(number, tape, values) is None:
                return None
        context = LayerContext(layer["name"], op, tape, self._tensors, values, self._graph.constant)
        narrow = all(self._tensors[each]["dtype"] == "int8" for each in _operands(op))
        write = LINEAR[op["op"]] if op["op"] in LINEAR and narrow else OPERATORS[op["op"]]
        tape.narrow = op["op"] != "layer_norm" and (narrow or op["op"] not in {"reduce", *LINEAR})
        values[output] = tape.reshape(write(context), self._tensors[output]["shape"])
        return values[output]

    def _give(self, tape: _Tape, value: str, tensor: int, codes: str) -> None:
        """Codes in the graph's order become those of the model."""
        facts = self._tensors[tensor]
        shape, permutation = facts["source"]["shape"], facts["source"]["permutation"]
        value = tape.reshape(value, [shape[axis] for axis in permutation])
        if shape:
            value = tape.op("Transpose", value, perm=np.argsort(permutation).tolist())
        if facts["dtype"] == "int8":
            value = tape.cast(tape.add(value, UNSIGNED), "uint8")
        else:
            value = tape.cast(value, facts["dtype"])
        tape.name(value, codes)

    def _is_constant(self, tensor: int) -> bool:
        return self._constants[tensor]


def _unsigned_codes(layer: LayerContext, field: str) -> tuple[str, str]:
    """8-bit codes counted from zero, and their zero point: the kind no runtime's kernels saturate with."""
    tape, zero = layer.tape, np.array(layer.zero_point(layer.op[field]) + UNSIGNED, np.uint8)
    if layer.is_constant(field):
        codes = (layer.elements(layer.op[field]).astype(np.int64) + UNSIGNED).astype(np.uint8)
        return tape.constant(codes), tape.constant(zero)
    return tape.cast(tape.add(layer.value(field), UNSIGNED), "uint8"), tape.constant(zero)


def _conv(layer: LayerContext) -> str:
    """A convolution of 8-bit codes by the operator for them, whose images have their channels first."""
    tape, op, window = layer.tape, layer.op, layer.op["window"]
    (x, x_zero), (w, w_zero) = _unsigned_codes(layer, "input"), _unsigned_codes(layer, "weights")
    images, kernels = (tape.op("Transpose", each, perm=[0, 3, 1, 2]) for each in (x, w))
    sums = tape.op(
        "ConvInteger",
        images,
        kernels,
        x_zero,
        w_zero,
        kernel_shape=window["kernel"],
        strides=window["stride"],
        dilations=window["dilation"],
        pads=window["pads"],
        group=op["groups"],
    )
    return layer.finish(tape.cast(tape.op("Transpose", sums, perm=[0, 2, 3, 1])), layer.value("bias"))


def _mat_mul(layer: LayerContext) -> str:
    """A product of 8-bit codes by the operator for them."""
    tape = layer.tape
    (a, a_zero), (b, b_zero) = _unsigned_codes(layer, "a"), _unsigned_codes(layer, "b")
    sums = tape.cast(tape.op("MatMulInteger", a, b, a_zero, b_zero))
    return layer.finish(sums, None if layer.op.get("bias") is None else layer.value("bias"))


LINEAR = {"conv": _conv, "mat_mul": _mat_mul}
"""Linear operators of 8-bit codes."""


def _operands(op: Mapping[str, Any]) -> list[int]:
    """Tensors an operator reads, without those of its epilogue."""
    fields = ("input", "a", "b", "weights", "condition", "indices", "table")
    found = [op[name] for name in fields if isinstance(op.get(name), int)]
    return [*found, *op.get("inputs", ())]


def _prune(graph: onnx.GraphProto) -> None:
    """Takes away nodes and constants nothing needs any more."""
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(name for name in node.input if name)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    del graph.node[:]
    graph.node.extend(nodes)
    constants = [value for value in graph.initializer if value.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(constants)
