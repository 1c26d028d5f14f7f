"""The published API: signatures, presets, and the way from a model to results, against the native API."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import tpu_framework as compat
import tpuflow
from conftest import REPOSITORY, slow_except
from models.builder import Builder, samples, small_classifier
from tpu_framework import (
    DEFAULT,
    O1,
    O5,
    BalancingMode,
    CompileParameters,
    DependencyResolutionAlgorithm,
    IntermediateInsertion,
    Network,
    NotAvailableError,
    QuantizedModel,
    RegularModel,
    ScheduleOptimization,
    SubgraphSlicerParameters,
    TpuDtype,
    TpuProgram,
    compile_,
    get_hw_params,
    model_execute,
)
from tpuflow.calibration import Ranges
from tpuflow.config import ConfigError
from tpuflow.errors import FileError, MachineError, RangesError, SampleError, TpuflowError
from tpuflow.execution.simulation import simulate
from tpuflow.runtime import Device

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def model() -> RegularModel:
    return RegularModel(small_classifier().model(), {"image": [1, 3, 6, 5]}, None)


@pytest.fixture(scope="module")
def data() -> Arrays:
    return dict(samples(small_classifier().model(), 4))


@pytest.fixture(scope="module")
def quantized(model: RegularModel, data: Arrays) -> compat.InMemoryQuantizedModel:
    return model.quantize(model.calibrate(data))


@pytest.mark.feature("SCH-01", "SCH-07")
def test_signatures_are_the_published_ones() -> None:
    def words(function: Any) -> dict[str, Any]:
        return {
            name: parameter.default
            for name, parameter in inspect.signature(function).parameters.items()
            if name != "self"
        }

    empty = inspect.Parameter.empty
    assert words(compat.onnx_to_tf) == {
        "onnx_model": empty, "input_shape": None, "try_simplify": False, "onnxsim_fixed_point_iters": 100,
        "keep_arrangement": None,
    }  # fmt: skip
    assert words(RegularModel.__init__) == {
        "original_graph_def": empty, "input_shapes": empty, "output_nodes": empty, "anchors_mapping": None,
        "percentile": 100.0, "operation_cfg": None, "swish_layer_mode": None,
    }  # fmt: skip
    assert words(RegularModel.calibrate) == {
        "calibration_data": empty, "save_output_histograms": False, "debug_sample_number": 0, "save_dir": "",
        "original_model_statistic_filename": None,
    }  # fmt: skip
    assert words(RegularModel.fine_tune) == {
        "thresholds": empty, "fine_tuning_data": empty, "fine_tuning_epochs": 10, "working_dir": "",
    }  # fmt: skip
    assert words(RegularModel.dump_thresholds) == {"file_name": empty, "thresholds": empty}
    assert words(RegularModel.load_thresholds) == {"file_name": empty}
    assert words(RegularModel.quantize) == {"thresholds": empty}
    assert words(QuantizedModel.as_graph) == {"batch_size": None, "cache_word_length": 128}
    assert words(QuantizedModel.rescale) == {"data": empty, "direction": None}
    assert words(QuantizedModel.save) == {
        "file_dir": empty, "file_name": None, "io_params_name": "scales.json",
    }  # fmt: skip
    assert words(QuantizedModel.load) == {"file_name": empty}
    assert words(compile_) == {
        "hardware_parameters": empty, "network": empty, "parameters": empty, "slicing_scheme": None,
    }  # fmt: skip
    assert list(words(model_execute)) == ["executable", "tensor_descriptions", "input_data"]
    assert list(words(compat.get_sub_model)) == ["model", "ordered_input_names", "ordered_output_names"]
    assert [field.name for field in dataclasses.fields(CompileParameters)] == [
        "action_graph_data_transfer_optimization", "dependency_resolution_algorithm", "ram_io_balancing",
        "shared_cache_schedule_optimizations", "ewp_cache_schedule_optimizations", "slicer", "layer_fusion",
    ]  # fmt: skip
    assert all(hasattr(compat, name) for name in compat.__all__)


@pytest.mark.feature("SCH-04", "SCH-05", "SCH-06")
def test_presets_are_the_published_ones() -> None:
    insertion, grouping = IntermediateInsertion, compat.BiasScaleNegativeScaleAggressiveGrouping
    assert dataclasses.astuple(O1) == dataclasses.astuple(
        CompileParameters(
            True, DependencyResolutionAlgorithm.SEQUENTIAL, BalancingMode.NONE,
            ScheduleOptimization((insertion(16, 240),), False, False), ScheduleOptimization((), False, False),
            SubgraphSlicerParameters(1, 4, 2, 1), 0,
        )
    )  # fmt: skip
    assert dataclasses.astuple(O5) == dataclasses.astuple(
        CompileParameters(
            True, DependencyResolutionAlgorithm.PARALLEL, BalancingMode.MIRROR,
            ScheduleOptimization((grouping(0, -1), insertion(-1, -1)), True, True),
            ScheduleOptimization((), True, True), SubgraphSlicerParameters(10, 4, 4, 0.5), -1,
        )
    )  # fmt: skip
    assert DEFAULT is O1
    assert (DependencyResolutionAlgorithm.PARALLEL.value, BalancingMode.MIRROR.value) == (2, 1)
    assert repr(O5).startswith("CompileParameters(action_graph_data_transfer_optimization=True, ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_fusion": -2}, r"layer_fusion is -2, it must be a number from -1 on"),
        ({"ram_io_balancing": "MIRROR"}, "ram_io_balancing is 'MIRROR', not a BalancingMode"),
        ({"action_graph_data_transfer_optimization": 1}, "must be True or False"),
    ],
)
@pytest.mark.feature("SCH-07")
def test_impossible_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TpuflowError, match=message):
        dataclasses.replace(O5, **change)
    with pytest.raises(
        TpuflowError, match=r"max_cache_utilization is 1\.5, it must be a number from 0\.01 to 1"
    ):
        SubgraphSlicerParameters(1, 4, 2, 1.5)
    with pytest.raises(TpuflowError, match=r"IntermediateInsertion\.depth is -2"):
        IntermediateInsertion(-2, 1)


@pytest.mark.feature("SCH-02")
def test_machines_by_name() -> None:
    machine = get_hw_params("128x128_asic")
    assert machine == compat.TPU_128x128_PARAMS
    assert machine.tpu_parameters.cache_word_length == 128
    assert get_hw_params("32x32_fpga").tpu_parameters.cache_word_length == 32
    with pytest.raises(MachineError, match=r'"tpu9" is unknown.*128x128_asic, 128x128_dual_ddr'):
        get_hw_params("tpu9")
    with pytest.raises(MachineError, match=r"no parameter array\.depth"):
        machine.replace(array__depth=3)


@pytest.mark.feature("SCH-03", "SIM-09")
def test_a_machine_of_ones_own(quantized: QuantizedModel, data: Arrays, tmp_path: Path) -> None:
    mine = get_hw_params("64x64_edge").replace(name="mine", array__columns=32)
    executable, descriptions = compile_(mine, Network.from_quantized_model(quantized)[0], O5)
    metadata = json.loads(executable.program.metadata())  # type: ignore[union-attr]
    assert metadata["machine"]["array"]["columns"] == mine.tpu_parameters.columns == 32
    feed = {"image": data["image"][:1]}
    done = model_execute(executable, descriptions, feed)
    with pytest.raises(MachineError, match=r"machine mine: array\.rows 48"):
        compile_(mine.replace(array__rows=48), Network.from_quantized_model(quantized)[0], O5)
    twice = mine.replace(clock_hz=2 * mine.tpu_parameters.clock_hz)
    assert twice.tpu_parameters.clock_hz == 2 * mine.tpu_parameters.clock_hz
    expected = simulate(executable.program, feed)
    assert done.execution_time_us == expected.cycles * 1e6 / mine.tpu_parameters.clock_hz
    (tmp_path / "mine.toml").write_text(mine.to_toml())
    TpuProgram.from_executable(executable, descriptions).to_file(tmp_path / "net.tpu")
    with (
        Device.open(str(tmp_path / "mine.toml")) as device,
        device.load(tmp_path / "net.tpu") as loaded,
        loaded.inference() as inference,
    ):
        found = inference.sync(feed)
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in done.output_data.items()
    }


@pytest.mark.feature("PRG-01", "SIM-01")
def test_from_model_to_results(
    model: RegularModel, quantized: QuantizedModel, data: Arrays, tmp_path: Path
) -> None:
    graph, renaming = Network.from_quantized_model(quantized)
    executable, descriptions = compile_(compat.TPU_128x128_PARAMS, graph, O5)
    assert set(descriptions) == set(renaming)
    path, again = tmp_path / "a.tpu", tmp_path / "b.tpu"
    TpuProgram.from_executable(executable, descriptions).to_file(path)
    with Device.open(mode="exact") as device, device.load(path) as loaded, loaded.inference() as inference:
        outputs = inference.sync({"image": data["image"][:1]})
        loaded.program.save(again)
    assert path.read_bytes() == again.read_bytes()
    done = model_execute(
        executable=executable, tensor_descriptions=descriptions, input_data={"image": data["image"][:1]}
    )
    assert done.execution_time_us == outputs.time_us and done.execution_time_us > 0
    native = tpuflow.compile(
        tpuflow.quantize(
            model.model,
            tpuflow.calibrate(
                model.model, data, tpuflow.Config.parse({"calibrate": {"strategy": "extrema"}})
            ),
        ),
        level=5,
    )
    (name,) = done.output_data
    expected = simulate(native, {"image": data["image"][:1]}).outputs[name]
    assert done.output_data[name].tobytes() == outputs[name].tobytes() == expected.tobytes()


@pytest.mark.feature("GCA-15")
def test_thresholds_are_fine_tuned(model: RegularModel, data: Arrays, tmp_path: Path) -> None:
    start = model.calibrate(data)
    wide = {name: (low * 3, high * 3) for name, (low, high) in start.items()}
    tuned = model.fine_tune(wide, data, fine_tuning_epochs=3, working_dir=tmp_path)
    assert tuned.keys() == wide.keys()
    assert tuned != wide
    saved = Ranges.load(tmp_path / "checkpoints" / "best.json")
    assert {name: found.pairs[0] for name, found in saved.tensors.items()} == tuned
    assert model.fine_tune(start, data, 0) == start


@pytest.mark.feature("LOW-11")
def test_forms_of_swish(data: Arrays) -> None:
    def gated() -> Builder:
        b = Builder("gated")
        b.output(b.gemm(b.silu(b.conv(b.input("image", [1, 3, 6, 5]), 8)), 4))
        return b

    graphs = {}
    for mode in (None, "function", "product"):
        made = RegularModel(gated().model(), None, None, swish_layer_mode=mode)
        graphs[mode] = made.quantize(made.calibrate(data)).graph
    assert graphs[None].to_json() == graphs["function"].to_json() != graphs["product"].to_json()
    assert [layer.op for layer in graphs["product"].layers] == ["conv", "unary", "mul", "conv"]
    with pytest.raises(ConfigError, match="swish_layer_mode: input should be 'function' or 'product'"):
        RegularModel(small_classifier().model(), None, None, swish_layer_mode="exact")


@pytest.mark.feature("CFG-09")
def test_options_of_layers_by_name(data: Arrays) -> None:
    def types(options: dict[str, str | dict[str, object]]) -> dict[str, str]:
        made = RegularModel(small_classifier().model(), None, None, operation_cfg=options)
        graph = made.quantize(made.calibrate(data)).graph
        return {layer.nodes[-1]: graph.tensors[layer.output].dtype for layer in graph.layers if layer.nodes}

    usual = types({})
    pool = next(name for name in usual if "pool" in name)
    assert types({pool: "float"}) == {**usual, pool: "float32"}
    assert types({pool: "bfloat16"}) == {**usual, pool: "bfloat16"}
    assert types({"*": "w8a16"}) == dict.fromkeys(usual, "int16")
    assert types({pool: {"dtype": "float16"}}) == {**usual, pool: "float16"}
    with pytest.raises(ConfigError, match='"nothing" matches no node'):
        types({"nothing": "float"})
    with pytest.raises(ConfigError, match='quant_type = "exact" is not known'):
        types({pool: "exact"})


@pytest.mark.feature("MSC-05")
def test_save_load_and_rescale(quantized: QuantizedModel, data: Arrays, tmp_path: Path) -> None:
    path = quantized.save(tmp_path / "saved", "net")
    scales = json.loads((tmp_path / "saved" / "scales.json").read_text())
    loaded = QuantizedModel.load(path)
    assert type(loaded).__name__ == "_FileSystemMappedQuantizedModel"
    assert loaded.graph.to_json() == quantized.graph.to_json()
    image = data["image"][:1]
    codes = loaded.rescale({"image": image})["image"]
    port = scales["inputs"]["image"]
    expected = np.clip(
        np.rint(image.astype(np.float64) / np.float32(port["scale"][0])) + port["zero_point"], -128, 127
    )
    np.testing.assert_array_equal(codes, expected.astype(np.int8))
    back = loaded.rescale({"image": codes}, TpuDtype.FLOAT32)["image"]
    assert np.abs(back - image).max() <= port["scale"][0] * 0.51 + np.abs(image).max() * 0.02
    np.testing.assert_array_equal(loaded.rescale({"image": back}, TpuDtype.INT8)["image"], codes)
    with pytest.raises(SampleError, match='"x" is neither input nor output'):
        loaded.rescale({"x": image})
    with pytest.raises(FileError, match="no such file"):
        QuantizedModel.load(tmp_path / "none.tpuq")


LOAD = """
import pathlib, re, sys
import numpy as np
from tpu_framework import QuantizedModel

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024

