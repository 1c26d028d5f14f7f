"""A small decoder with open dimensions, as exporters write it and as onnxruntime's own builder does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from frontend.graphs import Node, array, graph, integers

VOCABULARY, WIDTH, HEADS, SHARED, SIZE, CONTEXT = 23, 32, 4, 2, 16, 16
MS = "com.microsoft"
HALF = SIZE // 2
ANGLES = 100.0 ** -(np.arange(HALF, dtype=np.float32) / HALF)


def decoder(
    style: str, layers: int = 2, masked: float = -1e9, *, gated: bool = False, fused: bool = False
) -> onnx.ModelProto:
    """A decoder: "exported" in operators of ONNX, "contributed" in those of onnxruntime.

    What a mask adds to scores is `masked`; `gated` adds `y sigmoid(y)`, as feed-forward layers have it; with
    `fused` queries, keys and values are parts of one product.
    """
    exported = style == "exported"
    make = _Exported() if exported else _Contributed()
    inputs: dict[str, list[int | str]] = {
        "input_ids": [1, "sequence"],
        "attention_mask": [1, "total"],
        **({"position_ids": [1, "sequence"]} if exported else {}),
    }
    outputs = ["logits"]
    make.constant("embedding", array(VOCABULARY, WIDTH, seed=1))
    make.add("Gather", "embedding input_ids", "x0")
    make.begin()
    if exported:
        make.constant("low", np.float32(masked))
    for layer in range(layers):
        for kind in ("key", "value"):
            inputs[f"past_key_values.{layer}.{kind}"] = [1, SHARED, "past", SIZE]
            outputs.append(f"present.{layer}.{kind}")
        make.norm(f"x{layer}", f"n{layer}")
        parts = (("q", HEADS), ("k", SHARED), ("v", SHARED))
        weights = [
            array(
                WIDTH, heads * SIZE, seed=hash_of(name, layer), scale=0.3 if name == "q" or not fused else 3
            )
            for name, heads in parts
        ]
        if fused:
            make.constant(f"w{layer}", np.concatenate(weights, axis=1))
            make.constant(f"sizes{layer}", integers(*(heads * SIZE for _, heads in parts)))
            make.add("MatMul", f"n{layer} w{layer}", f"qkv{layer}")
            make.add("Split", f"qkv{layer} sizes{layer}", f"q{layer} k{layer} v{layer}", axis=2)
        for (name, _), weight in zip(() if fused else parts, weights, strict=not fused):
            make.constant(f"w{name}{layer}", weight)
            make.add("MatMul", f"n{layer} w{name}{layer}", f"{name}{layer}")
        make.attention(layer)
        make.constant(f"wo{layer}", array(HEADS * SIZE, WIDTH, seed=40 + layer, scale=0.2))
        make.add("MatMul", f"a{layer} wo{layer}", f"o{layer}")
        mixed = f"o{layer}"
        if gated:
            make.add("Sigmoid", mixed, f"s{layer}")
            mixed = f"g{layer}"
            make.add("Mul", f"o{layer} s{layer}", mixed)
        make.add("Add", f"x{layer} {mixed}", f"x{layer + 1}")
    make.norm(f"x{layers}", "final")
    make.constant("head", array(WIDTH, VOCABULARY, seed=60, scale=0.3))
    make.add("MatMul", "final head", "logits")
    types = dict.fromkeys(("input_ids", "attention_mask", "position_ids"), TensorProto.INT64)
    domains = [] if exported else [MS]
    return graph(make.nodes, inputs, outputs, make.constants, opset=17, types=types, domains=domains)


def hash_of(name: str, layer: int) -> int:
    """A seed."""
    return ord(name) + 1000 * layer


class _Maker:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Any] = {}

    def constant(self, name: str, value: Any) -> None:
        self.constants[name] = value

    def add(self, operator: str, inputs: str, outputs: str, **attributes: Any) -> None:
        self.nodes.append((operator, inputs, outputs, attributes))


class _Exported(_Maker):
    """Operators of ONNX: rotary positions of `position_ids`, a mask by positions of keys and queries."""

    def begin(self) -> None:
        self.constants |= {
            "angles": ANGLES, "zero": np.int64(0), "one": np.int64(1), "none": np.float32(0),
            "last": integers(-1), "front": integers(0), "second": integers(1), "third": integers(2),
            "heads_first": integers(1), "by_head": integers(0, 0, -1, SIZE), "whole": integers(0, 0, -1),
            "half": integers(HALF), "end": integers(SIZE), "scale": np.float32(SIZE**-0.5),
            "eps": np.float32(1e-5), "joined": integers(0, HEADS, -1, SIZE),
            "two": np.float32(2),
        }  # fmt: skip
        self.add("Cast", "position_ids", "places", to=TensorProto.FLOAT)
        self.add("Unsqueeze", "places last", "column")
        self.add("Mul", "column angles", "half_angles")
        self.add("Concat", "half_angles half_angles", "all_angles", axis=-1)
        self.add("Unsqueeze", "all_angles heads_first", "by_place")
        self.add("Cos", "by_place", "cos")
        self.add("Sin", "by_place", "sin")
        self.add("Shape", "input_ids", "s", start=1, end=2)
        self.add("Shape", "past_key_values.0.key", "p", start=2, end=3)
        self.add("Add", "s p", "t")
        for name in "spt":
            self.add("Squeeze", name, f"{name}_number")
        self.add("Range", "zero t_number one", "keys")
        self.add("Range", "zero s_number one", "new")
        self.add("Add", "new p_number", "queries")
        self.add("Unsqueeze", "queries second", "queries_column")
        self.add("LessOrEqual", "keys queries_column", "seen")
        self.add("Greater", "attention_mask zero", "there")
        self.add("And", "seen there", "allowed")
        self.add("Where", "allowed none low", "mask")

    def norm(self, x: str, y: str) -> None:
        self.constant(f"{y}_w", np.abs(array(WIDTH, seed=len(y))) + 0.5)
        self.add("Pow", f"{x} two", f"{y}_square")
        self.add("ReduceMean", f"{y}_square", f"{y}_mean", axes=[-1])
        self.add("Add", f"{y}_mean eps", f"{y}_sum")
        self.add("Sqrt", f"{y}_sum", f"{y}_root")
        self.add("Div", f"{x} {y}_root", f"{y}_one")
        self.add("Mul", f"{y}_one {y}_w", y)

    def _turned(self, x: str) -> str:
        self.add("Slice", f"{x} half end last", f"{x}_second")
        self.add("Slice", f"{x} front half last", f"{x}_first")
        self.add("Neg", f"{x}_second", f"{x}_minus")
        self.add("Concat", f"{x}_minus {x}_first", f"{x}_quarter", axis=-1)
        self.add("Mul", f"{x} cos", f"{x}_cos")
        self.add("Mul", f"{x}_quarter sin", f"{x}_sin")
        self.add("Add", f"{x}_cos {x}_sin", f"{x}_turned")
        return f"{x}_turned"

    def attention(self, layer: int) -> None:
        for name in "qkv":
            self.add("Reshape", f"{name}{layer} by_head", f"{name}{layer}_r")
            self.add("Transpose", f"{name}{layer}_r", f"{name}{layer}_h", perm=[0, 2, 1, 3])
        query, key = self._turned(f"q{layer}_h"), self._turned(f"k{layer}_h")
        for kind, new in (("key", key), ("value", f"v{layer}_h")):
            self.add("Concat", f"past_key_values.{layer}.{kind} {new}", f"present.{layer}.{kind}", axis=2)
            self.add("Unsqueeze", f"present.{layer}.{kind} third", f"{kind}{layer}_u")
            self.add("Concat", f"{kind}{layer}_u {kind}{layer}_u", f"{kind}{layer}_c", axis=2)
            self.add("Reshape", f"{kind}{layer}_c joined", f"{kind}{layer}_all")
        self.add("Transpose", f"key{layer}_all", f"key{layer}_t", perm=[0, 1, 3, 2])
        self.add("MatMul", f"{query} key{layer}_t", f"scores{layer}")
        self.add("Mul", f"scores{layer} scale", f"scaled{layer}")
        self.add("Add", f"scaled{layer} mask", f"masked{layer}")
        self.add("Softmax", f"masked{layer}", f"shares{layer}", axis=-1)
        self.add("MatMul", f"shares{layer} value{layer}_all", f"mixed{layer}")
        self.add("Transpose", f"mixed{layer}", f"back{layer}", perm=[0, 2, 1, 3])
        self.add("Reshape", f"back{layer} whole", f"a{layer}")


class _Contributed(_Maker):
    """Operators of onnxruntime: lengths counted from the mask, rotary positions within attention."""

    def begin(self) -> None:
        places = np.arange(CONTEXT, dtype=np.float32)[:, None] * ANGLES
        self.constants |= {
            "cos": np.cos(places), "sin": np.sin(places), "one": np.int64(1), "along": integers(1),
        }  # fmt: skip
        self.add("ReduceSum", "attention_mask along", "sum", keepdims=0)
        self.add("Sub", "sum one", "less")
        self.add("Cast", "less", "lengths", to=TensorProto.INT32)
        self.add("Shape", "attention_mask", "size", start=1, end=2)
        self.add("Squeeze", "size", "size_number")
        self.add("Cast", "size_number", "total", to=TensorProto.INT32)

    def norm(self, x: str, y: str) -> None:
        self.constant(f"{y}_w", np.abs(array(WIDTH, seed=len(y))) + 0.5)
        self.add("SimplifiedLayerNormalization", f"{x} {y}_w", y, axis=-1, epsilon=1e-5, stash_type=1)

    def attention(self, layer: int) -> None:
        past, present = f"past_key_values.{layer}", f"present.{layer}"
        self.add(
            f"{MS}:GroupQueryAttention",
            f"q{layer} k{layer} v{layer} {past}.key {past}.value lengths total cos sin",
            f"a{layer} {present}.key {present}.value",
            num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1,
        )  # fmt: skip
