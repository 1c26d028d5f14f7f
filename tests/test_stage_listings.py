"""The stages of the published pipeline: a build leaves a file of each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from cli.conftest import run_command
from listings import document
from models.builder import Builder
from tpuflow import _core
from tpuflow.frontend import FloatSession, load
from tpuflow.frontend.values import array_of

FILES = {
    "sample.onnx": "net.onnx",
    "origin.mlir": "stages/origin.onnx",
    "canonical.mlir": "stages/canonical.onnx",
    "cali.mlir": "stages/ranges.json",
    "tpu.mlir": "stages/model.tpuq",
    "lg.mlir": "stages/groups.json",
    "addr.mlir": "stages/addresses.json",
    "sample.model": "net.tpu",
}
"""By the document's name of what a stage gives, the file it is here."""


def network() -> onnx.ModelProto:
    """Three convolutions, which the configuration of the build computes in groups."""
    b = Builder("net")
    x = b.input("x", [1, 3, 24, 24])
    for channels in (16, 16, 16):
        x = b.node("Relu", b.conv(x, channels, pads=(1, 1, 1, 1)))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 6))
    return b.model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stages")
    onnx.save(network(), made / "net.onnx")
    data = np.random.default_rng(0).standard_normal((8, 3, 24, 24)).astype(np.float32)
    np.savez(made / "x.npz", x=data)
    (made / "c.toml").write_text("[schedule]\nfeaturemap_tiling_param = [[1, 2, 2, 1]]\n")
    done = run_command(
        "build", made / "net.onnx", "-O5", "--calib", made / "x.npz", "--config", made / "c.toml",
        "--save-stages", made / "stages", "-o", made / "net.tpu",
    )  # fmt: skip
    assert done.status == 0, done.err
    return made


def test_every_stage_of_the_document_leaves_its_file(shared: Path, folder: Path) -> None:
    named = set(re.findall(r'"(\w+\.(?:onnx|mlir|model))"', document(shared, "stages")))
    assert named == set(FILES)
    assert all((folder / FILES[each]).is_file() for each in named)


@pytest.mark.feature("IMP-08")
def test_a_build_leaves_a_file_of_every_stage(folder: Path) -> None:
    assert all((folder / name).is_file() for name in FILES.values())


def test_the_canonical_model_is_the_imported_one_and_the_calibrated_one_what_was_quantized(
    folder: Path,
) -> None:
    stages = folder / "stages"
    imported = load(folder / "net.onnx")
    kept, used = load(stages / "canonical.onnx"), load(stages / "calibrated.onnx")
    for ours, theirs in zip(imported.model.graph, kept.model.graph, strict=True):
        for a, b in zip(ours.inputs, theirs.inputs, strict=True):
            if array_of(a) is not None:
                np.testing.assert_array_equal(array_of(a), array_of(b))
    x = {"x": np.load(folder / "x.npz")["x"][:1]}
    floats = [FloatSession(each.model).run(x) for each in (imported, used)]
    for name, array in floats[0].items():
        np.testing.assert_allclose(floats[1][name], array, rtol=1e-3, atol=1e-4)


def test_groups_of_layers_name_each_once_and_are_computed_in_parts(folder: Path) -> None:
    (found,) = json.loads((folder / "stages" / "groups.json").read_text())
    graph = _core.Graph.load(folder / "net.tpuq")
    assert [name for group in found["groups"] for name in group["layers"]] == [x.name for x in graph.layers]
    assert [len(group["layers"]) for group in found["groups"] if group["parts"]] == [2]
    assert all(len(group["layers"]) == 1 for group in found["groups"] if not group["parts"])


def test_addresses_are_those_of_the_program(folder: Path) -> None:
    (found,) = json.loads((folder / "stages" / "addresses.json").read_text())
    content = json.loads(_core.Program.load(folder / "net.tpu").metadata())
    assert found["cache"] == content["allocations"]
    assert found["ddr_bytes"] == content["ddr_bytes"]
    ports = [*content["inputs"], *content["outputs"]]
    assert [port["name"] for port in found["ports"]] == [port["name"] for port in ports]
    assert [port["address"] for port in found["ports"]] == [port["view"]["address"] for port in ports]


@pytest.mark.feature("PRG-15")
def test_every_tensor_of_the_program_is_compared_with_the_graph(folder: Path) -> None:
    done = run_command(
        "compare", folder / "net.tpu", "--inputs", folder / "x.npz", "--dump", folder / "all.npz",
        "--json", folder / "all.json",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "every layer and output as the graph has it" in done.out
    graph = _core.Graph.load(folder / "net.tpuq")
    assert f"{len(graph.layers)} of {len(graph.layers)} tensors compared in every element" in done.out
    (found,) = json.loads((folder / "stages" / "groups.json").read_text())
    by_parts = {name for group in found["groups"] if group["parts"] for name in group["layers"]}
    rows = json.loads((folder / "all.json").read_text())["tensors"]
    assert [row["layer"] for row in rows] == [layer.name for layer in graph.layers]
    assert all(row["compared"] == row["elements"] and not row["wrong"] for row in rows)
    assert by_parts and by_parts == {row["layer"] for row in rows if row["parts"] > 1}
    done = run_command(
        "run", folder / "net.tpuq", "--inputs", folder / "x.npz", "--outputs", folder / "graph.npz",
        "--all-tensors",
    )  # fmt: skip
    assert done.status == 0, done.err
    with np.load(folder / "all.npz") as program, np.load(folder / "graph.npz") as integers:
        assert set(program) == set(integers) - {"x"}
        # What only lies in another shape is no tensor of the model.
        assert len(program) == sum(layer.op != "rearrange" for layer in graph.layers)
        for name in program:
            np.testing.assert_array_equal(program[name][0], integers[name][0])
