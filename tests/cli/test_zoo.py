"""A folder of small networks through `tpuflow zoo`: tables, what is kept, what one failure does to others."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from cli.conftest import Command
from models import make_models
from models.builder import Builder, samples
from tpuflow.calibration import Range, Ranges, calibrate
from tpuflow.config import Config
from tpuflow.errors import FileError
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import load
from tpuflow.lowering import lower
from tpuflow.pipeline.zoo import networks, page, published_networks, troubles
from tpuflow.pipeline.zoo.layer_losses import layer_losses
from tpuflow.pipeline.zoo.memory import Peak
from tpuflow.pipeline.zoo.stages import lists
from tpuflow.pipeline.zoo.sweep import Settings

NETWORKS = {"attention": make_models.attention, "fire": make_models.fire}
HOOK = """
from pathlib import Path
import numpy as np
import onnx

FOLDER = Path(__file__).parent

def load(name):
    model = onnx.load(FOLDER / f"{name}.onnx")
    for tensor in model.graph.initializer:
        if not tensor.raw_data:
            count = int(np.prod(tensor.dims))
            tensor.raw_data = np.random.default_rng(count).standard_normal(count).astype(np.float32).tobytes()
    return model

def sample_inputs(name, index):
    return {"x": np.random.default_rng(index).standard_normal((1, 3, 6, 5)).astype(np.float32)}
