"""In which order inputs are stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from onnx import shape_inference

from models.builder import Builder
from tpuflow.lowering.layout import input_order
from tpuflow.lowering.ops.elementwise import laid_out
from tpuflow.lowering.view import View

DEEP = 3000
"""Layers, far more than Python allows calls within calls."""


def behind_elements(b: Builder, x: str) -> str:
    for _ in range(DEEP):
        x = b.node("Relu", x)
    return b.conv(x, 4)


def behind_a_transpose(b: Builder, x: str) -> str:
    return b.conv(b.node("Transpose", b.node("Relu", x), perm=[0, 3, 1, 2]), 4)


def second_reader(b: Builder, x: str) -> str:
    b.output(b.node("Reshape", x, b.constant(np.array([1, 512]))))
    return b.conv(b.node("Relu", x), 4)


def no_reader_that_cares(b: Builder, x: str) -> str:
    return b.node("Softmax", b.node("Add", x, b.node("Relu", x)), axis=1)


@pytest.mark.parametrize(
    ("network", "order"),
    [
        (behind_elements, (0, 2, 3, 1)),
        (behind_a_transpose, (0, 1, 2, 3)),
        (second_reader, (0, 2, 3, 1)),
        (no_reader_that_cares, (0, 1, 2, 3)),
    ],
)
def test_inputs_lie_as_their_first_reader_that_cares_wants(
    network: Callable[[Builder, str], str], order: tuple[int, ...]
) -> None:
    b = Builder("network")
    b.output(network(b, b.input("x", [1, 8, 8, 8])))
    graph = ir.from_proto(shape_inference.infer_shapes(b.model())).graph
    assert input_order(graph.inputs[0]) == order


def test_a_constant_that_is_one_number_is_not_spread() -> None:
    shape = (1 << 20, 1 << 20)  # 8 TiB
    assert laid_out(np.full((1, 1), 2.5), shape, View.dense(shape)).tolist() == [2.5]