before = resident()
model = QuantizedModel.load(sys.argv[1])
codes = model.rescale({"x": np.zeros((1, 4096), np.float32)})
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
@pytest.mark.feature("PRG-20")
@pytest.mark.slow
def test_a_model_in_a_file_takes_little_memory(tmp_path: Path) -> None:
    b = Builder("wide")
    b.output(b.gemm(b.input("x", [1, 4096]), 4096))
    model = RegularModel(b.model(), None, None)
    quantized = model.quantize(model.calibrate({"x": np.ones((1, 4096), np.float32)}))
    path = quantized.save(tmp_path)
    size = path.stat().st_size
    assert size > 4096 * 4096
    done = subprocess.run([sys.executable, "-c", LOAD, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < size / 4
    assert type(QuantizedModel.load(path)) is not type(quantized)
    assert QuantizedModel.load(path).graph.to_json() == quantized.graph.to_json()


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.feature("MSC-06")
def test_any_runtime_computes_the_simulators_bits(
    quantized: QuantizedModel, data: Arrays, batch: int | None
) -> None:
    feed = {"image": data["image"][: batch or 1]}
    model = quantized.as_graph(batch, 64).model
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    codes = dict(zip(names, session.run(None, quantized.rescale(feed)), strict=True))
    found = quantized.rescale(codes)
    graph, _ = Network.from_quantized_model(quantized)
    if batch is not None:
        graph.set_batch(batch)
    executable, descriptions = compile_(get_hw_params("64x64_edge"), graph, O1)
    words = json.loads({entry.key: entry.value for entry in model.metadata_props}["words"])
    assert words == {name: port.words for name, port in descriptions.items()}
    for name, array in model_execute(executable, descriptions, feed).output_data.items():
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.feature("MSC-07")
def test_networks_and_their_batch(quantized: QuantizedModel, data: Arrays, tmp_path: Path) -> None:
    graph, renaming = Network.from_quantized_model(quantized)
    tensors = [tensor.name for tensor in graph.graph.tensors]
    assert "image" in renaming and set(renaming.values()) <= set(tensors)
    graph.set_batch(3)
    executable, descriptions = compile_(compat.TPU_128x128_PARAMS, graph, O1)
    assert descriptions["image"].shape == (3, 3, 6, 5)
    (name,) = set(descriptions) - {"image"}
    many = model_execute(executable, descriptions, {"image": data["image"][:3]}).output_data[name]
    one = compile_(compat.TPU_128x128_PARAMS, Network.from_quantized_model(quantized)[0], O1)
    for sample in range(3):
        single = model_execute(*one, {"image": data["image"][sample : sample + 1]}).output_data[name]
        np.testing.assert_array_equal(many[sample : sample + 1], single)
    from_file = Network.from_quantized_model(QuantizedModel.load(quantized.save(tmp_path)))[0]
    from_file.set_batch(1)
    with pytest.raises(NotAvailableError, match="quantise it again"):
        from_file.set_batch(2)


@pytest.mark.feature("VIS-13")
def test_calibration_writes_what_it_saw(model: RegularModel, data: Arrays, tmp_path: Path) -> None:
    feeds = [{"image": image[None]} for image in data["image"]]
    thresholds = model.calibrate(feeds, True, 2, tmp_path, tmp_path / "statistics.json")
    files = {path.stem: np.load(path) for path in (tmp_path / "histograms").glob("*.npz")}
    assert len(files) >= len(thresholds) and "image" in files
    image = files["image"]
    assert image["counts"].sum() + image["zeros"] == data["image"][:2].size
    np.testing.assert_array_equal(image["thresholds"], thresholds["image"])
    statistics = json.loads((tmp_path / "statistics.json").read_text())["tensors"]
    assert statistics["image"]["extrema"][1] == data["image"][:2].max()
    assert Ranges.load(tmp_path / "thresholds.json").tensors["image"].max == thresholds["image"][1]


def test_thresholds_are_files(model: RegularModel, data: Arrays, tmp_path: Path) -> None:
    thresholds = model.calibrate(data)
    RegularModel.dump_thresholds(tmp_path / "t.json", thresholds)
    assert RegularModel.load_thresholds(tmp_path / "t.json") == thresholds
    (tmp_path / "t.json").write_text('{"a": [1]}')
    with pytest.raises(RangesError, match="a pair of numbers per tensor"):
        RegularModel.load_thresholds(tmp_path / "t.json")


def test_percentile_and_layers_reach_the_native_settings(data: Arrays) -> None:
    clipped = RegularModel(small_classifier().model(), [[1, 3, 6, 5]], None, percentile=90.0)
    whole = RegularModel(small_classifier().model(), None, None)
    assert clipped.calibrate(data)["image"][1] < whole.calibrate(data)["image"][1]
    wide = RegularModel(small_classifier().model(), None, None, operation_cfg={"*": {"dtype": "int16"}})
    graph = wide.quantize(wide.calibrate(data)).graph
    assert {graph.tensors[layer.output].dtype for layer in graph.layers} == {"int16"}


DIGITS = REPOSITORY / "examples" / "digits"


@pytest.mark.parametrize("method", slow_except(["qc", "qt"], ["qc", "qcf", "qt", "qtf"]))
@pytest.mark.feature("MSC-04")
def test_the_script_runs_every_way(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("end_to_end", DIGITS / "end_to_end.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def run(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["end_to_end.py", "--output", str(tmp_path), *words])
        script.main()

    if method.startswith("qt"):
        run("--quantize-method", "qc")
    saved = tmp_path / "graph.onnx"
    ways = ["--enable-tlm", "--enable-tpu", "--enable-raw"]
    run(*ways, "--quantize-method", method, "--save-graph-path", str(saved))
    out = capsys.readouterr().out
    lines = [line.split(maxsplit=1) for line in out.splitlines()[-3:]]
    assert [name for name, _ in lines] == ["tlm", "tpu", "raw"]
    assert len({result for _, result in lines}) == 1
    assert re.search(r"digit (\d), the label says \1", lines[0][1])
    assert saved.is_file()
