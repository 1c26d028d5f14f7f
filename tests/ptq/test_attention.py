"""Factors inside attention: what cancels in scores, what passes through shares, what stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tpuflow.calibration import calibrate
from tpuflow.config import Config
from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.execution.levels import GraphLevel
from tpuflow.export import quantized_onnx
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.ptq import noted_factors, with_factors
from tpuflow.ptq.channels import Channels, at_ids
from tpuflow.ptq.confirmation import calibrated_graph
from tpuflow.ptq.equalization import equalize_channels, scale_channels
from tpuflow.ptq.seen_channels import SeenChannels

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENS, HEADS, WIDTH = 6, 2, 4
SIZE = HEADS * WIDTH


def attention(seed: int, *, joint: bool, read: str = "", spread: float = 3.0) -> FloatModel:
    """Attention whose projections reach unevenly, in one product or three; `read` is an output as well."""
    rng = np.random.default_rng(seed)

    def projection(columns: int) -> NDArray[np.float64]:
        made: NDArray[np.float64] = rng.standard_normal((SIZE, columns))
        return made * np.exp2(rng.uniform(-spread, spread, columns)) / SIZE

    node = helper.make_node
    weights: dict[str, NDArray[np.generic]] = {"wo": projection(SIZE)} | (
        {"half": np.array(0.5)} if joint else {}
    )
    nodes = []
    parts = "qkv"
    if joint:
        weights |= {"w": projection(3 * SIZE), "b": rng.standard_normal(3 * SIZE) * 0.1}
        weights |= {"split": np.array([1, TOKENS, 3, HEADS, WIDTH])}
        nodes += [
            node("MatMul", ["x", "w"], ["p"], name="joint"),
            node("Add", ["p", "b"], ["pb"]),
            node("Reshape", ["pb", "split"], ["heads"]),
            node("Transpose", ["heads"], ["turned"], perm=[2, 0, 3, 1, 4]),
            node("Split", ["turned"], [f"{part}5" for part in parts], axis=0),
        ]
        weights |= {"first": np.array([0])}
        nodes += [node("Squeeze", [f"{part}5", "first"], [part]) for part in parts]
    else:
        weights |= {"split": np.array([1, TOKENS, HEADS, WIDTH])}
        for part in parts:
            weights |= {f"w{part}": projection(SIZE), f"b{part}": rng.standard_normal(SIZE) * 0.1}
            nodes += [
                node("MatMul", ["x", f"w{part}"], [f"{part}0"], name=part),
                node("Add", [f"{part}0", f"b{part}"], [f"{part}b"]),
                node("Reshape", [f"{part}b", "split"], [f"{part}r"]),
                node("Transpose", [f"{part}r"], [part], perm=[0, 2, 1, 3]),
            ]
    weights |= {"flat": np.array([1, TOKENS, SIZE])}
    nodes += [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["scores"]),
        *([node("Mul", ["scores", "half"], ["weighed"])] if joint else []),
        node("Softmax", ["weighed" if joint else "scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v"], ["sums"]),
        node("Transpose", ["sums"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "flat"], ["row"]),
        node("MatMul", ["row", "wo"], ["y"], name="out"),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, TOKENS, SIZE])]
    if read:
        outputs.append(helper.make_tensor_value_info(read, TensorProto.FLOAT, None))
    constants = [
        numpy_helper.from_array(np.asarray(each, np.int64 if each.dtype.kind == "i" else np.float32), name)
        for name, each in weights.items()
    ]
    shape = [1, TOKENS, SIZE]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "net", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load(onnx.shape_inference.infer_shapes(model))


def rows(count: int, seed: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, TOKENS, SIZE)).astype(np.float32)


def samples_of(model: FloatModel, count: int = 32, seed: int = 3) -> Samples:
    return Samples.of({"x": rows(count, seed)}, model.inputs)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), joint=st.booleans())
@pytest.mark.feature("GCA-08")
def test_any_factors_inside_attention_leave_floats_as_they_are(seed: int, *, joint: bool) -> None:
    model = attention(seed, joint=joint)
    channels = Channels.of(model.model.graph)
    factors = np.exp2(np.random.default_rng(seed).integers(-6, 7, channels.count).astype(np.float64))
    factors[0] = 1.0
    feed = {"x": rows(1, seed)}
    plain = FloatSession(model.model, "all").run(feed)
    divided = FloatSession(scale_channels(model, channels, factors).model, "all").run(feed)
    for name in ("scores", "y"):
        np.testing.assert_array_equal(divided[name], plain[name])  # powers of two: to the bit
    ids = {value.name: numbers for value, numbers in channels.ids.items()}
    for name in ("q", "kt", "v", "sums", "row"):
        assert np.abs(ids[name]).max() > 0
        np.testing.assert_array_equal(divided[name] * at_ids(factors, ids[name]), plain[name])


@pytest.mark.parametrize("joint", [True, False])
def test_channels_of_keys_have_the_inverse_factors_of_queries(*, joint: bool) -> None:
    model = attention(0, joint=joint)
    channels = Channels.of(model.model.graph)
    ids = {value.name: numbers for value, numbers in channels.ids.items()}
    assert np.array_equal(ids["q"], -ids["kt"].swapaxes(-1, -2))
    assert np.array_equal(np.sort(ids["row"].ravel()), np.sort(ids["v"].ravel()))
    assert not set(np.abs(ids["v"]).ravel()) & set(np.abs(ids["q"]).ravel())
    for name in ("scores", "shares", "x", "y"):
        assert not ids[name].any()
    assert len(channels.products) == 1


@pytest.mark.parametrize("read", ["q", "kt"])
def test_what_is_read_elsewhere_keeps_its_counterpart_as_it_is(read: str) -> None:
    ids = {
        value.name: numbers
        for value, numbers in Channels.of(attention(0, joint=False, read=read).model.graph).ids.items()
    }
    assert not ids["q"].any()
    assert not ids["kt"].any()
    assert ids["v"].any()


def test_a_number_that_is_its_own_inverse_is_one() -> None:
    graph = attention(0, joint=True).model.graph
    values = {value.name: value for node in graph for value in node.outputs}
    turned = values["kt"].producer()
    assert turned is not None
    turned.replace_input_with(0, values["q"])  # a product of a matrix with itself
    ids = {value.name: numbers for value, numbers in Channels.of(graph).ids.items()}
    assert not ids["q"].any()
    assert ids["v"].any()


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.feature("QMO-29")
def test_equalized_attention_is_closer(seed: int, *, joint: bool) -> None:
    model = attention(seed, joint=joint)
    samples = samples_of(model)
    found = equalize_channels(SeenChannels.of(model, samples))
    assert found.predicted_db > 1
    evaluator = Evaluator(model, samples_of(model, 64, 77))
    before, after = (
        evaluator.sqnr_db(calibrated_graph(each, samples, Config())[0]) for each in (model, found.model)
    )
    assert after > before + 0.3


@pytest.mark.parametrize("joint", [True, False])
def test_equalized_attention_is_made_again_from_its_ranges_and_exported(*, joint: bool) -> None:
    model = attention(3, joint=joint)
    samples = samples_of(model)
    made = equalize_channels(SeenChannels.of(model, samples)).model
    again = with_factors(model, noted_factors(made))
    assert noted_factors(again) == noted_factors(made)
    ranges = calibrate(made, samples)
    graph = lower(made, ranges)
    assert lower(again, ranges).to_json() == graph.to_json()
    session = onnxruntime.InferenceSession(
        quantized_onnx(model, graph).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for row in rows(8, 11):
        ours = GraphLevel(graph).run({"x": row[None]})["y"]
        np.testing.assert_allclose(session.run(None, {"x": row[None]})[0], ours, rtol=1e-5)
