"""Every name and parameter of the published manual exists, has a test, and does what it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import published_names
import pytpu
from dnn_quant_tests.api_tests.torch_resnet50_quantization import OFFSET
from listings import document
from models.builder import samples, small_classifier
from test_framework_listings import END_TO_END, listing
from tpu_compiler_tests.tools.py_model_wrapper import model_execute
from tpu_framework import (
    DEFAULT,
    BalancingMode,
    BiasScaleNegativeScaleAggressiveGrouping,
    CompileParameters,
    DependencyResolutionAlgorithm,
    Executable,
    InMemoryQuantizedModel,
    IntermediateInsertion,
    ModelParameters,
    Network,
    QuantizedModel,
    RegularModel,
    ScheduleOptimization,
    Segment,
    SubgraphSlicerParameters,
    TensorAxis,
    TensorDescription,
    TpuDtype,
    TpuProgram,
    compiler,
    get_hw_params,
    onnx_to_tf,
)
from tpu_framework import tensorflow as tf
from tpu_framework.models import _FileSystemMappedQuantizedModel

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def data() -> Arrays:
    return dict(samples(small_classifier().model(), 4))


@pytest.fixture(scope="module")
def model() -> RegularModel:
    graph, names = onnx_to_tf(small_classifier().model())
    return RegularModel(graph.as_graph_def(), {names["image"]: [1, 3, 6, 5]}, None)


@pytest.fixture(scope="module")
def quantized(model: RegularModel, data: Arrays) -> QuantizedModel:
    return model.quantize(model.calibrate(data))


@pytest.mark.parametrize("row", published_names.rows(), ids=lambda row: f"{row[0]}({row[1]})")
def test_every_name_and_parameter_has_a_test(row: tuple[str, str, str]) -> None:
    name, parameter, test = row
    assert test, f"no test of {', '.join(published_names.FILES)} uses {name} with {parameter or 'anything'}"


def test_names_exist_and_take_what_the_table_says() -> None:
    for name, (module, parameters) in published_names.CALLS.items():
        assert set(parameters) <= set(published_names.takes(module, name)), name
    for name, module in published_names.VALUES.items():
        published_names.resolved(module, name)
    with pytest.raises(AttributeError):
        published_names.resolved("tpu_framework", "RegularModel.calibrates")


def test_the_table_is_fresh() -> None:
    text = published_names.PAGE.read_text(encoding="utf-8")
    assert text == published_names.page(), "run python tests/published_names.py"


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("QuantizedModel.save", "quantized.save(a, b)", True),
        ("QuantizedModel.load", "loaded.load(a)", False),
        ("QuantizedModel.load", "QuantizedModel.load(a)", True),
        ("Device.load", "device.load(a)", True),
        ("io.write_graph", "tf.io.write_graph(a)", True),
        ("O1", "compat.O1", True),
        ("O1", "compat.O12", False),
    ],
)
def test_uses_are_told_apart(name: str, code: str, *, expected: bool) -> None:
    dotted = next(iter(published_names.used(ast.parse(code, mode="eval").body)))[0]
    assert published_names.fits(name, dotted) is expected


def test_the_table_holds_every_signature_of_the_manual(shared: Path) -> None:
    text = document(shared, "framework")
    chapter = text[text.index("\n4.1 Converter\nclass") : text.index("\nEND-TO-END TEST\n1 ")]
    heads = re.findall(
        r"^(?:class |static )?(\w+) ?\(((?:\w+(?:=[^,()]*)?,\s*)*\w+(?:=[^,()]*)?)\)$", chapter, re.MULTILINE
    )
    ours = {name.rpartition(".")[2]: taken for name, (_, taken) in published_names.CALLS.items()}
    ours |= {"RegularModel": published_names.CALLS["RegularModel"][1]}
    found = {}
    for name, taken in heads:
        words = [word.partition("=")[0].strip() for word in taken.split(",")]
        if words not in (["str"], ["ModelParameters"], ["CompileParameters"]):
            found[name] = words
    assert len(found) >= 12
    own = [(name.rpartition(".")[2], set(taken)) for name, (_, taken) in published_names.CALLS.items()]
    for name, words in found.items():
        assert any(name == last and set(words) <= taken for last, taken in own), f"{name}: {words}"
    bullets = set(
        re.findall(r"^• ?(\w+) ?\((?:Optional|Dict|Mapping|List|str|float|int|\w+)", chapter, re.MULTILINE)
    )
    known = {parameter for _, taken in published_names.CALLS.values() for parameter in taken}
    assert len(bullets) > 25 and bullets <= known, bullets - known
    for name in re.findall(r"\b([A-Z]\w+)\(\w+=", chapter):
        assert name in published_names.CALLS, name


def test_the_table_holds_every_name_of_the_end_to_end_script(shared: Path) -> None:
    tree = ast.parse(listing(shared, "END-TO-END TEST", END_TO_END))
    known = {*published_names.CALLS, *published_names.VALUES}
    packages = ("tpu_framework", "dnn_quant_tests", "tpu_compiler_tests")
    modules = {"compiler"}
    imported = {
        each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in packages
        for each in node.names
    }
    assert len(imported) >= 10
    assert {
        name for name in imported - modules if not any(each.split(".")[0] == name for each in known)
    } == set()
    for node in ast.walk(tree):
        dotted = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if dotted.startswith(("tf.", "tpu.")) and dotted.count(".") > 1 - dotted.startswith("tpu."):
            name = dotted.partition(".")[2]
            assert any(f".{each}.".find(f".{name}.") >= 0 for each in known), dotted


def test_the_script_of_the_manual_in_our_own_words(
    quantized: QuantizedModel, data: Arrays, tmp_path: Path
) -> None:
    tf.compat.v1.reset_default_graph()
    machine = get_hw_params(tpu_type="128x128_asic")
    feed = {"image": data["image"][:1]}
    word = machine.tpu_parameters.cache_word_length
    graph_def = quantized.as_graph(batch_size=1, cache_word_length=word).as_graph_def()
    with tf.compat.v1.Session(graph=tf.graph_util.import_graph_def(graph_def)) as session:
        (name,) = [value.name for value in graph_def.model.graph.output]
        codes = session.run(fetches=name, feed_dict=quantized.rescale(data=feed))
    expected = quantized.rescale(data={name: codes}, direction=TpuDtype.FLOAT32)[name]
    net, _ = Network.from_quantized_model(quantized_model=quantized)
    net.set_batch(1)
    executable, descriptions = compiler.compile_(hardware_parameters=machine, network=net, parameters=DEFAULT)
    result = model_execute(executable=executable, tensor_descriptions=descriptions, input_data=feed)
    assert result.execution_time_us > 0
    assert result.output_data[name].tobytes() == expected.tobytes()
    program, raw = str(tmp_path / "program.tpu"), str(tmp_path / "program_raw.tpu")
    TpuProgram.from_executable(executable=executable, tensor_descriptions=descriptions).to_file(program)
    codec = pytpu.convert_to_raw(program, raw)
    devices = pytpu.Device.list_devices()
    with pytpu.Device.open(devices[0]) as device:
        with device.load(program) as loaded, loaded.inference() as inference:
            assert inference.sync(feed)[name].tobytes() == expected.tobytes()
        with device.load(raw) as loaded, loaded.inference() as inference:
            words = inference.sync(codec.encode(feed))
        assert codec.decode(words)[name].tobytes() == expected.tobytes()
    assert OFFSET == 1


def test_parameters_of_a_schedule_by_their_names(quantized: QuantizedModel, data: Arrays) -> None:
    parameters = CompileParameters(
        action_graph_data_transfer_optimization=True,
        dependency_resolution_algorithm=DependencyResolutionAlgorithm.PARALLEL,
        ram_io_balancing=BalancingMode.MIRROR,
        shared_cache_schedule_optimizations=ScheduleOptimization(
            configurations=(
                BiasScaleNegativeScaleAggressiveGrouping(depth=0, time_limit_seconds=-1),
                IntermediateInsertion(depth=-1, time_limit_seconds=-1),
            ),
            round_robin=True,
            fallthrough_patch=True,
        ),
        ewp_cache_schedule_optimizations=ScheduleOptimization(
            configurations=(), round_robin=True, fallthrough_patch=True
        ),
        slicer=SubgraphSlicerParameters(
            analysis_depth=10, analysis_depth_branch=4, spatial_limit=4, max_cache_utilization=0.5
        ),
        layer_fusion=-1,
    )
    serial = CompileParameters(
        False, DependencyResolutionAlgorithm.SEQUENTIAL, BalancingMode.NONE,
        ScheduleOptimization((), False, False), ScheduleOptimization((), False, False),
        SubgraphSlicerParameters(1, 4, 2, 1), 0,
    )  # fmt: skip
    net, _ = Network.from_quantized_model(quantized)
    layer = next(layer for layer in net.graph.layers if layer.op == "conv")
    rows = net.graph.tensors[layer.output].shape[1]
    halves = ({TensorAxis.HEIGHT: Segment(0, 2)}, {TensorAxis.HEIGHT: Segment(2, rows)})
    found = []
    for given, scheme in ((parameters, None), (serial, None), (parameters, {layer.name: halves})):
        built = compiler.compile_(get_hw_params("64x64_edge"), net, given, slicing_scheme=scheme)
        found.append(model_execute(*built, {"image": data["image"][:1]}))
    assert found[0].execution_time_us < found[1].execution_time_us
    (name,) = found[0].output_data
    assert len({each.output_data[name].tobytes() for each in found}) == 1


def test_results_have_the_published_types(quantized: QuantizedModel, tmp_path: Path) -> None:
    assert isinstance(quantized, InMemoryQuantizedModel)
    assert isinstance(QuantizedModel.load(quantized.save(tmp_path)), _FileSystemMappedQuantizedModel)
    machine = get_hw_params("128x128_asic")
    assert isinstance(machine, ModelParameters)
    executable, descriptions = compiler.compile_(machine, Network.from_quantized_model(quantized)[0], DEFAULT)
    assert isinstance(executable, Executable)
    assert all(isinstance(each, TensorDescription) for each in descriptions.values()) and descriptions


def test_parameters_of_a_conversion_by_their_names() -> None:
    proto = small_classifier().model()
    graph, names = onnx_to_tf(
        onnx_model=proto,
        input_shape={"image": [2, 3, 6, 5]},
        try_simplify=True,
        onnxsim_fixed_point_iters=1,
        keep_arrangement={"image": (0, 1, 2, 3)},
    )
    (given,) = graph.as_graph_def().model.graph.input
    assert [dim.dim_value for dim in given.type.tensor_type.shape.dim] == [2, 3, 6, 5]
    assert set(names) >= {"image"}
    session = onnxruntime.InferenceSession(graph.as_graph_def().model.SerializeToString())
    assert session.run(None, {"image": np.zeros((2, 3, 6, 5), np.float32)})[0].shape == (2, 4)


def test_parameters_of_a_model_by_their_names(data: Arrays, tmp_path: Path) -> None:
    graph, names = onnx_to_tf(small_classifier().model())
    relu = next(node.output[0] for node in small_classifier().model().graph.node if node.op_type == "Relu")
    graph_def = graph.as_graph_def()
    cut = RegularModel(
        original_graph_def=graph_def,
        input_shapes={"image": [1, 3, 6, 5]},
        output_nodes=["last"],
        anchors_mapping={"last": names[relu]},
        percentile=99.0,
        operation_cfg={"*": "int16"},
        swish_layer_mode="product",
    )
    thresholds = cut.calibrate(
        calibration_data=data,
        save_output_histograms=True,
        debug_sample_number=2,
        save_dir=str(tmp_path / "calibration"),
        original_model_statistic_filename=str(tmp_path / "statistics.json"),
    )
    assert (tmp_path / "calibration" / "histograms").is_dir() and (tmp_path / "statistics.json").is_file()
    tuned = cut.fine_tune(
        thresholds=thresholds, fine_tuning_data=data, fine_tuning_epochs=1, working_dir=str(tmp_path / "work")
    )
    assert tuned.keys() == thresholds.keys() and any((tmp_path / "work").iterdir())
    RegularModel.dump_thresholds(file_name=tmp_path / "t.json", thresholds=tuned)
    found = cut.quantize(thresholds=RegularModel.load_thresholds(file_name=tmp_path / "t.json"))
    assert {found.graph.tensors[layer.output].dtype for layer in found.graph.layers} == {"int16"}
    assert [port.name for port in found.ports["outputs"]] == [names[relu]]
    path = found.save(file_dir=tmp_path / "saved", file_name="net", io_params_name="io.json")
    assert (tmp_path / "saved" / "io.json").is_file()
    loaded = QuantizedModel.load(file_name=path)
    assert loaded.graph.to_json() == found.graph.to_json()
