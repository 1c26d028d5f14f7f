"""An int8 graph as a LiteRT file, for measuring time: the same shapes, weights, scales and zero points.

    python lite.py GRAPH.tpuq OUT.tflite

Padding is placed as LiteRT's SAME does, and a table behind a convolution becomes a logistic function and a
product (the swish it stands for in EfficientNet) or, behind a single cell, the logistic function alone:
results differ from the graph's, the work does not. Operators: convolutions, matrix products with constants,
sums and products, pooling, concatenation.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow import _core


class Writer:
    """A model in the making; `schema` is LiteRT's generated module, whose classes it fills."""

    def __init__(self, graph: _core.Graph, schema: Any) -> None:
        self.graph, self.schema = graph, schema
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.buffers = [schema.BufferT()]
        self.model.operatorCodes = []
        self.net = schema.SubGraphT()
        self.net.tensors, self.net.operators = [], []
        self.model.subgraphs = [self.net]
        self.numbers: dict[int, int] = {}

    def tensor(
        self,
        shape: tuple[int, ...],
        dtype: int,
        scales: list[float],
        zero: int,
        data: NDArray[Any] | None = None,
        axis: int = 0,
    ) -> int:
        """Adds a tensor; its number."""
        tensor = self.schema.TensorT()
        tensor.name = f"t{len(self.net.tensors)}".encode()
        tensor.shape, tensor.type, tensor.buffer = list(shape), dtype, 0
        if data is not None:
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            tensor.buffer = len(self.model.buffers) - 1
        if scales:
            tensor.quantization = self.schema.QuantizationParametersT()
            tensor.quantization.scale = [float(scale) for scale in scales]
            tensor.quantization.zeroPoint = [zero] * len(scales)
            tensor.quantization.quantizedDimension = axis
        self.net.tensors.append(tensor)
        return len(self.net.tensors) - 1

    def value(self, number: int) -> int:
        """An activation of the graph."""
        if number not in self.numbers:
            tensor = self.graph.tensors[number]
            scale = list(tensor.scale or [1.0])
            shape, int8 = tuple(tensor.shape), self.schema.TensorType.INT8
            self.numbers[number] = self.tensor(shape, int8, scale, max(-128, min(127, tensor.zero_point)))
        return self.numbers[number]

    def operator(
        self, name: str, version: int, inputs: list[int], output: int, kind: str, **options: Any
    ) -> None:
        """Adds an operator with options of a kind."""
        code = self.schema.OperatorCodeT()
        code.builtinCode = getattr(self.schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), version
        operator = self.schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes)
        self.model.operatorCodes.append(code)
        operator.inputs, operator.outputs = inputs, [output]
        if kind:
            operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, kind)
            operator.builtinOptions = getattr(self.schema, kind + "T")()
            for key, value in options.items():
                setattr(operator.builtinOptions, key, value)
        self.net.operators.append(operator)

    def window(self, window: dict[str, Any]) -> dict[str, Any]:
        """Padding and strides."""
        same = self.schema.Padding.SAME if any(window["pads"]) else self.schema.Padding.VALID
        return {"padding": same, "strideH": window["stride"][0], "strideW": window["stride"][1]}

    def linear(self, layer: _core.Layer, op: dict[str, Any]) -> None:
        """A convolution or a product with a constant matrix."""
        graph, tensors = self.graph, self.graph.tensors
        x, w, bias = layer.operands[:3]
        codes = graph.constant(w)
        scales = list(tensors[w].scale or [1.0])
        steps = [scale * (tensors[x].scale or [1.0])[0] for scale in scales]
        int8, int32 = self.schema.TensorType.INT8, self.schema.TensorType.INT32
        biases = self.tensor(
            tuple(tensors[bias].shape), int32, steps, 0, graph.constant(bias).astype(np.int32)
        )
        tables = len(layer.operands) > 3
        out = self.value(layer.output)
        shape = tuple(tensors[layer.output].shape)
        before = self.tensor(shape, int8, [0.05], 0) if tables else out
        if layer.op == "mat_mul":
            weights = self.tensor(codes.T.shape, int8, scales, 0, codes.T)
            inputs = [self.value(x), weights, biases]
            self.operator("FULLY_CONNECTED", 12, inputs, before, "FullyConnectedOptions", keepNumDims=True)
        elif op["groups"] > 1:
            filters = codes.reshape(codes.shape[:3]).transpose(1, 2, 0)[np.newaxis]
            weights = self.tensor(filters.shape, int8, scales, 0, filters, axis=3)
            options = self.window(op["window"]) | {"depthMultiplier": 1}
            inputs = [self.value(x), weights, biases]
            self.operator("DEPTHWISE_CONV_2D", 3, inputs, before, "DepthwiseConv2DOptions", **options)
        else:
            weights = self.tensor(codes.shape, int8, scales, 0, codes)
            options = self.window(op["window"])
            self.operator("CONV_2D", 3, [self.value(x), weights, biases], before, "Conv2DOptions", **options)
        if tables:
            gate = self.tensor(shape, int8, [1 / 256], -128)
            if shape[1:3] == (1, 1):
                self.net.tensors[out].quantization.scale = [1 / 256]
                self.net.tensors[out].quantization.zeroPoint = [-128]
                self.operator("LOGISTIC", 2, [before], out, "")
            else:
                self.operator("LOGISTIC", 2, [before], gate, "")
                self.operator("MUL", 2, [before, gate], out, "MulOptions")

    def layer(self, layer: _core.Layer) -> None:
        """Any operator."""
        op = json.loads(layer.op_json)
        out = self.value(layer.output)
        if layer.op in ("conv", "mat_mul"):
            self.linear(layer, op)
        elif layer.op in ("add", "mul"):
            inputs = [self.value(number) for number in layer.operands]
            self.operator(layer.op.upper(), 2, inputs, out, layer.op.title() + "Options")
        elif layer.op == "concat":
            inputs = [self.value(number) for number in layer.operands]
            self.operator("CONCATENATION", 2, inputs, out, "ConcatenationOptions", axis=op["axis"])
        elif layer.op in ("max_pool", "average_pool"):
            # Both sides of a pooling have one scale.
            source = self.value(layer.operands[0])
            self.net.tensors[out].quantization = self.net.tensors[source].quantization
            height, width = op["window"]["kernel"]
            options = self.window(op["window"]) | {"filterHeight": height, "filterWidth": width}
            self.operator(layer.op.upper() + "_2D", 2, [source], out, "Pool2DOptions", **options)
        else:
            raise SystemExit(f"{layer.name}: {layer.op} has no form in LiteRT here")

    def bytes(self) -> bytes:
        """The file."""
        flatbuffers = import_module("flatbuffers")
        for layer in self.graph.layers:
            self.layer(layer)
        self.net.inputs = [self.value(number) for number in self.graph.inputs]
        self.net.outputs = [self.value(number) for number in self.graph.outputs]
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def write(graph: Path, target: Path) -> None:
    """Writes the LiteRT form of a graph."""
    schema = import_module("ai_edge_litert.schema_py_generated")
    target.write_bytes(Writer(_core.Graph.load(graph), schema).bytes())


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
