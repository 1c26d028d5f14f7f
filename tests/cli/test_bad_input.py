"""What bad input gets: exit status 1, one line on standard error that says what and where, no file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cli.conftest import Built, Command
from tpuflow.errors import FileError
from tpuflow.execution.tokens import open_tokenizer

IMAGE = np.zeros((2, 3, 9, 7), np.float32)


def refused(command: Command, folder: Path, *words: object, status: int = 1) -> str:
    """The one line a wrong request gets; no file may appear in `folder`."""
    before = sorted(folder.iterdir())
    result = command(*words)
    assert result.status == status, result.out
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    assert sorted(folder.iterdir()) == before
    return result.err.removeprefix("error: ").rstrip()


def serialized(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString())


def with_external_data(model: onnx.ModelProto, folder: Path) -> bytes:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    (folder.parent / "secret.bin").write_bytes(bytes(10_000))
    return serialized(model)


def with_open_shape(model: onnx.ModelProto, _: Path) -> bytes:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    return serialized(model)


def with_weight(value: float) -> Callable[[onnx.ModelProto, Path], bytes]:
    def change(model: onnx.ModelProto, _: Path) -> bytes:
        tensor = model.graph.initializer[0]
        array = numpy_helper.to_array(tensor).copy()
        array.flat[3] = value
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return serialized(model)

    return change


MODELS: dict[str, tuple[Callable[[onnx.ModelProto, Path], bytes], str]] = {
    "not ONNX": (lambda _model, _folder: b"%PDF-1.7 of something else", "not an ONNX model"),
    "truncated": (lambda model, _: serialized(model)[:900], "truncated"),
    "empty": (lambda _model, _folder: b"", "not an ONNX model"),
    "external data outside": (with_external_data, "secret.bin"),
    "dynamic shape": (with_open_shape, "--input-shape"),
    "NaN": (with_weight(float("nan")), "NaN"),
    "infinity": (with_weight(float("inf")), "infinite"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.feature("CMP-21")
def test_damaged_models_are_refused_in_one_line(
    built: Built, command: Command, tmp_path: Path, name: str
) -> None:
    change, reason = MODELS[name]
    folder = tmp_path / "models"
    folder.mkdir()
    path = folder / "m.onnx"
    path.write_bytes(change(onnx.load(built.model), folder))
    message = refused(command, folder, "build", path, "-o", folder / "m.tpu")
    assert str(path) in message
    assert reason in message


def test_missing_files(built: Built, command: Command, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    requests: list[tuple[str | Path, ...]] = [
        ("build", f"{absent}.onnx"),
        ("build", f"{absent}.tpuq"),
        ("build", built.model, "--calib", f"{absent}.npz"),
        ("build", built.model, "--ranges", f"{absent}.json"),
        ("build", built.model, "--config", f"{absent}.toml"),
        ("build", built.model, "-o", absent / "m.tpu"),
        ("simulate", f"{absent}.tpu"),
        ("simulate", built.program, "--inputs", f"{absent}.npz"),
        ("calibrate", f"{absent}.onnx", "-o", tmp_path / "r.json"),
        ("quantize", built.model, "--ranges", f"{absent}.json", "-o", tmp_path / "m.tpuq"),
        ("run", f"{absent}.tpu", "--inputs", built.calibration, "--outputs", tmp_path / "y.npz"),
        ("compare", built.model, f"{absent}.tpu"),
        ("compare", f"{absent}.onnx", built.program),
        ("evaluate", built.graph, "--data", f"{absent}.npz", "--metric", "top1"),
        ("inspect", f"{absent}.tpu"),
        ("check", f"{absent}.tpu"),
        ("check", f"{absent}.onnx"),
        ("disasm", f"{absent}.tpu"),
        ("asm", f"{absent}.tpuasm"),
    ]
    for words in requests:
        assert str(absent) in refused(command, tmp_path, *words), words


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"picture": IMAGE}, '"picture"'),
        ({}, '"image" is missing'),
        ({"image": IMAGE, "other": IMAGE}, '"other"'),
        ({"image": IMAGE[:, :, :8]}, "shape (2, 3, 8, 7)"),
        ({"image": IMAGE[0]}, "shape (3, 9, 7)"),
        ({"image": IMAGE.astype(np.float64)}, "float64"),
        ({"image": IMAGE[:0]}, "no samples"),
        ({"image": np.full_like(IMAGE, np.nan)}, "NaN"),
    ],
    ids=[
        "wrong name",
        "no array",
        "one too many",
        "wrong shape",
        "no axis",
        "wrong dtype",
        "zero samples",
        "NaN",
    ],
)
@pytest.mark.feature("CMP-21")
def test_unusable_samples_are_refused_in_one_line(
    built: Built, command: Command, tmp_path: Path, arrays: Mapping[str, Any], reason: str
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, allow_pickle=False, **arrays)
    for words in (
        ("build", built.model, "--calib", path, "-o", tmp_path / "m.tpu"),
        ("calibrate", built.model, "--calib", path, "-o", tmp_path / "r.json"),
        ("simulate", built.program, "--inputs", path),
        ("run", built.graph, "--inputs", path, "--outputs", tmp_path / "y.npz"),
        ("compare", built.model, built.program, "--inputs", path),
    ):
        message = refused(command, tmp_path, *words)
        assert str(path) in message
        assert reason in message


@pytest.mark.feature("CMP-21")
def test_requests_that_make_no_sense(built: Built, command: Command, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[quantize]\ndtpye = 'int8'\n", encoding="utf-8")
    ranges = tmp_path / "r.json"
    ranges.write_text('{"format": 1, "tensors": {"image": {"min": 1, "max": 2}}}', encoding="utf-8")
    requests: dict[tuple[str | Path, ...], tuple[str, ...]] = {
        ("build", built.model, "--machine", "tpu9"): ('"tpu9"', "128x128_asic"),
        ("build", built.model, "--machine", "32x32fpga"): ('did you mean "32x32_fpga"',),
        ("build", built.model, "--config", config): (str(config), 'did you mean "dtype"'),
        ("build", built.model, "--dtype", "f16", "--ranges", built.model): (
            "float16 needs no ranges",
            "--ranges",
        ),
        ("build", built.model, "--ranges", ranges): (str(ranges), '"image"'),
        ("build", built.model, "--ranges", ranges, "--calib", built.calibration): (str(ranges), "give one"),
        ("build", built.model, "--input-shape", "image"): ("--input-shape", "NAME=1,3,224,224"),
        ("build", built.model, "--input-shape", "picture=1,3,9,7"): ("picture",),
        ("build", built.model, "--input-shape", "image=1,3,8,7"): ("image",),
        ("build", built.model, "--cut-outputs", "nowhere"): ("nowhere",),
        ("build", built.graph, "--calib", built.calibration): ("--calib", str(built.graph)),
        ("build", built.calibration): (str(built.calibration),),
        ("simulate", built.program, "--timing-only", "--inputs", built.calibration): ("--timing-only",),
        ("simulate", built.program, "--machine", "32x32_fpga"): (str(built.program), "32x32_fpga"),
        ("simulate", built.model): (str(built.model),),
        ("run", built.calibration, "--inputs", built.calibration, "--outputs", "y.npz"): (".npz",),
        ("compare", built.model, built.program, "--tolerance", "0.9"): ("--tolerance",),
        ("compare", built.model, built.program, "--tolerance", "1.1,1"): ("--tolerance", "above 1"),
        ("evaluate", built.graph, "--data", built.labeled, "--metric", "best"): ("best", "top1"),
        ("evaluate", built.graph, "--data", built.calibration, "--metric", "top1"): ("labels",),
        ("evaluate", built.graph, "--data", built.labeled, "--metric", "cosine"): ("--float",),
        ("inspect", built.calibration): (".npz",),
        ("machine", "show", "tpu9"): ('"tpu9"', "32x32_fpga"),
    }
    for words, parts in requests.items():
        message = refused(command, tmp_path, *words)
        for part in parts:
            assert part in message, words


@pytest.mark.parametrize("option", [("--frobnicate",), ("-O3",), ("--batch", "0"), ("--dtype", "int4")])
def test_wrong_usage(built: Built, command: Command, option: tuple[str, ...]) -> None:
    result = command("build", built.model, *option)
    assert result.status == 2
    assert option[0].lstrip("-")[0] in result.err


@pytest.mark.parametrize("kind", ["program", "graph"])
@pytest.mark.feature("CMP-21")
def test_cut_and_altered_files(built: Built, command: Command, tmp_path: Path, kind: str) -> None:
    whole = (built.program if kind == "program" else built.graph).read_bytes()
    path = tmp_path / f"x{(built.program if kind == 'program' else built.graph).suffix}"
    words = ("simulate", path) if kind == "program" else ("build", path, "-o", tmp_path / "x.tpu")
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert str(path) in refused(command, tmp_path, *words)
    for position in (len(whole) - 1, len(whole) // 2, 200):
        altered = bytearray(whole)
        altered[position] ^= 0x10
        path.write_bytes(altered)
        assert str(path) in refused(command, tmp_path, *words)


def test_text_that_is_no_program(built: Built, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.tpuasm"
    text = command("disasm", built.program).out
    for changed, reason in (
        ("", "line 1"),
        ("\x00\x01", "line 1"),
        (text.replace("layer=0", "layer=", 1), "line "),
        (text.replace("rows=128", "rows=100", 1), "array.rows 100"),
        (text[: len(text) // 2], ""),
        (command("disasm", built.program, "--no-constants").out, "constants"),
    ):
        path.write_text(changed, encoding="utf-8")
        message = refused(command, tmp_path, "asm", path)
        assert str(path) in message
        assert reason in message


def test_a_program_of_another_graph(built: Built, command: Command, tmp_path: Path) -> None:
    other = tmp_path / "other.tpuq"
    ranges = tmp_path / "r.json"
    assert command("calibrate", built.model, "--calib", built.calibration, "-o", ranges).status == 0
    content = json.loads(ranges.read_text(encoding="utf-8"))
    content["tensors"]["image"]["max"] *= 2
    ranges.write_text(json.dumps(content), encoding="utf-8")
    assert command("quantize", built.model, "--ranges", ranges, "-o", other).status == 0
    for words in (
        ("compare", built.model, built.program, "--graph", other),
        ("check", built.program, "--graph", other),
    ):
        result = command(*words)
        assert result.status == 1
        assert str(built.program) in result.err


def test_unsupported_nodes_are_listed_at_once(command: Command, tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"], name="first"),
        helper.make_node("Det", ["x"], ["b"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "odd",
        [value("x", TensorProto.FLOAT, [4, 4])],
        [value("a", TensorProto.INT64, None), value("b", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    for words in (("build", path, "-o", tmp_path / "odd.tpu"), ("check", path)):
        result = command(*words)
        assert result.status == 1
        assert result.err.count("error: ") == 1
        for part in ("first", "NonZero", "second", "Det"):
            assert part in result.err
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_ends_quietly_and_leaves_nothing(
    built: Built, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tpuflow.pipeline.stages.compile_graph", interrupted)
    result = command("build", built.model, "-o", tmp_path / "m.tpu")
    assert result.status == 130
    assert "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_defect_is_said_to_be_one(
    built: Built, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("never\nhappens")

    monkeypatch.setattr("tpuflow.partitioning.storage._core.check", broken)
    monkeypatch.delenv("TPUFLOW_TRACEBACK", raising=False)
    message = refused(command, tmp_path, "check", built.program)
    assert "defect of tpuflow: ZeroDivisionError: never happens" in message


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_devices_that_never_end_are_no_files(
    built: Built, command: Command, tmp_path: Path, device: str
) -> None:
    requests: list[tuple[str | Path, ...]] = [
        ("inspect", device),
        ("generate", device, "--prompt", "x"),
        ("build", built.model, "--calib", device),
        ("build", built.model, "--config", device),
        ("compare", built.model, device),
        ("asm", device),
        ("alloc", device),
        ("npz", "shape", device),
        ("bundle", "list", device),
        ("compare-statistics", device, device),
        ("explore", built.model, "--vary", "batch=1", "-o", tmp_path / "s.db", "--calib", device),
        ("explore", device, "--vary", "batch=1", "-o", tmp_path / "s.db"),
    ]
    for words in requests:
        assert refused(command, tmp_path, *words) == f"{device}: is a device: name a file"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000], ids=["not UTF-8", "nested deeply"])
def test_files_of_text_that_are_not_text(
    built: Built, command: Command, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "text.json"
    path.write_bytes(content)
    requests: list[tuple[str | Path, ...]] = [
        ("build", built.model, "--calib", f"TextDataset({path})"),
    ]
    if content.startswith(b"\xff"):
        requests += [
            ("build", built.model, "--calib", f"ImageListDataset({path})"),
            ("debug", built.program, "--commands", path),
            ("zoo", built.folder, "--extra", path),
        ]
    for words in requests:
        assert str(path) in refused(command, tmp_path, *words)
    with pytest.raises(FileError, match=r"text\.json: cannot be read as JSON"):
        open_tokenizer(path)
