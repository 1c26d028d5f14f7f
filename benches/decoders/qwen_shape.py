"""Writes a decoder of the shape of Qwen3-0.6B with random weights, as ONNX with external data.

    python benches/decoders/qwen_shape.py FOLDER [--layers 28]

28 layers, width 1024, 16 heads of 128 with 8 of keys and values, norms of queries and keys by head, rotary
positions, feed-forward 3072, vocabulary 151936 with tied embeddings. FOLDER gets `model.onnx`, its weights
(2.4 GB of float32) in `model.data`, and `calib.npz`, four rows of 128 tokens. Symbolic sequence and past, as
exporters write them.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, GROUPS, SIZE, FORWARD, VOCABULARY = 1024, 16, 8, 128, 3072, 151_936
THETA, EPSILON, OPSET = 1e6, 1e-6, 17


class Writer:
    """Nodes of a graph, and its weights as they go to a file."""

    def __init__(self, data: IO[bytes], name: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._data, self._name = data, name
        self._random = np.random.default_rng(0)

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Adds a node of one output."""
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """A small constant, in the model itself."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name: str, *shape: int, spread: float | None = None) -> str:
        """Normal numbers, or with no spread numbers around one, in the file beside the model."""
        array = self._random.standard_normal(shape, np.float32)
        array = array * np.float32(0.1) + np.float32(1) if spread is None else array * np.float32(spread)
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in [
            ("location", self._name),
            ("offset", self._data.tell()),
            ("length", array.nbytes),
        ]:
            tensor.external_data.add(key=key, value=str(value))
        self._data.write(array.tobytes())
        self.constants.append(tensor)
        return name

    def product(self, x: str, name: str, terms: int, columns: int) -> str:
        """`x` times a matrix of its own."""
        return self.node("MatMul", x, self.weight(name, terms, columns, spread=1 / math.sqrt(terms)))

    def norm(self, x: str, name: str, width: int) -> str:
        """Normalisation by the root of the mean square."""
        square = self.node("Mul", x, x)
        mean = self.node("ReduceMean", square, axes=[-1], keepdims=1)
        root = self.node("Sqrt", self.node("Add", mean, self.constant(EPSILON)))
        return self.node("Mul", self.node("Div", x, root), self.weight(name, width))

    def heads(self, x: str, count: int) -> str:
        """`[1, s, count * SIZE]` as `[1, count, s, SIZE]`."""
        apart = self.node("Reshape", x, self.constant([0, 0, count, SIZE], np.int64))
        return self.node("Transpose", apart, perm=[0, 2, 1, 3])

    def rotated(self, x: str, cosine: str, sine: str) -> str:
        """Rotary positions: halves turned against each other."""
        axes, half = self.constant([3], np.int64), self.constant([SIZE // 2], np.int64)
        start, end = self.constant([0], np.int64), self.constant([SIZE], np.int64)
        first, second = self.node("Slice", x, start, half, axes), self.node("Slice", x, half, end, axes)
        turned = self.node("Concat", self.node("Neg", second), first, axis=-1)
        return self.node("Add", self.node("Mul", x, cosine), self.node("Mul", turned, sine))


def layer(w: Writer, x: str, index: int, angles: tuple[str, str], mask: str) -> str:
    """One layer: attention with a cache, then the gated feed-forward part."""
    normed = w.norm(x, f"layers.{index}.norm", WIDTH)
    query = w.heads(w.product(normed, f"layers.{index}.q", WIDTH, HEADS * SIZE), HEADS)
    key = w.heads(w.product(normed, f"layers.{index}.k", WIDTH, GROUPS * SIZE), GROUPS)
    value = w.heads(w.product(normed, f"layers.{index}.v", WIDTH, GROUPS * SIZE), GROUPS)
    query = w.rotated(w.norm(query, f"layers.{index}.q_norm", SIZE), *angles)
    key = w.rotated(w.norm(key, f"layers.{index}.k_norm", SIZE), *angles)
    both = []
    for kind, new in [("key", key), ("value", value)]:
        past = f"past_key_values.{index}.{kind}"
        present = w.node("Concat", past, new, axis=2, output=f"present.{index}.{kind}")
        # A head of keys and values for every two of queries.
        repeated = w.node("Unsqueeze", present, w.constant([2], np.int64))
        repeated = w.node("Expand", repeated, w.constant([1, 1, HEADS // GROUPS, 1, 1], np.int64))
        both.append(w.node("Reshape", repeated, w.constant([1, HEADS, -1, SIZE], np.int64)))
    scores = w.node("MatMul", query, w.node("Transpose", both[0], perm=[0, 1, 3, 2]))
    scores = w.node("Mul", scores, w.constant(1 / math.sqrt(SIZE)))
    shares = w.node("Softmax", w.node("Add", scores, mask), axis=-1)
    summed = w.node("Transpose", w.node("MatMul", shares, both[1]), perm=[0, 2, 1, 3])
    joined = w.node("Reshape", summed, w.constant([0, 0, HEADS * SIZE], np.int64))
    x = w.node("Add", x, w.product(joined, f"layers.{index}.o", HEADS * SIZE, WIDTH))
    normed = w.norm(x, f"layers.{index}.forward_norm", WIDTH)
    gate = w.product(normed, f"layers.{index}.gate", WIDTH, FORWARD)
    gate = w.node("Mul", gate, w.node("Sigmoid", gate))
    up = w.product(normed, f"layers.{index}.up", WIDTH, FORWARD)
    return w.node("Add", x, w.product(w.node("Mul", gate, up), f"layers.{index}.down", FORWARD, WIDTH))


def angles_of(w: Writer) -> tuple[str, str]:
    """Cosines and sines of the positions, `[1, 1, s, SIZE]`."""
    rates = 1 / THETA ** (np.arange(0, SIZE, 2) / SIZE)
    position = w.node("Cast", "position_ids", to=TensorProto.FLOAT)
    position = w.node("Unsqueeze", position, w.constant([1, 3], np.int64))
    angle = w.node("Mul", position, w.constant(rates.reshape(1, 1, 1, -1)))
    angle = w.node("Concat", angle, angle, axis=-1)
    return w.node("Cos", angle), w.node("Sin", angle)


def mask_of(w: Writer) -> str:
    """What is added to scores, `[1, 1, s, total]`: nothing for keys up to the query's position that count."""
    total = w.node("Shape", "attention_mask", start=1, end=2)
    sequence = w.node("Shape", "input_ids", start=1, end=2)
    zero, one = w.constant(0, np.int64), w.constant(1, np.int64)
    places = w.node("Range", zero, w.node("Squeeze", total), one)
    past = w.node("Squeeze", w.node("Sub", total, sequence))
    own = w.node("Add", w.node("Range", zero, w.node("Squeeze", sequence), one), past)
    own = w.node("Unsqueeze", own, w.constant([1], np.int64))
    causal = w.node("LessOrEqual", w.node("Unsqueeze", places, w.constant([0], np.int64)), own)
    valid = w.node("Cast", "attention_mask", to=TensorProto.BOOL)
    valid = w.node("Unsqueeze", valid, w.constant([1, 2], np.int64))
    seen = w.node("And", w.node("Unsqueeze", causal, w.constant([0, 1], np.int64)), valid)
    return w.node("Where", seen, w.constant(0), w.constant(np.finfo(np.float32).min))


