"""The listings of the cfg manual, read from the shared material and run: only file names are adapted."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import optimizer_main
import torch_standin
from cli.conftest import run_command
from listings import document
from models.builder import Builder
from tpuflow import _core
from tpuflow.config import load_config
from tpuflow.plugins import PyNode, PyTensor, Registry, load_plugins, run_operator

NUMBER = re.compile(r"^\d+ ?")


def blocks(shared: Path) -> list[str]:
    return re.findall(r"^```\n(.*?)^```", document(shared, "cfg"), re.MULTILINE | re.DOTALL)


def plugin(text: str) -> str:
    """A listing of Python without the numbers in front; a comment that was broken in two is one again."""
    lines = [NUMBER.sub("", line) for line in text.splitlines()]
    for at in range(1, len(lines)):
        if lines[at - 1].lstrip().startswith("#") and re.match(r"\s+\w+\) \w+ \w+", lines[at]):
            lines[at] = f"#{lines[at]}"
    return "\n".join(lines) + "\n"


def network() -> Builder:
    b = Builder("net")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 8, 8]), 8, pads=(1, 1, 1, 1)))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 12))
    return b


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    onnx.save(network().model(), tmp_path / "squeezenet_s.onnx")
    (tmp_path / "squeezenet_s.bin").write_bytes(b"")
    np.save(tmp_path / "calibration2.npy", rng.normal(size=(2, 8, 8, 3)).astype(np.float32))
    np.save(tmp_path / "validation10.npy", rng.normal(size=(10, 8, 8, 3)).astype(np.float32))
    np.save(tmp_path / "vlabel10.npy", rng.integers(0, 12, 10))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.feature("CFG-02")
def test_the_example_builds_by_its_own_command(
    shared: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (folder / "opt.cfg").write_text(blocks(shared)[0].replace("squeezenet_s.txt", "squeezenet_s.onnx"))
    (folder / "plugin").mkdir()
    (folder / "plugin" / "aipubt_opt_metric_topk.py").write_text(plugin(blocks(shared)[6]))
    monkeypatch.setattr(sys, "argv", ["optimizer_main.py", "--cfg", "opt.cfg"])
    with torch_standin.torch(), pytest.raises(SystemExit) as end:
        optimizer_main.main()
    out, err = capsys.readouterr()
    err += caplog.text
    assert end.value.code == 0, err
    assert "aipubt_opt_metric_topk.py: executed" in err
    assert re.search(r"TopKMetric: float [\d.]+, quantised [\d.]+", out)
    assert (folder / "squeezenet_caffe_o.tpu").is_file()
    graph = _core.Graph.load(folder / "squeezenet_caffe_o.tpuq")
    layer = next(each for each in graph.layers if each.op == "conv")
    weights = graph.tensors[layer.operands[1]]
    assert len(weights.scale or ()) == 8
    written = json.loads((folder / "squeezenet_caffe_o.layers.json").read_text())
    assert {each.get("q_mode_weight") for each in written.values()} <= {
        None, "per_channel_symmetric_restricted_range",
    }  # fmt: skip


def test_every_line_is_read(shared: Path, folder: Path) -> None:
    (folder / "x.json").write_text("{}")
    lines = (shared / "findings" / "repro" / "cfg_lines.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 89
    scored = "metric = TopKMetric\ndata = ./validation10.npy\n"
    for line in lines:
        more = scored if line.startswith("mixed_precision") else ""
        (folder / "one.cfg").write_text(f"[Common]\n{line}\n{more}", encoding="utf-8")
        load_config(folder / "one.cfg")


@pytest.mark.feature("CFG-01")
def test_every_key_of_the_manual_is_known(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = document(shared, "cfg").replace("\\_", "_")
    keys = set(re.findall(r"^\s*- `{1,2}([a-z_]+)`{1,2} ?(?:\[|:)", text, re.MULTILINE))
    keys |= set(re.findall(r"^([a-z_]+) ?= ?", blocks(shared)[0], re.MULTILINE))
    (listed,) = re.findall(r"Currently supported fields are: ([a-z_,\s]+), \.\.\.", text)
    keys |= {key.strip() for key in listed.split(",")}
    keys -= {"just_for_display"}
    keys |= {"opt_config", "mixed_precision_auto_search", "global_calibration"}
    assert len(keys) >= 49
    monkeypatch.setattr(sys, "argv", ["optimizer_main.py", "-field"])
    with pytest.raises(SystemExit):
        optimizer_main.main()
    shown = capsys.readouterr().out
    assert not {key for key in keys if key not in shown}


@pytest.mark.feature("CFG-08", "QMO-04")
def test_the_block_of_a_layer_is_read_and_written(shared: Path, folder: Path) -> None:
    text = "{" + blocks(shared)[1].rstrip().rstrip(",") + "}}}"
    read = json.loads(re.sub(r",\s*}", "}", text), strict=False)
    model = network().model()
    for node in model.graph.node:
        if node.op_type == "Gemm":
            node.name = "fc2/MatMul"
    onnx.save(model, folder / "named.onnx")
    (folder / "layers.json").write_text(json.dumps(read))
    common = "[Common]\ngraph = named.onnx\ncalibration_data = calibration2.npy\n"
    dataset = "dataset = NumpyNHWC2NCHWDataset\n"
    (folder / "a.cfg").write_text(f"{common}{dataset}model_name = a\n")
    (folder / "b.cfg").write_text(f"{common}{dataset}model_name = b\nopt_config = layers.json\n")
    for name in "ab":
        made = run_command("build", "--cfg", f"{name}.cfg")
        assert made.status == 0, made.err
    # The block states the manual's defaults, so that it changes nothing.
    assert (folder / "a_o.tpu").read_bytes() == (folder / "b_o.tpu").read_bytes()
    written = json.loads((folder / "a_o.layers.json").read_text())
    entry = next(each for name, each in written.items() if name.startswith("fc2/MatMul"))
    block = read["fc2/MatMul"]
    assert {key: entry[key] for key in block if key != "just_for_display"} == {
        key: value for key, value in block.items() if key != "just_for_display"
    }
    # And what is written, given back, changes nothing either.
    (folder / "c.cfg").write_text(f"{common}{dataset}model_name = c\nopt_config = a_o.layers.json\n")
    made = run_command("build", "--cfg", "c.cfg")
    assert made.status == 0, made.err
    assert (folder / "a_o.tpu").read_bytes() == (folder / "c_o.tpu").read_bytes()
    shown = [layer["just_for_display"]["quantization_info"] for layer in written.values()]
    facts = [each for layer in shown for each in layer.values() if "qmin" in each]
    assert ("Dtype.UINT8", 0, 255) in [(each["dtype"], each["qmin"], each["qmax"]) for each in facts]
    assert ("Dtype.INT8", -127) in [(each["dtype"], each["qmin"]) for each in facts]


def loaded(folder: Path, text: str, name: str) -> Registry:
    (folder / f"aipubt_opt_{name}.py").write_text(text)
    registry = load_plugins([folder])
    assert not registry.failures
    return registry


@pytest.mark.feature("PLG-01")
def test_the_dataset_plugin(shared: Path, folder: Path) -> None:
    with torch_standin.torch():
        made = loaded(folder, plugin(blocks(shared)[3]), "dataset_a").get("dataset", "NumpyDataset")
        data = made("validation10.npy", "vlabel10.npy")
        assert len(data) == 10
        sample, label = data[3]
        np.testing.assert_array_equal(sample[0], np.load("validation10.npy")[3])
        assert label == np.load("vlabel10.npy")[3]
        assert made("calibration2.npy")[0][1] == float("-inf")


@pytest.mark.feature("PLG-02")
def test_the_metric_plugin(shared: Path, folder: Path) -> None:
    with torch_standin.torch():
        made = loaded(folder, plugin(blocks(shared)[6]), "metric_a").get("metric", "TopKMetric")
        metric: Any = made("2")
        pred, target = (torch_standin.from_numpy(each) for each in (np.array([[1.0, 3, 2]]), np.array([2])))
        if "torch" in sys.modules and hasattr(sys.modules["torch"], "tensor"):
            pred, target = (sys.modules["torch"].tensor(np.asarray(each)) for each in (pred, target))
        metric([pred], target)
        assert metric.compute() == 1.0 and "1.0" in metric.report()


@pytest.mark.feature("PLG-04", "PLG-09")
def test_the_operator_plugin(shared: Path, folder: Path) -> None:
    with torch_standin.torch():
        text = plugin(blocks(shared)[4]) + plugin(blocks(shared)[5])
        registry = loaded(folder, text, "op_a")
        node = PyNode("layer", "DummyOP")
        node.outputs = [PyTensor("y")]
        feed = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
        (codes,) = run_operator(registry, node, [feed])
        scale = float(node.inputs[0].scale)
        assert np.abs(codes / scale - feed).max() <= 0.51 / scale
        assert node.params["whether_plus_one"] is True and "lut" in node.constants
