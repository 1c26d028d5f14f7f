"""What a build says of itself: sizes, and that its seed decides all that is random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from cli.conftest import Built, Command
from models.builder import Builder, samples
from tpuflow.cli.commands.console import bytes_text
from tpuflow.evaluation.fidelity import Evaluator, Outputs
from tpuflow.frontend import load
from tpuflow.partitioning import device_networks
from tpuflow.partitioning.storage import load_graph
from tpuflow.pipeline import graph_bytes


@pytest.mark.feature("MSC-22")
def test_sizes_are_those_of_files_and_of_the_model(built: Built, command: Command, tmp_path: Path) -> None:
    program, figures = tmp_path / "net.tpu", tmp_path / "figures.json"
    result = command("build", built.model, "--calib", built.calibration, "-o", program, "--json", figures)
    assert result.status == 0, result.err
    assert f"program    {program} ({bytes_text(program.stat().st_size)})" in result.out
    normalized = load(built.model).model.graph.initializers.values()
    floats = sum(each.const_value.numpy().nbytes for each in normalized if each.const_value is not None)
    graph = load_graph(program.with_suffix(".tpuq"))
    constants = sum(
        int(np.prod(tensor.shape)) * np.dtype(tensor.dtype).itemsize
        for part in device_networks(graph)
        for tensor in part.tensors
        if tensor.is_constant
    )
    line = next(line for line in result.out.splitlines() if line.startswith("constants"))
    assert bytes_text(constants) in line
    assert line.endswith(f"times smaller than {bytes_text(floats)} of floats")
    memory = json.loads(figures.read_text(encoding="utf-8"))["memory"]
    largest = max(int(np.prod(tensor.shape)) for tensor in device_networks(graph)[0].tensors)
    assert largest <= memory["cache_peak_bytes"] <= memory["cache_bytes"]


@pytest.mark.feature("MSC-14")
def test_one_seed_decides_all_that_is_random(built: Built, command: Command, tmp_path: Path) -> None:
    made: dict[str, tuple[bytes, bytes]] = {}
    for name, seed in (("first", 5), ("again", 5), ("other", 6)):
        program = tmp_path / f"{name}.tpu"
        # Without samples ranges come from generated ones; the search of level 5 draws as well.
        result = command("build", built.model, "-O5", "--seed", seed, "-o", program)
        assert result.status == 0, result.err
        made[name] = program.read_bytes(), program.with_suffix(".tpuq").read_bytes()
    assert made["first"] == made["again"]
    assert made["first"] != made["other"]


def test_a_build_reuses_programs_of_a_folder(
    built: Built, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, first, again = (tmp_path / name for name in ("cache", "first.tpu", "again.tpu"))
    words = ("build", built.program.with_suffix(".tpuq"), "-O5", "--cache", cache, "-o")
    assert command(*words, first).status == 0
    assert first.read_bytes() == built.program.read_bytes()
    monkeypatch.delattr("tpuflow._core.schedule")
    result = command(*words, again)
    assert result.status == 0, result.err
    assert again.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.feature("CAL-28")
def test_the_number_of_samples_used_is_said(
    built: Built, command: Command, tmp_path: Path, count: int
) -> None:
    arrays = samples(onnx.load(built.model), count)
    np.savez(tmp_path / "one.npz", allow_pickle=False, **arrays)
    folder = tmp_path / "many"
    folder.mkdir()
    for index in range(count):
        each = {name: value[index : index + 1] for name, value in arrays.items()}
        np.savez(folder / f"{index}.npz", allow_pickle=False, **each)
    said = []
    for given in (tmp_path / "one.npz", folder):
        result = command("calibrate", built.model, "--calib", given, "-o", tmp_path / "ranges.json")
        assert result.status == 0, result.err
        assert f" {count} sample" in result.out
        said.append((tmp_path / "ranges.json").read_bytes())
    assert said[0] == said[1]


@pytest.mark.parametrize(("dtype", "size"), [("int8", 1), ("f32", 4)])
@pytest.mark.feature("MSC-09")
def test_what_a_graph_needs_by_hand(
    built: Built, command: Command, tmp_path: Path, dtype: str, size: int
) -> None:
    given = ("--calib", built.calibration) if dtype == "int8" else ()
    program = tmp_path / "net.tpu"
    assert command("build", built.model, "--dtype", dtype, *given, "-o", program).status == 0
    # The addition holds both of its operands and its result, 9 x 7 pixels of 8 channels each.
    activations = 3 * 9 * 7 * 8 * size
    # Convolutions of 3 x 3 and 1 x 1 and a product: multiply-accumulates times the bits of both factors.
    operations = (9 * 7 * 8 * 27 + 9 * 7 * 8 * 8 + 6 * 96) * (8 * size) ** 2
    graph = program.with_suffix(".tpuq")
    constants = graph_bytes(load_graph(graph))
    assert command("inspect", graph).out.splitlines()[2] == (
        f"constants {bytes_text(constants)}, activations {bytes_text(activations)} at a time, "
        f"together {bytes_text(constants + activations)}; {operations:,} bit operations"
    )


@pytest.mark.parametrize(
    ("written", "program"),
    [
        ("", "tiny_b1_o1_128x128_asic.tpu"),
        ("model_name = digits", "digits_o.tpu"),
        ("out_ir_name = first", "first.tpu"),
        ("output_dir = made/here\nmodel_name = digits\nout_ir_name = second.tpu", "made/here/second.tpu"),
    ],
)
@pytest.mark.feature("CFG-12")
def test_files_appear_under_the_given_names_only(
    built: Built,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: str,
    program: str,
) -> None:
    settings, work = tmp_path / "net.cfg", tmp_path / "work"
    settings.write_text(f"[Common]\nweight_bits = 8\n{written}\n", encoding="utf-8")
    work.mkdir()
    monkeypatch.chdir(work)
    result = command("build", built.model, "--calib", built.calibration, "--config", settings)
    assert result.status == 0, result.err
    expected = {Path(program).with_suffix(suffix) for suffix in (".tpu", ".tpuq", ".layers.json", ".sha256")}
    assert {path.relative_to(work) for path in work.rglob("*") if path.is_file()} == expected


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("out_ir_name = a/b", '"a/b" is not a file name'),
        ("model_name = .hidden", '".hidden" is not a file name'),
        ("out_ir_name = net.tpuq", "name the program .tpu"),
        ("output_dir = net.cfg", "net.cfg: cannot be made: file exists"),
        ("output_dir = a\x07b", "has control characters"),
        ("model_name = a\x07b", "has control characters"),
    ],
)
@pytest.mark.feature("CFG-12")
def test_names_are_checked_before_anything_is_built(
    built: Built, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.cfg").write_text(f"[Common]\n{written}\n", encoding="utf-8")
    result = command("build", built.model, "--calib", built.calibration, "--config", "net.cfg")
    assert result.status == 1
    assert told in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["net.cfg"]


@pytest.mark.parametrize(("original", "optimized", "calls"), [(1, 1, 2), (1, 0, 1), (0, 1, 1), (0, 0, 0)])
@pytest.mark.feature("CFG-13")
def test_the_metric_is_run_as_often_as_asked(
    built: Built,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    original: int,
    optimized: int,
    calls: int,
) -> None:
    counted: list[object] = []
    usual = Evaluator.value

    def value(evaluator: Evaluator, outputs: Outputs) -> float:
        counted.append(outputs)
        return usual(evaluator, outputs)

    monkeypatch.setattr(Evaluator, "value", value)
    settings = tmp_path / "net.cfg"
    switches = f"eval_original_model = {bool(original)}\neval_optimized_model = {bool(optimized)}"
    settings.write_text(f"[Common]\nmetric = top1\ndata = {built.labeled}\n{switches}\n", encoding="utf-8")
    words = ("--calib", built.calibration, "--config", settings, "-o", tmp_path / "net.tpu")
    result = command("build", built.model, *words)
    assert result.status == 0, result.err
    assert len(counted) == calls
    told = [line for line in (result.out + result.err).splitlines() if line.startswith("top1: ")]
    assert len(told) == min(1, calls)
    assert [level in line for line in told for level in ("float", "quantised")] == [
        bool(each) for each in (original, optimized) if calls
    ]


@pytest.mark.feature("CFG-12")
def test_no_folder_is_made_for_a_model_that_cannot_be_read(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.cfg").write_text("[Common]\noutput_dir = made\n", encoding="utf-8")
    assert command("build", "absent.onnx", "--config", "net.cfg").status == 1
    assert not Path("made").exists()


@pytest.mark.feature("CFG-13")
def test_every_metric_is_measured(built: Built, command: Command, tmp_path: Path) -> None:
    settings = tmp_path / "net.cfg"
    settings.write_text(f"[Common]\nmetric = top1,top(2)\ndata = {built.labeled}\n", encoding="utf-8")
    words = ("--calib", built.calibration, "--config", settings, "-o", tmp_path / "net.tpu")
    result = command("build", built.model, *words)
    assert result.status == 0, result.err
    lines = [line for line in (result.out + result.err).splitlines() if line.startswith("top")]
    assert [line.split(":")[0] for line in lines] == ["top1", "top(2)"]


@pytest.mark.parametrize(
    ("metric", "data"), [("top1", "calibration"), ("best", "labelled"), ("top1", "absent")]
)
@pytest.mark.feature("CFG-13")
def test_what_cannot_be_measured_is_said_before_calibration(
    built: Built, command: Command, tmp_path: Path, metric: str, data: str
) -> None:
    settings, file = tmp_path / "net.cfg", getattr(built, data, tmp_path / "absent.npz")
    settings.write_text(f"[Common]\nmetric = {metric}\ndata = {file}\n", encoding="utf-8")
    words = ("--calib", built.calibration, "--config", settings, "-o", tmp_path / "net.tpu")
    result = command("build", built.model, *words)
    assert result.status == 1
    assert "calibrate " not in result.out


def test_a_graph_without_constants_has_no_ratio(command: Command, tmp_path: Path) -> None:
    b = Builder("plain")
    b.output(
        b.node("Clip", b.input("x", [1, 2, 4, 4]), b.constant(np.float32(-1)), b.constant(np.float32(1)))
    )
    onnx.save(b.model(), tmp_path / "plain.onnx")
    result = command("build", tmp_path / "plain.onnx", "-o", tmp_path / "plain.tpu")
    assert result.status == 0, result.err
    assert "constants  0 B\n" in result.out


def test_what_only_lowering_leaves_to_the_host_stands_in_no_trials_way(
    command: Command, tmp_path: Path
) -> None:
    """With samples networks are compared, here with and without factors by channel."""
    b = Builder("masked")
    x, keep = b.input("x", [1, 8, 4, 4]), b.input("keep", [1, 8], onnx.TensorProto.INT64)
    x = b.conv(b.node("Relu", b.conv(x, 8, pads=(1, 1, 1, 1))), 8, pads=(1, 1, 1, 1))
    kept = b.node("Unsqueeze", b.node("Cast", keep, to=onnx.TensorProto.FLOAT), b.integers(2, 3))
    b.output(b.node("Mul", x, kept))
    onnx.save(b.model(), tmp_path / "masked.onnx")
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x": generator.standard_normal((8, 8, 4, 4)).astype(np.float32),
        "keep": generator.integers(0, 2, (8, 8)),
    }
    np.savez(tmp_path / "samples.npz", allow_pickle=False, **arrays)
    result = command(
        "build", tmp_path / "masked.onnx", "--calib", tmp_path / "samples.npz", "-o", tmp_path / "masked.tpu"
    )
    assert result.status == 0, result.err
    assert "run on the host: Cast" in result.out


@pytest.mark.parametrize("odd", ["x", "weights"])
def test_outputs_that_no_node_makes(odd: str, command: Command, tmp_path: Path) -> None:
    """One that is an input too, and one that is a constant, which others read."""
    b = Builder("odd")
    weights = b.constant(np.arange(12, dtype=np.float32).reshape(4, 3), "weights")
    y = b.node("MatMul", b.input("x", [1, 4]), weights)
    b.output(y, odd)
    onnx.save(b.model(), tmp_path / "odd.onnx")
    result = command("build", tmp_path / "odd.onnx", "-o", tmp_path / "odd.tpu")
    assert result.status == 0, result.err
    given = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", allow_pickle=False, x=given)
    words = ("--inputs", tmp_path / "x.npz", "--outputs", tmp_path / "y.npz")
    assert command("simulate", tmp_path / "odd.tpu", *words).status == 0
    with np.load(tmp_path / "y.npz") as found:
        wanted = given if odd == "x" else np.stack([np.arange(12).reshape(4, 3)] * 2)
        np.testing.assert_allclose(found[odd], wanted, atol=0.05)
        assert found[y].shape == (2, 3)


def test_an_output_without_elements_is_the_hosts(command: Command, tmp_path: Path) -> None:
    b = Builder("empty")
    x = b.input("x", [1, 4])
    b.output(b.node("Relu", x), b.node("Slice", x, b.integers(0), b.integers(0), b.integers(1)))
    onnx.save(b.model(), tmp_path / "empty.onnx")
    result = command("build", tmp_path / "empty.onnx", "-o", tmp_path / "empty.tpu")
    assert result.status == 0, result.err
    assert "run on the host:" in result.out


def test_shapes_left_open_are_given_wherever_a_model_is(command: Command, tmp_path: Path) -> None:
    b = Builder("open")
    x = b.input("x", ["batch", 2, "height", 5])
    b.output(b.node("GlobalAveragePool", b.node("Relu", x)))
    model, program, data = (tmp_path / name for name in ("open.onnx", "open.tpu", "x.npz"))
    onnx.save(b.model(), model)
    array = np.random.default_rng(0).standard_normal((3, 2, 4, 5)).astype(np.float32)
    np.savez(data, allow_pickle=False, x=array, labels=np.zeros(3, np.int64))
    np.savez(tmp_path / "only.npz", allow_pickle=False, x=array)
    shape = ("--input-shape", "x=1,2,4,5")
    assert command("build", model, *shape, "-o", program).status == 0
    run = ("--inputs", tmp_path / "only.npz", "--outputs", tmp_path / "y.npz")
    scored = ("--data", data, "--metric", "top1")
    for words in (
        ("inspect", model),
        ("run", model, *run),
        ("evaluate", model, *scored),
        ("evaluate", program, "--float", model, *scored),
    ):
        refused = command(*words)
        assert refused.status == 1
        assert "--input-shape x=..." in refused.err
        assert command(*words, *shape).status == 0
    for words in (("inspect", program), ("run", program, *run), ("evaluate", program, *scored)):
        refused = command(*words, *shape)
        assert refused.status == 1
        assert "has the shapes it was made for" in refused.err


def test_a_program_takes_the_place_of_nothing_else(built: Built, command: Command, tmp_path: Path) -> None:
    """Said before anything is computed, and the model stays what it is."""
    model, odd = tmp_path / "net.onnx", tmp_path / "net"
    model.write_bytes(built.model.read_bytes())
    odd.write_bytes(built.graph.read_bytes())
    for source, output, told in (
        (model, model, "is the name of a model"),
        (model, tmp_path / "other.onnx", "is the name of a model"),
        (odd, odd, "is the name of a model"),
        (model, tmp_path / "net.tpuq", "is the suffix of graphs"),
        (model, tmp_path, "is a directory"),
        (model, tmp_path / "none" / "net.tpu", "does not exist"),
    ):
        result = command("build", source, "-o", output)
        assert (result.status, result.out) == (1, "")
        assert told in result.err
    assert {path.name for path in tmp_path.iterdir()} == {"net.onnx", "net"}
    assert model.read_bytes() == built.model.read_bytes()


@pytest.mark.parametrize("option", ["--json", "--report"])
@pytest.mark.parametrize(("place", "told"), [("none/file", "does not exist"), (".", "is a directory")])
def test_nothing_is_built_where_a_second_file_has_no_place(
    built: Built, command: Command, tmp_path: Path, option: str, place: str, told: str
) -> None:
    result = command("build", built.model, "-o", tmp_path / "net.tpu", option, tmp_path / place)
    assert (result.status, result.out) == (1, "")
    assert told in result.err
    assert not list(tmp_path.iterdir())


def test_a_model_onnxruntime_has_no_kernel_for_is_built_with_a_remark(
    command: Command, tmp_path: Path
) -> None:
    """MXFP4 weights: the import is checked against the numbers they stand for elsewhere."""
    codes = np.random.default_rng(0).integers(0, 16, (32, 8)).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    scales = np.full((1, 8), 120, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["codes", "scales"], ["w"], axis=0, block_size=32, output_dtype=1
        ),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, width])
        for name, width in (("x", 32), ("y", 8))
    )
    constants = [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(scales, "scales")]
    graph = helper.make_graph(nodes, "floats", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)
    onnx.save(model, tmp_path / "floats.onnx")
    done = command("build", tmp_path / "floats.onnx", "-o", tmp_path / "floats.tpu")
    assert done.status == 0, done.err
    assert "import not verified on a sample, as the model cannot be run itself" in done.out + done.err