def write(folder: Path, layers: int) -> None:
    """The model, its weights and calibration tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "model.data").open("wb") as data:
        w = Writer(data, "model.data")
        embedding = w.weight("embedding", VOCABULARY, WIDTH, spread=1 / math.sqrt(WIDTH))
        x = w.node("Gather", embedding, "input_ids")
        angles, mask = angles_of(w), mask_of(w)
        for index in range(layers):
            x = layer(w, x, index, angles, mask)
        logits = w.node("Transpose", embedding, perm=[1, 0])
        w.node("MatMul", w.norm(x, "norm", WIDTH), logits, output="logits")
    info = helper.make_tensor_value_info
    tokens = [("input_ids", "sequence"), ("position_ids", "sequence"), ("attention_mask", "total")]
    inputs = [info(name, TensorProto.INT64, [1, size]) for name, size in tokens]
    outputs = [info("logits", TensorProto.FLOAT, [1, "sequence", VOCABULARY])]
    for index in range(layers):
        for kind in ("key", "value"):
            cache = [f"past_key_values.{index}.{kind}", f"present.{index}.{kind}"]
            shapes = [[1, GROUPS, size, SIZE] for size in ("past", "total")]
            inputs.append(info(cache[0], TensorProto.FLOAT, shapes[0]))
            outputs.append(info(cache[1], TensorProto.FLOAT, shapes[1]))
    graph = helper.make_graph(w.nodes, "qwen_shape", inputs, outputs, w.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    rows = np.random.default_rng(1).integers(0, VOCABULARY, (4, 128))
    np.savez(folder / "calib.npz", ids=rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=28)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.layers)
