"""Graphs under the published names: what a script may do with them, and scripts run as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from conftest import REPOSITORY
from models.builder import Builder, samples
from tpu_framework import GraphDef, RegularModel, onnx_to_tf
from tpu_framework import tensorflow as tf
from tpuflow.errors import ModelError, SampleError
from tpuflow.frontend import load, run_float


def image() -> onnx.ModelProto:
    b = Builder("net")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 6, 5]), 8, pads=(1, 1, 1, 1)))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 4))
    return b.model()


def test_inputs_keep_the_order_of_the_model() -> None:
    graph, names = onnx_to_tf(image(), try_simplify=True)
    (given,) = graph.as_graph_def().model.graph.input
    assert [dim.dim_value for dim in given.type.tensor_type.shape.dim] == [1, 3, 6, 5]
    assert names["image"] == "image"
    moved, _ = onnx_to_tf(image(), keep_arrangement={"image": (0, 2, 3, 1)})
    (last,) = moved.model.graph.input
    assert [dim.dim_value for dim in last.type.tensor_type.shape.dim] == [1, 6, 5, 3]
    with pytest.raises(ModelError, match=r'keep_arrangement: no input is called "picture" \(image\)'):
        onnx_to_tf(image(), keep_arrangement={"picture": None})


def test_a_session_gives_any_tensor_of_a_graph(tmp_path: Path) -> None:
    graph_def = onnx_to_tf(image())[0].as_graph_def()
    tf.io.write_graph(graph_def, str(tmp_path / "new"), "net.pb", as_text=False)
    read = tf.compat.v1.GraphDef()
    with tf.compat.v1.io.gfile.GFile(str(tmp_path / "new" / "net.pb"), "rb") as file:
        read.ParseFromString(file.read())
    assert [node.name for node in read.node] == [node.name for node in graph_def.node]
    feed = samples(image(), 1)
    relu, logits = graph_def.node[1].output[0], graph_def.model.graph.output[0].name
    with tf.compat.v1.Session(graph=tf.graph_util.import_graph_def(read)) as session:
        inner, outer = session.run([relu, logits], feed_dict=feed)
        np.testing.assert_array_equal(session.run(logits, feed_dict=feed), outer)
        with pytest.raises(SampleError, match="image"):
            session.run(logits)
        with pytest.raises(ModelError, match="nothing"):
            session.run("nothing", feed)
    assert inner.shape == (1, 8, 6, 5) and inner.min() >= 0
    model = load(image())
    np.testing.assert_allclose(outer, next(iter(run_float(model.model, feed).values())), rtol=1e-5, atol=1e-6)
    assert RegularModel(read, None, None).model.inputs == model.inputs


def test_what_is_no_graph() -> None:
    with pytest.raises(ModelError, match="neither a frozen TensorFlow graph nor an ONNX model"):
        GraphDef().ParseFromString(b"\xff\xff")
    with pytest.raises(ModelError, match="the GraphDef is empty"):
        _ = GraphDef().node
    with pytest.raises(ModelError, match="give it the graph"):
        tf.compat.v1.Session()


SCRIPT = """
import sys
import tensorflow as tf
from dnn_quant.api import QuantizedModel
from onnx_direct._convert import onnx_to_tf
from tpu_compiler.compiler import compile_
from tpu_compiler.compiler.presets._o1 import O1
from tpu_framework import DEFAULT, Network, RegularModel, TPU_128x128_PARAMS, compiler, get_sub_model
from tpu_tlm_is import get_hw_params

assert compiler.compile_ is compile_ and DEFAULT is O1
assert get_hw_params("128x128_asic") == TPU_128x128_PARAMS
assert tf.compat.v1.GraphDef
from tpuflow.errors import TpuflowError
if sys.argv[1:] == ["fail"]:
    raise TpuflowError("the reason")
print(__name__, sys.argv)
"""


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(REPOSITORY / part) for part in ("python", "compat/src"))
    return subprocess.run(
        [sys.executable, "-m", "tpu_framework", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run("script.py", "--flag", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "__main__ ['script.py', '--flag']\n"), done.stderr
    done = run("script.py", "fail", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: the reason\n")
    done = run("none.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: none.py: no such file\n")


def test_importing_tpuflow_loads_none_of_these_names(tmp_path: Path) -> None:
    code = "import sys, tpuflow; print([name for name in sys.modules if name.startswith(('tpu_', 'pytpu'))])"
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
