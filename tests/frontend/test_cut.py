"""Parts of models: any tensor, the order asked for, head and tail make the whole; named cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from frontend.graphs import array, graph, integers
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.errors import ModelError
from tpuflow.evaluation.similarity import similarity
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import FloatSession, generate_samples, get_sub_model, load, run_float
from tpuflow.frontend.presets import PRESETS, resolve
from tpuflow.lowering import lower

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Arrays = dict[str, NDArray[np.float32]]


def branching() -> onnx.ModelProto:
    """Split, residual, concatenation, two inputs, two outputs, a constant."""
    return graph(
        [
            ("Conv", "x w", "c", {"pads": [1, 1, 1, 1]}),
            ("Relu", "c", "r"),
            ("Split", "r k", "s t", {"axis": 1}),
            ("Add", "s y", "u"),
            ("Concat", "u t", "v", {"axis": 1}),
            ("Add", "v c", "p"),
            ("GlobalAveragePool", "p", "g"),
            ("Flatten", "g", "f"),
            ("Gemm", "f m b", "z"),
        ],
        {"x": [1, 3, 6, 5], "y": [1, 2, 6, 5]},
        ["z", "u"],
        {"w": array(4, 3, 3, 3), "k": integers(2, 2), "m": array(4, 7), "b": array(7)},
    )


def recurrent() -> onnx.ModelProto:
    """A function of two outputs, of which one feeds back into a product."""
    return graph(
        [
            ("Transpose", "x", "t", {"perm": [1, 0, 2]}),
            ("GRU", "t w r", "h last", {"hidden_size": 4}),
            ("Squeeze", "h one", "q"),
            ("Mul", "q last", "m"),
            ("ReduceMean", "m", "z", {"axes": [0], "keepdims": 0}),
        ],
        {"x": [1, 3, 5]},
        ["z"],
        {"w": array(1, 12, 5), "r": array(1, 12, 4), "one": integers(1)},
    )


NETWORKS = {"branching": branching, "recurrent": recurrent}


def everything(model: onnx.ModelProto) -> Arrays:
    """Every tensor of a model on one sample, its inputs included."""
    sizes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input
    }
    feeds = {name: array(*shape, seed=seed) for seed, (name, shape) in enumerate(sizes.items())}
    return feeds | run_float(model, feeds, "all")


def cuts(model: onnx.ModelProto) -> Iterator[list[str]]:
    """The tensors alive between any two nodes: each such set cuts the model in two."""
    nodes = model.graph.node
    constants = {tensor.name for tensor in model.graph.initializer}
    outputs = {value.name for value in model.graph.output}
    made = [value.name for value in model.graph.input]
    for place in range(len(nodes) + 1):
        later = {name for node in nodes[place:] for name in node.input}
        yield [name for name in made if name in later | outputs and name not in constants]
        if place < len(nodes):
            made += nodes[place].output


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.feature("SUB-01", "SUB-05")
def test_head_and_tail_are_the_whole_at_every_cut(name: str) -> None:
    model = NETWORKS[name]()
    found = everything(model)
    inputs = [value.name for value in model.graph.input]
    outputs = [value.name for value in model.graph.output]
    seen = 0
    for tensors in cuts(model):
        head = get_sub_model(model, inputs, tensors)
        tail = get_sub_model(model, tensors, outputs)
        for part, ins, outs in ((head, inputs, tensors), (tail, tensors, outputs)):
            onnx.checker.check_model(part, full_check=True)
            assert [value.name for value in part.graph.input] == ins
            assert [value.name for value in part.graph.output] == outs
        between = FloatSession(head).run({each: found[each] for each in inputs})
        results = FloatSession(tail).run(between)
        for each in outputs:
            np.testing.assert_allclose(results[each], found[each], rtol=1e-5, atol=1e-6)
            assert np.argmax(results[each]) == np.argmax(found[each])
        seen += len(tensors) > 1
    assert seen >= 2, "no cut of several tensors was tried"


@pytest.mark.feature("SUB-01")
def test_any_tensor_may_become_an_input() -> None:
    """A constant, one of two results of a node, an input that stays, an output that is read further on."""
    model = branching()
    found = everything(model) | {"m": array(4, 7)}
    for inputs, outputs in (
        (["m", "f"], ["z"]),
        (["s", "x", "y"], ["z", "t"]),
        (["u", "t", "c"], ["z", "u"]),
        (["x"], ["c"]),
        (["f"], ["f"]),
    ):
        part = get_sub_model(model, inputs, outputs)
        onnx.checker.check_model(part, full_check=True)
        results = run_float(part, {name: found[name] for name in inputs})
        for name in outputs:
            np.testing.assert_allclose(results[name], found[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.feature("SUB-02")
def test_order_is_the_one_given(order: int) -> None:
    inputs, outputs = ["u", "t", "c"][::order], ["z", "p", "f"][::order]
    part = get_sub_model(branching(), inputs, outputs)
    assert [value.name for value in part.graph.input] == inputs
    assert [value.name for value in part.graph.output] == outputs


def test_parts_keep_types_opset_and_the_model_they_come_from() -> None:
    model = graph(
        [("Cast", "x", "h", {"to": TensorProto.FLOAT16}), ("Relu", "h", "r"), ("Exp", "r", "z")],
        {"x": ["N", 3]},
        ["z"],
        opset=13,
        types={"z": TensorProto.FLOAT16},
    )
    before = model.SerializeToString()
    part = get_sub_model(model, ["h"], ["z"])
    assert model.SerializeToString() == before
    assert part.opset_import[0].version == 13
    kind = part.graph.input[0].type.tensor_type
    assert kind.elem_type == TensorProto.FLOAT16
    assert [dim.dim_param or dim.dim_value for dim in kind.shape.dim] == ["N", 3]


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (["x"], ["z"], 'the outputs also depend on "y": add it to the inputs'),
        (["x", "y"], ["zz"], 'cannot cut at "zz": there is no such tensor; the nearest are "z"'),
        (["x", "y", "x"], ["z"], 'cannot cut at "x": it is named twice'),
        (["x", "y"], [], "a part needs at least one output"),
    ],
)
def test_wrong_parts(inputs: list[str], outputs: list[str], words: str) -> None:
    with pytest.raises(ModelError) as raised:
        get_sub_model(branching(), inputs, outputs)
    assert words in str(raised.value)


@pytest.mark.feature("IMP-22")
def test_outputs_are_selected_by_name() -> None:
    """Intermediate outputs, also of a model whose first axis is open; what follows them is dropped."""
    model = branching()
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    cut = load(model, cut_outputs=["v", "r"], batch=2)
    assert [port.name for port in cut.outputs] == ["v", "r"]
    assert [port.shape for port in cut.outputs] == [(2, 4, 6, 5)] * 2
    feeds = generate_samples(cut, 1)[0]
    whole, part = run_float(model, feeds, ["v", "r"]), run_float(cut.model, feeds)
    for name, expected in whole.items():
        np.testing.assert_allclose(part[name], expected, rtol=1e-5, atol=1e-6)
    cut = load(model, cut_inputs=["p"], batch=2)
    assert (cut.inputs[0].name, cut.inputs[0].shape) == ("p", (2, 4, 6, 5))


@pytest.mark.feature("IMP-22")
def test_names_that_do_not_exist_are_answered_with_those_that_do() -> None:
    model = graph([("Relu", "x", "block1/act"), ("Exp", "block1/act", "z")], {"x": [3]}, ["z"])
    with pytest.raises(ModelError, match=r'there is no such tensor; the nearest are "block1/act"'):
        load(model, cut_outputs=["block1/activation"])


@pytest.mark.feature("IMP-22")
def test_constants_are_no_answer() -> None:
    weights = {"logits_weight": np.ones(3, np.float32)}
    model = graph([("Mul", "x logits_weight", "logits")], {"x": [3]}, ["logits"], weights)
    with pytest.raises(ModelError) as raised:
        load(model, cut_outputs=["logits_weigh"])
    assert str(raised.value).endswith('there is no such tensor; the nearest are "logits"')


def chain(names: tuple[str, ...], *, start: bool) -> onnx.ModelProto:
    """A network that holds tensors of these names."""
    nodes: list[tuple[str, str, str]] = []
    for index, name in enumerate(names):
        nodes += [("Relu", "x", name), ("Exp", name, f"out{index}")]
    model = graph([], {"x": [1, 4]}, [f"out{index}" for index in range(len(names))])
    # Published names may hold what the shorthand of `graph` separates names by.
    model.graph.node.extend(onnx.helper.make_node(op, [a], [b], name=f"n{b}") for op, a, b in nodes)
    assert not start or len(names) == 1
    return model


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.feature("SUB-04")
def test_presets_by_their_published_names(name: str) -> None:
    preset = PRESETS[name]
    model = load(chain(preset.published, start=not preset.end), cut_preset=name)
    ports = model.outputs if preset.end else model.inputs
    assert tuple(port.name for port in ports) == preset.published


def heads(scales: int, kinds: tuple[int, ...], *, joined: bool) -> onnx.ModelProto:
    """A detector: a trunk, and at each scale one convolution per kind of result, joined or not."""
    nodes: list[tuple[object, ...]] = []
    constants: dict[str, object] = {}
    names: list[str] = []
    trunk = "x"
    for scale in range(scales):
        constants[f"w{scale}"] = array(4, 4, 3, 3)
        nodes += [
            ("Conv", f"{trunk} w{scale}", f"c{scale}", {"pads": [1, 1, 1, 1]}),
            ("Relu", f"c{scale}", f"t{scale}"),
        ]
        trunk = f"t{scale}"
    for kind, channels in enumerate(kinds):
        for scale in range(scales):
            constants[f"h{kind}{scale}"] = array(channels, 4, 1, 1)
            constants[f"b{kind}{scale}"] = array(channels, 1, 1)
            nodes += [
                ("Conv", f"t{scale} h{kind}{scale}", f"raw{kind}{scale}"),
                ("Add", f"raw{kind}{scale} b{kind}{scale}", f"head{kind}{scale}"),
                ("Reshape", f"head{kind}{scale} to{kind}", f"flat{kind}{scale}"),
            ]
        constants[f"to{kind}"] = integers(1, channels, -1)
        nodes.append(("Concat", " ".join(f"flat{kind}{s}" for s in range(scales)), f"all{kind}", {"axis": 2}))
        nodes.append(("Sigmoid", f"all{kind}", f"z{kind}"))
        names.append(f"all{kind}" if joined else " ".join(f"head{kind}{s}" for s in range(scales)))
    made = graph(nodes, {"x": [1, 4, 4, 4]}, [f"z{kind}" for kind in range(len(kinds))], constants)
    made.graph.doc_string = " ".join(names)
    return made


@pytest.mark.parametrize(
    ("name", "scales", "kinds", "joined"),
    [
        ("ssd_mobilenet_v1", 6, (16, 24), False),
        ("ssd_mobilenet_v2", 6, (16, 24), False),
        ("ssd_resnet50", 6, (16, 24), True),
        ("ssdlite320_mobilenet_v3_large", 6, (16, 24), True),
        ("yolo5s", 3, (255,), False),
        ("yolov8n_pose", 3, (64, 2, 51), False),
    ],
)
@pytest.mark.feature("SUB-04")
def test_presets_by_structure(name: str, scales: int, kinds: tuple[int, ...], *, joined: bool) -> None:
    model = heads(scales, kinds, joined=joined)
    cut = load(model, cut_preset=name)
    assert [port.name for port in cut.outputs] == model.graph.doc_string.split()


@pytest.mark.feature("SUB-04")
def test_embedding_by_structure() -> None:
    model = graph(
        [
            ("Gather", "positions places", "p"),
            ("Gather", "words ids", "e"),
            ("Add", "e p", "s"),
            ("Relu", "s", "z"),
        ],
        {"ids": [1, 6]},
        ["z"],
        {"words": array(50, 8), "positions": array(6, 8), "places": integers(*range(6))},
        types={"ids": TensorProto.INT64},
    )
    cut = load(model, cut_preset="gpt2")
    assert [(port.name, port.shape, port.dtype.name) for port in cut.inputs] == [("e", (1, 6, 8), "float32")]


@pytest.mark.feature("IMP-33")
def test_a_language_model_runs_without_its_embedding() -> None:
    """Attention and a feed-forward block behind the cut: the program follows the whole network in floats."""
    nodes = [
        ("Gather", "words ids", "e"),
        ("Gather", "positions places", "p"),
        ("Add", "e p", "s"),
        ("LayerNormalization", "s gamma beta", "n"),
        *(("MatMul", f"n w{each}", each) for each in "qkv"),
        ("Transpose", "k", "kt", {"perm": [0, 2, 1]}),
        ("MatMul", "q kt", "scores"),
        ("Softmax", "scores", "shares", {"axis": -1}),
        ("MatMul", "shares v", "a"),
        ("Add", "s a", "r"),
        ("MatMul", "r wide", "h"),
        ("Tanh", "h", "t"),
        ("MatMul", "t narrow", "z"),
    ]
    constants = {
        "words": array(50, 16), "positions": array(6, 16, seed=1), "places": integers(*range(6)),
        "gamma": array(16, seed=2), "beta": array(16, seed=3), "wide": array(16, 32, seed=4, scale=0.2),
        "narrow": array(32, 16, seed=5, scale=0.2),
        **{f"w{each}": array(16, 16, seed=ord(each), scale=0.2) for each in "qkv"},
    }  # fmt: skip
    types = {"ids": TensorProto.INT64}
    whole = graph(nodes, {"ids": [1, 6]}, ["z"], constants, opset=17, types=types)
    cut = load(whole, cut_preset="gpt2")
    rows = np.random.default_rng(0).integers(0, 50, (12, 6))
    embedded = {"e": constants["words"][rows].astype(np.float32)}
    program = compile_graph(lower(cut, calibrate(cut, embedded)))
    found = simulate(program, embedded).outputs["z"]
    exact = np.concatenate([run_float(whole, {"ids": row[None]})["z"] for row in rows])
    assert similarity(exact, found).cosine > 0.99


@pytest.mark.feature("SUB-04")
def test_a_preset_that_does_not_fit_lists_the_nearest() -> None:
    model = chain(("concat_7:0",), start=False)
    with pytest.raises(ModelError) as raised:
        load(model, cut_preset="ssd_resnet50")
    assert 'tensor "concat_1:0": there is no such tensor; the nearest are "concat_7:0"' in str(raised.value)
    with pytest.raises(ModelError, match='no cut preset "yolo5": did you mean "yolo5s"'):
        load(model, cut_preset="yolo5")
    with pytest.raises(ModelError, match="give one of them"):
        load(model, cut_preset="gpt2", cut_outputs=["x"])


@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        ("gpt2", "gpt2_2l", 1),
        ("gpt2", "gpt2_2l_dynamo", 1),
        ("ssd_mobilenet_v1", "ssd_mobilenet_v1", 12),
        ("ssd_mobilenet_v2", "ssd_mobilenet_v2", 12),
        ("ssd_resnet50", "ssd_resnet50", 2),
        ("ssdlite320_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large", 2),
        ("ssdlite320_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large_raw", 2),
        ("yolo5s", "yolo5s", 3),
        ("yolov8n_pose", "yolov8n_pose", 4),
        ("yolov8n_pose", "yolov8n_pose_raw", 9),
    ],
)
@pytest.mark.feature("SUB-04")
def test_presets_on_exported_graphs(shared: Path, name: str, file: str, count: int) -> None:
    """Only the structure is needed, so the graphs do without their weights."""
    model = ir.from_proto(onnx.load(shared / "zoo" / f"{file}.onnx"))
    inputs, outputs = resolve(name, model, file)
    assert len(inputs) + len(outputs) == count
    assert bool(outputs) == PRESETS[name].end
