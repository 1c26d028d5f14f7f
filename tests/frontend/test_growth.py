"""How the work of an import grows with the network: in calls, which are the same on every computer."""

from __future__ import annotations

import cProfile
import math
import pstats
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.builder import Builder
from tpuflow.frontend import inference, load
from tpuflow.frontend.values import shape_of, use_count

if TYPE_CHECKING:
    from collections.abc import Callable


def chain(count: int) -> onnx.ModelProto:
    """Convolutions with a scale to be folded, one after the other."""
    b = Builder("chain")
    x = b.input("x", [1, 4, 4, 4])
    for _ in range(count):
        x = b.node("Relu", b.node("Mul", b.conv(x, 4, (1, 1)), b.spread(4, 1, 1)))
    b.output(x)
    return b.model()


def star(count: int) -> onnx.ModelProto:
    """Scaled convolutions that all read one value and are joined in the end."""
    b = Builder("star")
    x = b.node("Relu", b.input("x", [1, 4, 4, 4]))
    rays = [b.node("Mul", b.conv(x, 4, (1, 1)), b.spread(4, 1, 1)) for _ in range(count)]
    b.output(b.node("Concat", *rays, axis=2))
    return b.model()


def shared_constant(count: int) -> onnx.ModelProto:
    """Sums that all add one constant."""
    b = Builder("shared")
    x, bias = b.input("x", [1, 4, 4, 4]), b.spread(4, 1, 1)
    for _ in range(count):
        x = b.node("Relu", b.node("Add", x, bias))
    b.output(x)
    return b.model()


def calls(model: onnx.ModelProto) -> int:
    profile = cProfile.Profile()
    profile.runcall(load, model)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize("network", [chain, star, shared_constant])
@pytest.mark.slow
def test_calls_grow_with_the_nodes(network: Callable[[int], onnx.ModelProto]) -> None:
    load(network(2))  # modules, schemas
    few, many = (calls(network(count)) for count in (25, 100))
    assert math.log(many / few, 4) <= 1.1


@pytest.mark.parametrize("network", [star, shared_constant])
@pytest.mark.slow
def test_no_list_of_all_users_is_made_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch, network: Callable[[int], onnx.ModelProto]
) -> None:
    listed = 0
    uses = ir.Value.uses

    def counting(value: ir.Value) -> object:
        nonlocal listed
        found = uses(value)
        listed += len(found)
        return found

    monkeypatch.setattr(ir.Value, "uses", counting)
    sums = []
    for count in (25, 100):
        listed = 0
        load(network(count))
        sums.append(listed)
    assert sums[1] <= 6 * sums[0]


def test_layers_that_repeat_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    infer = inference._infer

    def counting(node: ir.Node, version: int) -> str | None:
        asked.append(node.op_type)
        return infer(node, version)

    monkeypatch.setattr(inference, "_infer", counting)
    monkeypatch.setattr(inference, "_cache", {})
    load(star(40))
    assert 1 <= asked.count("Conv") <= 3


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def reshape(shape: list[int], target: list[int]) -> ir.Node:
    x = ir.Value(name="x", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
    tensor = ir.tensor(np.array(target, np.int64), name="to")
    to = ir.Value(
        name="to", const_value=tensor, shape=ir.Shape([len(target)]), type=ir.TensorType(tensor.dtype)
    )
    return ir.Node("", "Reshape", [x, to], outputs=[ir.Value(name="y")])


@given(SHAPES, st.permutations(range(4)))
def test_what_is_kept_is_what_is_inferred(shape: list[int], order: list[int]) -> None:
    """Elements of the second input decide the shape: calls that differ in them alone are told apart."""
    for target in ([*shape], [math.prod(shape)], [1, -1], [shape[order[0] % len(shape)], -1]):
        for _ in range(2):
            node = reshape(shape, target)
            assert inference.infer_output(node, {"": 21}) is None
            found, expected = shape_of(node.outputs[0]), reshape(shape, target)
            assert inference._infer(expected, 21) is None
            assert found == shape_of(expected.outputs[0])
            assert node.outputs[0].dtype == ir.DataType.FLOAT


def test_results_that_are_kept_are_not_shared() -> None:
    inference._cache.clear()
    first, second = reshape([2, 3], [6]), reshape([2, 3], [6])
    for node in (first, second):
        assert inference.infer_output(node, {"": 21}) is None
    shape = first.outputs[0].shape
    assert shape is not None
    shape[0] = 7
    first.outputs[0].dtype = ir.DataType.DOUBLE
    assert shape_of(second.outputs[0]) == (6,)
    assert second.outputs[0].dtype == ir.DataType.FLOAT
    third = reshape([2, 3], [6])
    assert inference.infer_output(third, {"": 21}) is None
    assert shape_of(third.outputs[0]) == (6,)


def test_what_breaks_the_standard_is_objected_to_each_time() -> None:
    types = ir.TensorType(ir.DataType.FLOAT)
    for _ in range(3):
        pair = [ir.Value(name=name, shape=ir.Shape([2, 3]), type=types) for name in "ab"]
        node = ir.Node("", "MatMul", pair, outputs=[ir.Value(name="y")])
        assert inference.infer_output(node, {"": 21}) is not None


def test_users_are_counted_once_for_every_input() -> None:
    x = ir.Value(name="x")
    node = ir.Node("", "Add", [x, x])
    assert use_count(x) == 2 == len(x.uses())
    node.replace_input_with(0, None)
    assert use_count(x) == 1


@pytest.mark.slow
def test_a_wide_node_keeps_its_inputs_in_order_and_every_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ray is replaced once; nothing looks at all inputs of the concatenation for it."""
    looked_at = 0
    replace = ir.Node.replace_input_with

    def counting(node: ir.Node, index: int, value: ir.Value | None) -> None:
        nonlocal looked_at
        looked_at += len(node.inputs)
        replace(node, index, value)

    monkeypatch.setattr(ir.Node, "replace_input_with", counting)
    sums = []
    for count in (75, 300):
        looked_at = 0
        network = star(count)
        graph = load(network).model.graph
        sums.append(looked_at)
        (join,) = (node for node in graph if node.op_type == "Concat")
        made = [value for value in join.inputs if value is not None]
        assert [value.name for value in made] == list(network.graph.node[-1].input)
        for index, value in enumerate(made):
            assert [(use.node, use.idx) for use in value.uses()] == [(join, index)]
            assert value.producer() in set(graph)
    assert sums[1] <= 4.2 * sums[0]
