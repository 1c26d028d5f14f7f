"""Rewrites by choice: the same function in floats, fewer or simpler layers; nothing happens unasked."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import tpuflow
from cli.conftest import run_command
from models.builder import Builder
from tpuflow.config import Config
from tpuflow.config.input import Rewrite
from tpuflow.errors import ModelError
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.frontend.optional import KNOWN
from tpuflow.frontend.values import array_of, shape_of
from tpuflow.partitioning import Partitioned
from tpuflow.partitioning.storage import load_graph

NARROW = {"quantize": {"output_dtype": "int8"}}


def operators(model: FloatModel) -> list[str]:
    return [node.op_type for node in model.model.graph]


def both(b: Builder, *names: str) -> tuple[FloatModel, FloatModel]:
    """A network without and with rewrites, which compute the same."""
    proto = b.model()
    before, after = load(proto), load(proto, rewrites=names)
    rng = np.random.default_rng(3)
    feeds = {port.name: rng.standard_normal(port.shape).astype(np.float32) for port in before.inputs}
    for port in before.outputs:
        ours, theirs = (FloatSession(each.model).run(feeds)[port.name] for each in (after, before))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert operators(load(after.model)) == operators(after), "normalised again it stays"
    return before, after


def test_the_configuration_knows_the_names() -> None:
    assert get_args(Rewrite) == KNOWN
    with pytest.raises(ModelError, match=r'"colapse_linear", did you mean "collapse_linear"\?'):
        load(identity().model(), rewrites=["colapse_linear"])


def identity() -> Builder:
    b = Builder("one")
    b.output(b.node("Relu", b.input("x", [1, 4])))
    return b


@pytest.mark.feature("IMP-13")
@given(
    kernels=st.sampled_from([(1, 1), (3, 1), (1, 3)]),
    strides=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]),
    channels=st.tuples(*[st.integers(1, 9)] * 3),
    bias=st.booleans(),
    pad=st.integers(0, 1),
)
def test_two_convolutions_in_a_row_become_one_where_it_is_no_dearer(
    kernels: tuple[int, int],
    strides: tuple[int, int],
    channels: tuple[int, int, int],
    bias: bool,  # noqa: FBT001 - given
    pad: int,
) -> None:
    b = Builder("convolutions")
    x = b.input("x", [1, channels[0], 9, 8])
    for kernel, stride, inner, rows in zip(kernels, strides, channels, channels[1:], strict=False):
        weights = [b.weight(rows, inner, kernel, kernel, fan_in=inner * kernel**2)]
        weights += [b.spread(rows)] if bias else []
        x = b.node("Conv", x, *weights, strides=[stride] * 2, pads=[pad * (kernel // 2)] * 4)
    b.output(x)
    before, after = both(b, "collapse_linear")
    outputs = [shape_of(node.outputs[0]) or () for node in before.model.graph]
    places = [math.prod(shape[2:]) for shape in outputs]
    sizes = zip(places, channels, channels[1:], kernels, strict=False)
    apart = [place * inner * rows * kernel**2 for place, inner, rows, kernel in sizes]
    merged = places[1] * channels[0] * channels[2] * max(kernels) ** 2
    possible = (kernels[1] == 1 or strides[0] == 1) and not (kernels[1] > 1 and pad and bias)
    assert len(operators(after)) == (1 if possible and merged <= sum(apart) else 2)


@pytest.mark.feature("IMP-13")
@pytest.mark.parametrize(("sizes", "layers"), [((16, 16, 16), 1), ((16, 2, 16), 2), ((3, 16, 3), 1)])
def test_two_products_in_a_row_become_one(sizes: tuple[int, int, int], layers: int) -> None:
    b = Builder("products")
    b.output(b.linear(b.linear(b.input("x", [1, 5, sizes[0]]), sizes[1]), sizes[2]))
    _, after = both(b, "collapse_linear")
    assert operators(after).count("MatMul") == layers


@pytest.mark.feature("IMP-13")
def test_layers_between_which_something_else_reads_stay() -> None:
    b = Builder("read")
    x = b.conv(b.input("x", [1, 4, 6, 6]), 4, (1, 1))
    b.output(b.conv(x, 4, (1, 1)), b.node("Relu", x))
    before, after = both(b, "collapse_linear")
    assert operators(before) == operators(after)


@pytest.mark.feature("IMP-13")
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dilation", [1, 2])
def test_a_residual_is_added_at_the_center_of_the_kernel(groups: int, dilation: int) -> None:
    b = Builder("residual")
    x = b.node("Relu", b.input("x", [1, 4, 7, 6]))
    weights = b.weight(4, 4 // groups, 3, 5, fan_in=15)
    y = b.node(
        "Conv", x, weights, group=groups, dilations=[dilation] * 2,
        pads=[dilation, 2 * dilation, dilation, 2 * dilation],
    )  # fmt: skip
    b.output(b.node("Add", x, y))
    before, after = both(b, "collapse_residual")
    assert operators(before) == ["Relu", "Conv", "Add"] and operators(after) == ["Relu", "Conv"]
    old, new = (array_of(each.model.graph.node(1).inputs[1]) for each in (before, after))
    assert old is not None and new is not None
    assert np.count_nonzero(new != old) == 4 and np.all(
        new[:, :, 1, 2].sum(1) - old[:, :, 1, 2].sum(1) > 0.99
    )


@pytest.mark.feature("IMP-13")
@pytest.mark.parametrize("kind", ["even", "stride", "other operand", "uneven pads", "wider"])
def test_other_additions_stay(kind: str) -> None:
    b = Builder("other")
    x = b.input("x", [1, 4, 6, 6])
    kernel = 2 if kind == "even" else 3
    pads = {"even": [0, 0, 1, 1], "uneven pads": [0, 0, 2, 2], "stride": [4, 4, 3, 3]}.get(kind, [1] * 4)
    inner = b.node("Relu", x) if kind == "other operand" else x
    if kind == "wider":
        inner = b.input("one", [1, 4, 1, 1])
        x, pads, kernel = inner, [0] * 4, 1
        y = b.node("Conv", b.input("y", [1, 4, 6, 6]), b.weight(4, 4, 1, 1, fan_in=4))
    else:
        strides = [2, 2] if kind == "stride" else [1, 1]
        y = b.node("Conv", inner, b.weight(4, 4, kernel, kernel, fan_in=9), pads=pads, strides=strides)
    b.output(b.node("Add", y, x))
    before, after = both(b, "collapse_residual")
    assert operators(before) == operators(after)


@pytest.mark.feature("IMP-15")
def test_a_joint_projection_becomes_three_with_a_scale_each() -> None:
    b = Builder("joint")
    x = b.input("x", [1, 6, 8])
    gains = np.repeat(np.array([0.1, 1, 10], np.float32), 8)
    weights = b.constant(b.rng.normal(0, 0.3, (8, 24)).astype(np.float32) * gains)
    y = b.node("Add", b.node("MatMul", x, weights), b.spread(24))
    b.output(*b.nodes("Split", [y, b.integers(8, 8, 8)], 3, axis=2))
    before, after = both(b, "split_projections")
    assert operators(before).count("MatMul") == 1 and operators(after).count("MatMul") == 3
    assert "Slice" not in operators(after)
    data = {"x": np.random.default_rng(0).standard_normal((16, 6, 8)).astype(np.float32)}
    one: dict[str, NDArray[np.generic]] = {"x": data["x"][:1]}
    errors, scales = [], []
    for model in (before, after):
        graph = tpuflow.quantize(model, samples=data, config=Config.parse(NARROW))
        found, floats = GraphLevel(graph).run(one), FloatSession(model.model).run(one)
        errors.append([float(np.abs(found[port.name] - floats[port.name]).max()) for port in model.outputs])
        scales.append({tuple(graph.tensors[index].scale or ()) for index in graph.outputs})
    assert [len(each) for each in scales] == [1, 3]
    assert errors[1][0] < errors[0][0] / 10


@pytest.mark.feature("IMP-15")
def test_a_projection_read_as_a_whole_stays_one() -> None:
    b = Builder("whole")
    y = b.node("MatMul", b.input("x", [1, 6, 8]), b.weight(8, 24, fan_in=8))
    b.output(*b.nodes("Split", [y, b.integers(8, 16)], 2, axis=2), b.node("Relu", y))
    before, after = both(b, "split_projections")
    assert operators(before) == operators(after)


@pytest.mark.feature("IMP-16")
@given(exponent=st.integers(2, 16))
def test_whole_powers_become_products(exponent: int) -> None:
    b = Builder("power")
    b.output(b.node("Pow", b.node("Tanh", b.input("x", [2, 5])), b.constant(np.float32(exponent))))
    _, after = both(b, "expand_powers")
    found = operators(after)
    assert "Pow" not in found
    assert found.count("Mul") == exponent.bit_length() - 1 + exponent.bit_count() - 1


@pytest.mark.feature("IMP-16")
@pytest.mark.parametrize("exponent", [0.5, -1.0, 2.5, 17.0])
def test_other_powers_stay(exponent: float) -> None:
    b = Builder("power")
    b.output(b.node("Pow", b.node("Sigmoid", b.input("x", [2, 5])), b.constant(np.float32(exponent))))
    before, after = both(b, "expand_powers")
    assert operators(before) == operators(after)


@pytest.mark.feature("IMP-17")
@given(
    factors=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_bilinear_resizing_by_whole_factors_becomes_a_transposed_convolution(
    factors: tuple[int, int], size: tuple[int, int]
) -> None:
    b = Builder("resize")
    x = b.node("Relu", b.input("x", [1, 3, *size]))
    scales = b.constant(np.array([1, 1, *factors], np.float32))
    b.output(b.node("Resize", x, "", scales, mode="linear"))
    before, after = both(b, "resize_by_convolution")
    if factors != (1, 1):
        assert "Resize" in operators(before) and "ConvTranspose" in operators(after)
    assert "Resize" not in operators(after)


@pytest.mark.feature("IMP-17")
def test_its_program_is_within_two_steps_of_the_resized_image() -> None:
    b = Builder("resize")
    b.output(
        b.node(
            "Resize",
            b.input("x", [1, 4, 6, 6]),
            "",
            b.constant(np.array([1, 1, 2, 2], np.float32)),
            mode="linear",
        )
    )
    model = load(b.model(), rewrites=["resize_by_convolution"])
    data = {"x": np.random.default_rng(0).uniform(-1, 1, (16, 4, 6, 6)).astype(np.float32)}
    graph = tpuflow.quantize(model, samples=data, config=Config.parse(NARROW))
    first: dict[str, NDArray[np.generic]] = {"x": data["x"][:1]}
    found, floats = GraphLevel(graph).run(first), FloatSession(load(b.model()).model).run(first)
    (name,) = found
    (step,) = graph.tensors[graph.outputs[0]].scale or (0.0,)
    assert 0 < np.abs(found[name] - floats[name]).max() <= 2 * step
    np.testing.assert_array_equal(tpuflow.simulate(tpuflow.compile(graph), first).outputs[name], found[name])


@pytest.mark.parametrize("mode", ["nearest", "cubic", "linear by 1.5", "aligned corners"])
def test_other_resizing_stays(mode: str) -> None:
    b = Builder("resize")
    x = b.input("x", [1, 3, 4, 4])
    scales = b.constant(np.array([1, 1, 1.5, 1.5] if "1.5" in mode else [1, 1, 2, 2], np.float32))
    way = "align_corners" if "aligned" in mode else "half_pixel"
    kind = "linear" if mode not in {"nearest", "cubic"} else mode
    b.output(b.node("Resize", x, "", scales, mode=kind, coordinate_transformation_mode=way))
    proto = b.model()
    found = [operators(load(proto, host=True, rewrites=names)) for names in ((), ("resize_by_convolution",))]
    assert found[0] == found[1]


@pytest.mark.feature("IMP-13")
def test_a_build_applies_what_its_configuration_asks_for(tmp_path: Path) -> None:
    b = Builder("built")
    b.output(b.conv(b.conv(b.input("x", [1, 8, 6, 6]), 8, (1, 1)), 8, (1, 1)))
    onnx.save(b.model(), tmp_path / "m.onnx")
    (tmp_path / "c.toml").write_text('[input]\nrewrites = ["collapse_linear"]\n')
    words = ["quantize", str(tmp_path / "m.onnx"), "--calib", str(tmp_path / "x.npz")]
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((4, 8, 6, 6)).astype(np.float32))
    layers = []
    for more in ([], ["--config", str(tmp_path / "c.toml")]):
        target = tmp_path / f"{len(more)}.tpuq"
        done = run_command(*words, "-o", str(target), *more)
        assert done.status == 0, done.err
        graph = load_graph(target)
        layers.append(0 if isinstance(graph, Partitioned) else len(graph.layers))
    assert layers[1] < layers[0]


def test_another_batch_has_the_same_rewrites() -> None:
    b = Builder("batched")
    b.output(b.conv(b.conv(b.input("x", [1, 8, 6, 6]), 8, (1, 1)), 8, (1, 1)))
    made = load(b.model(), rewrites=["collapse_linear"]).with_batch(3)
    assert made.rewrites == ("collapse_linear",) and operators(made) == ["Conv"]


@pytest.mark.feature("TIL-05")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_samples_of_a_batch_become_branches_that_give_each_what_it_gives_alone(dtype: str) -> None:
    b = Builder("batch")
    x = b.node("Relu", b.conv(b.input("x", ["n", 3, 6, 6]), 5, (3, 3)))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 4))
    proto = b.model()
    alone, plain = load(proto), load(proto, batch=3)
    made = load(proto, batch=3, rewrites=["parallel_batch"])
    assert operators(made).count("Conv") == 3 and operators(plain).count("Conv") == 1
    assert [(port.name, port.shape) for port in made.outputs] == [(p.name, p.shape) for p in plain.outputs]
    data = np.random.default_rng(0).standard_normal((3, 3, 6, 6)).astype(np.float32)
    config = Config.parse({"quantize": {"dtype": dtype}})
    ranges = single = None
    if dtype == "int8":
        one = tpuflow.calibrate(alone, tpuflow.samples({"x": data}, alone))
        names = {
            value.name or "" for node in made.model.graph for value in [*node.inputs, *node.outputs] if value
        }
        whole = {
            name: one.tensors[name.partition("/sample_")[0]]
            for name in names
            if name.partition("/sample_")[0] in one.tensors
        }
        ranges = replace(one, tensors=whole, means={})
        single = replace(one, means={})
    first = tpuflow.compile(tpuflow.quantize(alone, single, config))
    branches = tpuflow.simulate(tpuflow.compile(tpuflow.quantize(made, ranges, config)), {"x": data}).outputs
    for at in range(3):
        own = tpuflow.simulate(first, {"x": data[at : at + 1]}).outputs
        for port in made.outputs:
            np.testing.assert_array_equal(branches[port.name][at : at + 1], own[port.name])
    assert operators(load(proto, rewrites=["parallel_batch"])) == operators(alone)
