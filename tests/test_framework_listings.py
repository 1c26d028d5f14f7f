"""The listings of the framework's manual, read from the shared material and run: only file names are adapted.

The networks are small ones of our own that bear the names the listings ask for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import tpuflow
from conftest import REPOSITORY
from listings import document, indented, numbered
from tpu_framework import RegularModel

CLASSES, EXPECTED = 1000, 256

# By number of a line of the listing: the depth of what stands behind the end of a block.
END_TO_END = {242: 1, 591: 1, 600: 1, 655: 1, 690: 3, 708: 6, 716: 6}


def listing(shared: Path, heading: str, ends: dict[int, int] | None = None) -> str:
    text = document(shared, "framework")
    chapter = text[text.rindex(f"\n{heading}\n1 ") :]
    return indented(numbered(chapter.split("\nCHAPTER\n")[0]), ends or {})


def network(image: str, features: str, logits: str, *, channels_last: bool = False) -> onnx.ModelProto:
    """A convolution and a classifier that finds one class in every image."""
    rng = np.random.default_rng(0)
    constants = {
        "kernel": rng.normal(0, 0.1, (8, 3, 16, 16)),
        "matrix": rng.normal(0, 0.05, (8, CLASSES)),
        "bias": np.where(np.arange(CLASSES) == EXPECTED, 2, 0),
    }
    nodes = [
        helper.make_node("Conv", ["first", "kernel"], ["a"], strides=[16, 16]),
        helper.make_node("Relu", ["a"], [features]),
        helper.make_node("GlobalAveragePool", [features], ["b"]),
        helper.make_node("Flatten", ["b"], ["c"]),
        helper.make_node("Gemm", ["c", "matrix", "bias"], [logits]),
    ]
    shape = [1, 224, 224, 3] if channels_last else [1, 3, 224, 224]
    if channels_last:
        nodes.insert(0, helper.make_node("Transpose", [image], ["first"], perm=[0, 3, 1, 2]))
    else:
        nodes[0].input[0] = image
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(image, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def photographs(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        pixels: NDArray[np.uint8] = np.random.default_rng(number).integers(0, 256, (240, 300, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name, "JPEG")


def run(script: str, folder: Path, *words: str) -> str:
    """Runs a script in a folder by `python -m tpu_framework`, and gives what it prints."""
    (folder / "script.py").write_text(script.replace("/auto/", f"{folder}/auto/"))
    paths = os.pathsep.join(str(REPOSITORY / part) for part in ("python", "compat/src"))
    done = subprocess.run(
        [sys.executable, "-m", "tpu_framework", "script.py", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("method", ["qc", "qcf", "qt", "qtf"])
@pytest.mark.feature("MSC-04")
def test_chapter_5_runs_every_way(method: str, shared: Path, tmp_path: Path) -> None:
    model = network("input.1", "387", "495")
    models = tmp_path / "auto" / "tests" / "onnx_models" / "from_torchvision"
    models.mkdir(parents=True)
    onnx.save(model, models / "torch_resnet50.onnx")
    names = [f"ILSVRC2012_val_{number:08}.JPEG" for number in (1, 2, 45)]
    photographs(tmp_path / "auto" / "datasets" / "imagenet" / "ILSVRC2012_img_val", *names)
    if method.startswith("qt"):
        resources = tmp_path / "tpu_framework_tests" / "resources"
        resources.mkdir(parents=True)
        images = np.random.default_rng(1).normal(0, 1.5, (4, 3, 224, 224)).astype(np.float32)
        found = RegularModel(model, None, None).calibrate({"input.1": images})
        RegularModel.dump_thresholds(resources / "torch_resnet50_thresholds.json", found)
    script = listing(shared, "END-TO-END TEST", END_TO_END)
    saved = tmp_path / "saved"
    words = ["--enable-tlm", "--enable-tpu", "--quantize-method", method, "--save-graph-path", str(saved)]
    tops = {}
    for raw in ([], ["--enable-raw"]):
        out = run(script, tmp_path, *words, *raw)
        tops[len(raw)] = dict(re.findall(r"^(.+?) TOP-16 argsort output is: (\[[^]]+\])", out, re.MULTILINE))
    assert {name.strip() for name in tops[0]} == {
        "Original ONNX model", "Converted model", "Quantized model", "TLM", "TPU",
    }  # fmt: skip
    assert tops[0] == tops[1]
    top = {name.strip(): " ".join(values.split()) for name, values in tops[0].items()}
    assert top["Quantized model"] == top["TLM"] == top["TPU"]
    assert top["Original ONNX model"] == top["Converted model"]
    assert (saved / "torch_resnet.pb").is_file()


@pytest.mark.feature("PRG-21")
def test_chapter_7_runs(shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(network("Placeholder:0", "features", "logits:0", channels_last=True), path)
    (tmp_path / "tpu_programs").mkdir()
    program = tpuflow.build(path, level=5).program
    program.save(tmp_path / "tpu_programs" / "resnet50_b1_o5_128x128_asic.tpu")
    tests = tmp_path / "tpu_framework_tests"
    tests.mkdir()
    (tests / "test_quant_compile.py").write_text(f"COMPILER_DIR = {str(tmp_path)!r}\n")
    photographs(tests / "resources", "ILSVRC2012_val_00000045.JPEG")
    assert f'{EXPECTED + 1}: " ' in run(listing(shared, "QUICK START"), tmp_path)


@pytest.mark.feature("SUB-05")
def test_chapter_8_runs(shared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "auto" / "heap" / "dnn_model_zoo" / "dnn_model_zoo_resources" / "models" / "public"
    folder.mkdir(parents=True)
    onnx.save(network("input.1", "387", "495"), folder / "torch_resnet50.onnx")
    photographs(tmp_path / "tpu_framework_tests" / "resources", "ILSVRC2012_val_00000045.JPEG")
    script = listing(shared, "SUB MODEL")
    assert "EXPECTED_CLASS" in script.splitlines()[-1]
    run(script, tmp_path)


def test_chapter_4_names_stand_where_the_index_says(shared: Path) -> None:
    text = document(shared, "framework")
    places = dict(re.findall(r"^(\w+) ?\(class in ([\w.]+)\)", text, re.MULTILINE))
    places |= dict(re.findall(r"^(\w+) \(in module ([\w.]+)\)", text, re.MULTILINE))
    assert len(places) >= 7
    for name, module in places.items():
        scope: dict[str, object] = {}
        exec(f"from {module} import {name} as found", scope)
        assert callable(scope["found"]) or name in {"O1", "O5"}
    for name, owner in re.findall(r"^(\w+)\(\) ?\((\w+) (?:static )?method\)", text, re.MULTILINE):
        scope = {}
        exec(f"from dnn_quant.api import {owner} as owner", scope)
        assert callable(getattr(scope["owner"], name))
