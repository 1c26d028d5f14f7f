"""A decoder with open dimensions becomes models of one phase, whose steps give what one run gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import tpuflow
from conftest import slow_except
from frontend.decoders import CONTEXT, VOCABULARY, decoder
from frontend.graphs import operators
from tpuflow.errors import ModelError, SampleError
from tpuflow.execution.decoder import Decoder, PhaseLevel, phase_feed
from tpuflow.execution.levels import FloatLevel, GraphLevel
from tpuflow.frontend import FloatSession, specialize

IDS: list[int] = np.random.default_rng(0).integers(0, VOCABULARY, 11).tolist()


def _whole(model: onnx.ModelProto) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logits of all tokens at once, without a past, in onnxruntime."""
    session = FloatSession(model)
    feed: dict[str, Any] = {}
    for value in model.graph.input:
        sizes = [d.dim_value if d.HasField("dim_value") else 0 for d in value.type.tensor_type.shape.dim]
        if value.name.startswith("past"):
            feed[value.name] = np.zeros([1, *sizes[1:]], np.float32)
    feed["input_ids"] = np.array([IDS])
    if any(value.name == "position_ids" for value in model.graph.input):
        feed["position_ids"] = np.arange(len(IDS))[None]
    feed["attention_mask"] = np.ones((1, len(IDS)), np.int64)
    logits: np.ndarray[Any, np.dtype[np.float32]] = session.run(feed)["logits"][0]
    return logits


@pytest.mark.parametrize("style", slow_except(["exported"], ["exported", "contributed"]))
@pytest.mark.parametrize("phases", [[(1, CONTEXT)], [(4, 16), (1, 16)], [(16, 16), (3, 8), (1, 16)]])
@pytest.mark.feature("IMP-36")
@pytest.mark.slow
def test_steps_give_what_all_tokens_at_once_give(style: str, phases: list[tuple[int, int]]) -> None:
    model = decoder(style)
    levels = [FloatLevel(tpuflow.load(specialize(model, *phase))) for phase in phases]
    steps = Decoder(levels)
    found = np.concatenate([steps.step(IDS[:6]), *(steps.step([token]) for token in IDS[6:])])
    np.testing.assert_allclose(found, _whole(model), rtol=1e-4, atol=1e-4)


def _as_genai_writes(window: int) -> onnx.ModelProto:
    """Caches whose last axis is open too, that of the window alone where attention has one."""
    model = decoder("contributed")
    for value in model.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
            value.type.tensor_type.shape.dim[2].dim_param = "past_sliding_length" if window else "past"
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention" and window:
            for name, number in (("local_window_size", window), ("sliding_window_cache", 1)):
                node.attribute.append(helper.make_attribute(name, number))
    return model


@pytest.mark.parametrize("window", [0, 4])
def test_caches_with_an_open_head_size_have_that_of_their_attention(window: int) -> None:
    model = specialize(_as_genai_writes(window), sequence=2, context=16)
    shapes = {value.name: value.shape for value in model.graph.inputs}
    assert tuple(shapes["past_key_values.0.key"] or ()) == (1, 2, 14, 16)
    loaded = tpuflow.load(model)
    assert "GroupQueryAttention" not in operators(loaded)
    steps = Decoder(
        [
            FloatLevel(tpuflow.load(specialize(_as_genai_writes(window), *phase)))
            for phase in ((16, 16), (1, 16))
        ]
    )
    found = np.concatenate([steps.step(IDS[:6]), *(steps.step([token]) for token in IDS[6:])])
    whole = decoder("contributed")
    for node in whole.graph.node:
        if node.op_type == "GroupQueryAttention" and window:
            node.attribute.append(helper.make_attribute("local_window_size", window))
    np.testing.assert_allclose(found, _whole(whole), rtol=1e-4, atol=1e-4)


def test_an_open_head_size_that_nothing_tells_is_named() -> None:
    model = decoder("exported")
    for value in model.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.shape.dim[3].dim_param = "size"
    with pytest.raises(ModelError, match='axis 3: dimension "size" is none of'):
        specialize(model, 1, 16)


@pytest.mark.parametrize("style", ["exported", "contributed"])
def test_nothing_is_left_for_the_host_and_only_new_rows_come_back(style: str) -> None:
    model = tpuflow.load(specialize(decoder(style), sequence=2, context=16))
    assert not {"Cos", "Sin", "Cast", "GroupQueryAttention"} & set(operators(model))
    shapes = {port.name: port.shape for port in model.outputs}
    assert shapes["present.0.key"] == shapes["present.0.value"] == (1, 2, 2, 16)
    assert {port.name: port.shape for port in model.inputs}["past_key_values.0.key"] == (1, 2, 14, 16)


