"""Builds ONNX graphs node by node, with seeded weights, for the networks of the end-to-end tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, TypeProto, defs, helper, numpy_helper, shape_inference

OPSET = 17
IR_VERSION = 8


class Builder:
    """A graph under construction; values are known by name, their shapes by node-wise inference."""

    def __init__(self, name: str, seed: int = 0):
        self.name = name
        self.rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._types: dict[str, TypeProto] = {}

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape of `value`; a symbolic size counts as 1."""
        return tuple(size.dim_value or 1 for size in self._types[value].tensor_type.shape.dim)

    def input(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        """A graph input."""
        info = helper.make_tensor_value_info(name, dtype, shape)
        self._inputs.append(info)
        self._types[name] = info.type
        return name

    def constant(self, value: NDArray[Any] | np.float32, name: str | None = None) -> str:
        """An initialiser."""
        name = name or f"constant_{len(self._constants)}"
        tensor = numpy_helper.from_array(np.asarray(value), name)
        self._constants[name] = tensor
        self._types[name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        return name

    def weight(self, *shape: int, fan_in: int) -> str:
        """A normal initialiser with variance 2 / `fan_in`."""
        return self.constant((self.rng.standard_normal(shape) * math.sqrt(2 / fan_in)).astype(np.float32))

    def spread(self, *shape: int, low: float = -0.5, high: float = 0.5) -> str:
        """A uniform initialiser, for biases, slopes and factors."""
        return self.constant(self.rng.uniform(low, high, shape).astype(np.float32))

    def integers(self, *values: int) -> str:
        """A one-dimensional int64 initialiser, for axes, sizes and pads."""
        return self.constant(np.array(values, np.int64))

    def nodes(self, operator: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """A node with `count` outputs, named after its operator; an empty input is an absent one."""
        stem = f"{operator.lower()}_{len(self._nodes)}"
        outputs = [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]
        node = helper.make_node(operator, inputs, outputs, name=f"/{stem}", **attributes)
        self._nodes.append(node)
        self._types |= shape_inference.infer_node_outputs(
            defs.get_schema(operator, OPSET),
            node,
            {name: self._types[name] for name in inputs if name},
            {name: self._constants[name] for name in inputs if name in self._constants},
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        return outputs

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        return self.nodes(operator, inputs, 1, **attributes)[0]

    def output(self, *values: str) -> None:
        """Graph outputs, in this order."""
        self._outputs += [helper.make_value_info(value, self._types[value]) for value in values]

    def model(self) -> onnx.ModelProto:
        """The finished model, checked."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._constants.values())
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    # What the networks below share.

    def conv(
        self,
        x: str,
        outputs: int,
        kernel: tuple[int, int] = (3, 3),
        *,
        pads: tuple[int, int, int, int] = (0, 0, 0, 0),
        bias: bool = True,
        group: int = 1,
        **attributes: Any,
    ) -> str:
        """Conv with `outputs` channels; `pads` is top, left, bottom, right."""
        fan_in = self.shape(x)[1] // group
        inputs = [x, self.weight(outputs, fan_in, *kernel, fan_in=fan_in * math.prod(kernel))]
        if bias:
            inputs.append(self.spread(outputs))
        return self.node(
            "Conv", *inputs, kernel_shape=list(kernel), pads=list(pads), group=group, **attributes
        )

    def batch_norm(self, x: str) -> str:
        """BatchNormalization with positive scale and variance."""
        c = self.shape(x)[1]
        scale, variance = self.spread(c, low=0.5, high=1.5), self.spread(c, low=0.5, high=2.0)
        return self.node("BatchNormalization", x, scale, self.spread(c), self.spread(c), variance)

    def linear(self, x: str, outputs: int) -> str:
        """MatMul and Add on the last axis, as exporters write a dense layer on tokens."""
        k = self.shape(x)[-1]
        return self.node(
            "Add", self.node("MatMul", x, self.weight(k, outputs, fan_in=2 * k)), self.spread(outputs)
        )

    def gemm(self, x: str, outputs: int) -> str:
        """Flatten and Gemm."""
        x = self.node("Flatten", x)
        k = self.shape(x)[1]
        return self.node("Gemm", x, self.weight(outputs, k, fan_in=2 * k), self.spread(outputs), transB=1)

    def relu6(self, x: str) -> str:
        """Clip to 0..6."""
        return self.node("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))

    def silu(self, x: str) -> str:
        """x * sigmoid(x)."""
        return self.node("Mul", x, self.node("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """The exact GELU, decomposed: x / 2 * (1 + erf(x / sqrt 2))."""
        inner = self.node("Erf", self.node("Div", x, self.constant(np.float32(math.sqrt(2)))))
        outer = self.node("Add", inner, self.constant(np.float32(1)))
        return self.node("Mul", self.node("Mul", x, outer), self.constant(np.float32(0.5)))

    def layer_norm(self, x: str) -> str:
        """LayerNormalization over the last axis."""
        c = self.shape(x)[-1]
        return self.node("LayerNormalization", x, self.spread(c, low=0.5, high=1.5), self.spread(c), axis=-1)


def small_classifier() -> Builder:
    """A convolution, a mean and a product: `image` of 3 channels and 6 x 5 pixels, a batch of any size."""
    b = Builder("net")
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 6, 5]), 8, pads=(1, 1, 1, 1)))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 4))
    return b


def samples(model: onnx.ModelProto, count: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Inputs for `model` as every command takes them, [count, ...]: normal floats, or indices below 20."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, NDArray[Any]] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = (count, *(size.dim_value for size in kind.shape.dim[1:]))
        if kind.elem_type == TensorProto.FLOAT:
            arrays[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            arrays[value.name] = rng.integers(0, 20, shape).astype(
                helper.tensor_dtype_to_np_dtype(kind.elem_type)
            )
    return arrays