"""


def unsupported() -> onnx.ModelProto:
    """An operator no domain has, so that the host cannot help either."""
    b = Builder("unsupported")
    x = b.input("x", [1, 4, 3, 3])
    b.output(b.node("Relu", x))
    model = b.model()
    model.graph.node[0].op_type = "Conjure"
    model.graph.node[0].domain = "nowhere"
    model.opset_import.append(helper.make_opsetid("nowhere", 1))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    for name, make in NETWORKS.items():
        onnx.save(make(), folder / f"{name}.onnx")
    onnx.save(unsupported(), folder / "unsupported.onnx")
    (folder / "broken.onnx").write_bytes(b"this is no model")
    return folder


@pytest.fixture(scope="module")
def swept(folder: Path, tmp_path_factory: pytest.TempPathFactory, command: Command) -> tuple[Path, str, Any]:
    work = tmp_path_factory.mktemp("work")
    result = command(
        "zoo", folder, "--work", work, "--quick", "--dtypes", "int8,int16", "-j", "2",
        "-o", work / "page.md", "--json", work / "all.json",
    )  # fmt: skip
    assert result.status == 0, result.err
    return work, result.out, json.loads((work / "all.json").read_text(encoding="utf-8"))["networks"]


@pytest.mark.slow
@pytest.mark.feature("IMP-32")
def test_networks_pass_every_stage(swept: tuple[Path, str, Any]) -> None:
    _, _, records = swept
    for name in NETWORKS:
        stages = records[name]["float"]["stages"]
        assert [stages[stage]["status"] for stage in ("import", "normalised", "calibrate")] == ["ok"] * 3
        assert max(stages["normalised"]["relative_error"].values()) <= 1e-4
        for dtype, least in (("int8", 0.95), ("int16", 0.999)):
            stages = records[name][dtype]["stages"]
            assert all(stage["status"] == "ok" for stage in stages.values()), stages
            assert all(output["cosine"] >= least for output in stages["interpret"]["outputs"].values())
            assert stages["simulate O5"]["differing"] == []
            assert 0 < stages["simulate O5"]["bound"] <= stages["simulate O5"]["cycles"]
            assert stages["simulate O5"]["cycles"] <= stages["simulate O1"]["cycles"]


@pytest.mark.slow
@pytest.mark.feature("IMP-32")
def test_failures_are_told_and_stay_alone(swept: tuple[Path, str, Any]) -> None:
    _, told, records = swept
    assert records["broken"]["float"]["stages"]["import"]["status"] == "refused"
    assert records["unsupported"]["float"]["stages"]["import"]["status"] == "refused"
    assert "Conjure" in records["unsupported"]["float"]["stages"]["import"]["message"]
    assert "unsupported, float, import: refused: " in told
    assert "2 of 4" in told


@pytest.mark.slow
@pytest.mark.feature("IMP-32")
def test_the_page_tells_all(swept: tuple[Path, str, Any]) -> None:
    work, _, records = swept
    text = (work / "page.md").read_text(encoding="utf-8")
    cycles = records["fire"]["int8"]["stages"]["simulate O5"]["cycles"]
    assert f"{cycles:,}" in text
    assert text.count("| attention |") == 6  # sizes, similarity, cycles, costs of import and of two types
    assert "| broken | float | import | refused: " in text
    listed = page(records, Settings(), published_networks(), "made here")
    rows = [
        line
        for line in listed.splitlines()
        if line.startswith(tuple(f"| {e.name} | - |" for e in published_networks()))
    ]
    assert len(rows) == 52
    assert sum("(preset " in row for row in rows) == 7


@pytest.mark.slow
def test_finished_records_are_kept_and_others_made_again(
    folder: Path, swept: tuple[Path, str, Any], tmp_path: Path, command: Command
) -> None:
    work = tmp_path / "work"
    shutil.copytree(swept[0], work)
    records = work / "records"
    before = {path.name: path.stat().st_mtime_ns for path in records.iterdir()}
    cut = records / "fire.int8.json"
    content = json.loads(cut.read_text(encoding="utf-8"))
    del content["finished"]
    cut.write_text(json.dumps(content), encoding="utf-8")
    other = records / "fire.int16.json"
    content = json.loads(other.read_text(encoding="utf-8")) | {"version": "another"}
    other.write_text(json.dumps(content), encoding="utf-8")
    os.utime(other, ns=(0, 0))
    words = ("zoo", folder, "--work", work, "--quick", "--dtypes", "int8,int16")
    assert command(*words, "--resume").status == 0
    after = {path.name: path.stat().st_mtime_ns for path in records.iterdir()}
    assert {name for name in before if after[name] != before[name]} == {"fire.int8.json", "fire.int16.json"}
    assert after["fire.int16.json"] == 0, "another version's record is kept with --resume"
    assert command(*words, "--only", "fire").status == 0
    assert other.stat().st_mtime_ns > 0, "another version's record is made again without"


@pytest.mark.slow
def test_a_limit_ends_the_part_and_nothing_else(tmp_path: Path, command: Command) -> None:
    (tmp_path / "materialize.py").write_text(
        "import time\ndef load(name): time.sleep(60)\n", encoding="utf-8"
    )
    onnx.save(make_models.fire(), tmp_path / "fire.onnx")
    start = time.monotonic()
    result = command("zoo", tmp_path, "--hooks", "--work", tmp_path / "work", "--limit", "3")
    assert result.status == 0, result.err
    assert time.monotonic() - start < 30
    assert "took longer than 3 s" in result.out


@pytest.mark.slow
def test_skeletons_are_completed_by_their_folder(tmp_path: Path, command: Command) -> None:
    b = Builder("skeleton")
    b.output(b.conv(b.input("x", [1, 3, 6, 5]), 8))
    model = b.model()
    weights = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 4)
    weights.raw_data = b""
    onnx.save(model, tmp_path / "skeleton.onnx")
    (tmp_path / "materialize.py").write_text(HOOK, encoding="utf-8")
    out = tmp_path / "all.json"
    words = ("zoo", tmp_path, "--hooks", "--work", tmp_path / "work", "--dtypes", "int8", "--json", out)
    result = command(*words)
    assert result.status == 0, result.err
    record = json.loads(out.read_text(encoding="utf-8"))["skeleton"]["int8"]
    assert record["stages"]["simulate O5"]["status"] == "ok", record
    (tmp_path / "materialize.py").write_text("def load(name): return 1 / 0\n", encoding="utf-8")
    shutil.rmtree(tmp_path / "work")
    result = command(*words)
    assert "refused: " in result.out
    assert "ZeroDivisionError" in result.out


def test_requests_that_make_no_sense(tmp_path: Path, folder: Path, command: Command) -> None:
    for words, reason in {
        (tmp_path / "nowhere",): "no such file or directory",
        (tmp_path,): "holds no .onnx file",
        (folder, "--only", "resnet"): 'holds no network "resnet"',
        (folder, "--dtypes", "int7"): '"int7" is unknown',
    }.items():
        result = command("zoo", *words)
        assert (result.status, result.out) == (1, "")
        assert reason in result.err
    with pytest.raises(FileError):
        networks(tmp_path)


def test_outputs_chosen_by_value_are_shown_but_not_scored() -> None:
    b = Builder("chosen")
    x = b.conv(b.input("x", [1, 3, 6, 6]), 8)
    b.output(x)
    b.output(b.node("ArgMax", x, axis=1, keepdims=0))
    model = load(b.model(), host=True)
    assert lists(model) == [model.outputs[1].name]
    outputs = {name: {"cosine": 0.1, "sqnr": 1.0} for name in lists(model)}
    stage = {"status": "ok", "outputs": outputs, "lists": list(outputs), "seconds": 0.0, "peak_bytes": 0}
    record = {"stages": {"interpret": stage}}
    settings = Settings(dtypes=("int8",))
    assert not list(troubles({"chosen": {"int8": record}}, settings))
    assert "| chosen | list: 0.1000 | - |" in page({"chosen": {"int8": record}}, settings, (), "")
    stage["lists"] = []
    assert list(troubles({"chosen": {"int8": record}}, settings))


@pytest.mark.feature("IMP-32")
def test_the_published_list_is_whole() -> None:
    names = [entry.name for entry in published_networks()]
    assert len(names) == len(set(names)) == 52
    assert sum(bool(entry.preset) for entry in published_networks()) == 7
    assert all(entry.files for entry in published_networks())


def test_the_layer_to_blame_is_found() -> None:
    b = Builder("blame")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 8, 8]), 8, (1, 1)))
    bad = b.node("Relu", b.conv(x, 8, (1, 1)))
    b.output(b.conv(bad, 8, (1, 1)))
    proto = b.model()
    model = load(proto)
    ranges = calibrate(model, samples(proto, 2))
    highest = ranges.tensors[bad].max
    assert isinstance(highest, float)
    broken = Ranges({**ranges.tensors, bad: Range(0.0, highest / 50)}, ranges.samples, ranges.strategy)
    level = GraphLevel(lower(model.model, broken, Config()))
    feed = {"x": next(iter(samples(proto, 1, seed=5).values())).astype(np.float32)}
    found = layer_losses(model, level, feed, [proto.graph.output[0].name])
    assert found[0]["tensor"] == bad


def test_a_peak_covers_what_happens_after_it_began() -> None:
    peak = Peak()
    before = peak.bytes()
    block = np.ones(1 << 24)
    assert peak.bytes() >= before + block.nbytes // 2
