"""The graph of a tiny network, worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from models.builder import Builder
from tpuflow.calibration import Range, Ranges
from tpuflow.config import Config
from tpuflow.frontend import load
from tpuflow.lowering import Graph, lower


def layer(graph: Graph, index: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(graph.layers[index].op_json)
    return found


@pytest.mark.feature("NUM-08", "NUM-18")
def test_convolution_with_a_clamp_and_a_sum() -> None:
    b = Builder("golden")
    x = b.input("x", [1, 2, 1, 3])
    weight = np.array([[0.5, -1.27], [0.25, 0.0635]], np.float32).reshape(2, 2, 1, 1)
    y = b.node("Relu", b.node("Conv", x, b.constant(weight), b.constant(np.array([1.0, -0.5], np.float32))))
    z = b.node("Add", y, x)
    b.output(z)
    ranges = {"x": Range(-1.28, 1.27), "conv_0": Range(-9.0, 9.0), y: Range(0.0, 2.55), z: Range(-1.02, 4.08)}
    config = Config.parse({"quantize": {"output_dtype": "int8"}})
    graph = lower(load(b.model()), Ranges(ranges), config)
    tensors = {tensor.name: tensor for tensor in graph.tensors}

    # Asymmetric: S = span / 255 and Z = -128 - min / S.
    assert [tensors[name].zero_point for name in ("x", y, z)] == [0, -128, -77]
    assert np.allclose([(tensors[name].scale or [0.0])[0] for name in ("x", y, z)], [0.01, 0.01, 0.02])
    assert tensors["x"].shape == [1, 1, 3, 2]
    assert json.loads(tensors["x"].source_json or "") == {
        "name": "x",
        "shape": [1, 2, 1, 3],
        "permutation": [0, 2, 3, 1],
        "dtype": "float32",
    }

    convolution = layer(graph, 0)
    # Restricted weights: one scale per channel, 1.27 / 127 and 0.25 / 127.
    weights, bias = (graph.constant(convolution[name]) for name in ("weights", "bias"))
    assert weights.reshape(2, 2).tolist() == [[50, -127], [127, 32]]
    # b / (Sx * Sw): 1 / (0.01 * 0.01) and -0.5 / (0.01 * 0.25 / 127).
    assert bias.tolist() == [10000, -25400]
    # Sx * Sw / Sy = 0.01 = 20972 * 2^-21 and 0.25 / 127 = 16513 * 2^-23; Relu is the clamp at the zero point.
    assert convolution["epilogue"] == {
        "requant": {
            "multiplier": [20972, 16513],
            "shift": [21, 23],
            "zero_point": -128,
            "lo": -128,
            "hi": 127,
        }
    }
    assert convolution["window"] == {
        "kernel": [1, 1],
        "stride": [1, 1],
        "dilation": [1, 1],
        "pads": [0, 0, 0, 0],
    }

    addition = layer(graph, 1)
    assert (addition["kind"], addition["ka"], addition["kb"]) == ("add", 1, 1)
    # Equal scales need no multipliers; 0.01 / 0.02 is one half.
    assert addition["requant"] == {
        "multiplier": [1],
        "shift": [1],
        "zero_point": -77,
        "lo": -128,
        "hi": 127,
    }
    assert [layer.nodes for layer in graph.layers] == [["/conv_0", "/relu_1"], ["/add_2"]]