@pytest.mark.parametrize("style", ["exported", "contributed"])
def test_a_gate_behind_attention_has_a_known_shape(style: str) -> None:
    model = tpuflow.load(specialize(decoder(style, gated=True), sequence=2, context=16))
    assert operators(model)["Silu"] == 2
    assert all(node.outputs[0].shape is not None for node in model.model.graph)


def test_a_specialized_model_survives_its_file(tmp_path: Any) -> None:
    ir.save(specialize(decoder("exported"), 1, 16), tmp_path / "step.onnx")
    assert "Cos" not in operators(tpuflow.load(tmp_path / "step.onnx"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"past_key_values.0.key": [1, 2, "later", "width"]}, 'axis 3: dimension "width" is none of batch'),
        ({"attention_mask": [1, "sequence"]}, '"sequence" is total \\(16\\), but elsewhere sequence \\(1\\)'),
        ({"input_ids": [1, 5]}, 'input "input_ids", axis 1: is sequence, fixed to 5 by the model, not 1'),
        ({"past_key_values.0.key": [1, 2, 16, 16]}, 'cache "past_key_values.0.key" has a fixed length'),
        ({"input_ids": None}, "has no input input_ids or inputs_embeds"),
    ],
)  # fmt: skip
@pytest.mark.feature("IMP-36")
def test_errors_name_the_dimension(change: dict[str, Any], message: str) -> None:
    model = decoder("exported")
    for value in model.graph.input:
        if value.name in change:
            if change[value.name] is None:
                value.name = "tokens"
                model.graph.node.insert(0, helper.make_node("Identity", ["tokens"], ["input_ids"]))
            else:
                kind = value.type.tensor_type.elem_type
                value.CopyFrom(helper.make_tensor_value_info(value.name, kind, change[value.name]))
    with pytest.raises(ModelError, match=message):
        specialize(model, 1, 16)


@pytest.mark.feature("IMP-36")
def test_a_sequence_beyond_the_context_is_refused() -> None:
    with pytest.raises(ModelError, match="a sequence of 17 does not fit a context of 16"):
        specialize(decoder("exported"), 17, 16)


def test_a_token_beyond_the_context_is_refused() -> None:
    steps = Decoder([FloatLevel(tpuflow.load(specialize(decoder("exported"), 1, 8)))])
    with pytest.raises(SampleError, match="token 8 lies beyond the context"):
        steps.step(range(9))


@pytest.mark.slow
def test_integers_follow_and_past_and_present_share_a_grid() -> None:
    model = decoder("exported")
    levels = []
    for phase in ((4, 16), (1, 16)):
        loaded = tpuflow.load(specialize(model, *phase))
        floats = Decoder([FloatLevel(tpuflow.load(specialize(model, 1, 16)))])
        feeds = []
        each = PhaseLevel.of(FloatLevel(loaded))
        floats.step(IDS)
        for start in range(len(IDS) - phase[0] + 1):
            tokens = IDS[start : start + phase[0]]
            feeds.append(phase_feed(each.level, each.phase, floats.caches, tokens, start))
        samples = {name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]}
        graph = tpuflow.quantize(loaded, samples=samples)
        grids = {tensor.name: (tensor.scale, tensor.zero_point) for tensor in graph.tensors}
        assert grids["past_key_values.0.value"] == grids["present.0.value/all"]
        levels.append(GraphLevel(graph))
    steps = Decoder(levels)
    found = np.concatenate([steps.step(IDS[:6]), *(steps.step([token]) for token in IDS[6:])])
    wanted = _whole(model)
    noise = np.square(found - wanted).sum() / np.square(wanted).sum()
    assert 10 * np.log10(noise) < -15


def test_tables_take_the_place_of_functions_of_bounded_integers() -> None:
    inputs = [helper.make_tensor_value_info("p", TensorProto.INT64, [2, 3])]
    nodes = [
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["f", "last"], ["u"]),
        helper.make_node("Mul", ["u", "angles"], ["a"]),
        helper.make_node("Sin", ["a"], ["s"]),
        helper.make_node("Transpose", ["s"], ["y"], perm=[2, 0, 1]),
        helper.make_node("Exp", ["y"], ["z"]),
    ]
    constants = [
        onnx.numpy_helper.from_array(np.array([-1]), "last"),
        onnx.numpy_helper.from_array(np.linspace(0.1, 1, 4, dtype=np.float32), "angles"),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 2, 3]) for name in "yz"]
    proto = helper.make_model(
        helper.make_graph(nodes, "angles", inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    model = ir.from_proto(proto)
    model.graph.inputs[0].metadata_props["tpuflow.bound"] = "9"
    loaded = tpuflow.load(model)
    assert not {"Sin", "Exp", "Mul", "Cast"} & set(operators(loaded))
    feed = {"p": np.array([[0, 8, 3], [1, 2, 7]])}
    found, wanted = FloatSession(loaded.model).run(feed), FloatSession(proto).run(feed)
    for name in "yz":
        np.testing.assert_array_equal(found[name], wanted[name])
