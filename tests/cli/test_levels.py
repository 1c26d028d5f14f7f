"""Levels behind one face: metrics, what a comparison notices, samples and batches."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cli.conftest import Built, Command
from models.builder import Builder, samples
from tpuflow.evaluation.comparison import Comparison, TensorComparison
from tpuflow.evaluation.metrics import metric
from tpuflow.evaluation.scores import score
from tpuflow.evaluation.similarity import Similarity
from tpuflow.execution.levels import LevelOutputs, ProgramLevel

Array = NDArray[Any]


def drawn(seed: int, count: int, classes: int) -> tuple[Array, Array, Array]:
    """Outputs with many ties, other outputs, and labels."""
    generator = np.random.default_rng(seed)
    ours, theirs = generator.integers(0, 4, (2, count, 1, classes)).astype(np.float32)
    return ours, theirs, generator.integers(0, classes, count)


def top(values: Array, count: int) -> list[int]:
    """Indices of the largest values, of equal ones the first, by repeated search."""
    left = [float(value) for value in values.ravel()]
    found = []
    for _ in range(min(count, len(left))):
        best = max(range(len(left)), key=lambda index: (left[index], -index))
        found.append(best)
        left[best] = -math.inf
    return found


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 12))
def test_metrics_equal_brute_force(seed: int, count: int, classes: int) -> None:
    ours, theirs, labels = drawn(seed, count, classes)
    for number in (1, 5):
        right, right_float = (
            [int(label) in top(row, number) for row, label in zip(outputs, labels, strict=True)]
            for outputs in (ours, theirs)
        )
        found = score([ours], labels, [theirs], metric(f"top{number}"), name="", output="y", level="graph")
        assert found.value == pytest.approx(sum(right) / count)
        assert found.reference == pytest.approx(sum(right_float) / count)
        flips = list(zip(right_float, right, strict=True))
        assert found.right_to_wrong == flips.count((True, False))
        assert found.wrong_to_right == flips.count((False, True))
        same = [top(a, 1) == top(b, 1) for a, b in zip(ours, theirs, strict=True)]
        assert found.agreement == pytest.approx(sum(same) / count)
    found = score([ours], None, [theirs], metric("agreement"), name="", output="y", level="graph")
    assert found.value == found.agreement


@pytest.mark.parametrize("name", ["top1", "top5", "cosine", "euclid", "agreement", "f1"])
def test_equal_outputs_are_perfect(name: str) -> None:
    outputs = np.eye(4, dtype=np.float32)
    found = score([outputs], np.arange(4), [outputs], metric(name), name=name, output="y", level="program")
    assert found.value == 1
    assert found.sqnr_db == math.inf
    assert found.agreement == 1


@pytest.mark.feature("CMP-05")
def test_one_different_bit_of_a_program_is_found(
    built: Built, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ProgramLevel.compute

    def altered(self: ProgramLevel, arrays: dict[str, Array], *, all_tensors: bool = False) -> LevelOutputs:
        found = honest(self, arrays, all_tensors=all_tensors)
        codes = {name: array.copy() for name, array in found.codes.items()}
        codes[built.output].flat[4] ^= 1
        return LevelOutputs(found.tensors, codes)

    monkeypatch.setattr(ProgramLevel, "compute", altered)
    result = command("compare", built.model, built.program, "--inputs", built.calibration)
    assert result.status == 3
    assert "DIFFERENT" in result.out
    assert f'first in tensor "{built.output}": 1 of 6 codes' in result.err


def alike(cosine: float, euclid: float) -> Similarity:
    return Similarity(cosine, euclid, 10.0, 0.1)


def test_tolerance_holds_for_every_tensor_and_both_arrows() -> None:
    def failures(first: Similarity | None, second: Similarity | None) -> str:
        tensors = [TensorComparison("a", alike(1, 1), alike(1, 1)), TensorComparison("b", first, second)]
        return Comparison("net", 1, tensors).failures((0.9, 0.8))

    assert failures(alike(0.9, 0.8), None) == ""
    for low in (alike(0.89, 1), alike(1, 0.79), alike(math.nan, 1)):
        assert '"b"' in failures(low, None)
        assert '"b"' in failures(None, low)
    assert Comparison("net", 1, [TensorComparison("a", None, alike(0, 0))]).failures(None) == ""


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_batches_give_the_samples_of_single_runs(command: Command, tmp_path: Path, batch: int) -> None:
    b = Builder("batched")
    x = b.node("Relu", b.conv(b.input("image", ["batch", 2, 5, 5]), 4))
    b.output(b.gemm(x, 3))
    network = b.model()
    model, inputs, ranges = tmp_path / "m.onnx", tmp_path / "x.npz", tmp_path / "r.json"
    onnx.save(network, model)
    np.savez(inputs, allow_pickle=False, **samples(network, 5))
    assert command("calibrate", model, "--calib", inputs, "-o", ranges).status == 0
    program = tmp_path / "m.tpu"
    words = ("--ranges", ranges, "--batch", str(batch), "-o", program)
    result = command("build", model, "-O5", *words)
    assert result.status == 0, result.err
    outputs = {}
    for file in (program, program.with_suffix(".tpuq"), model):
        path = tmp_path / "y.npz"
        result = command("run", file, "--inputs", inputs, "--outputs", path)
        assert result.status == 0, result.err
        with np.load(path) as arrays:
            (outputs[file.suffix],) = arrays.values()
    assert outputs[".tpu"].shape == (5, 3)
    assert np.array_equal(outputs[".tpu"], outputs[".tpuq"])
    assert np.abs(outputs[".tpu"] - outputs[".onnx"]).max() < 0.1 * np.abs(outputs[".onnx"]).max()


@pytest.mark.feature("CMP-23")
def test_the_report_has_every_pair_of_stages_and_the_numbers_of_npz_compare(
    built: Built, command: Command, tmp_path: Path
) -> None:
    with np.load(built.calibration) as arrays:
        np.savez(tmp_path / "one.npz", allow_pickle=False, **{name: arrays[name][:1] for name in arrays})
    result = command("compare", built.model, built.program, "--inputs", tmp_path / "one.npz")
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("tensor"))
    assert lines[head].split() == (
        [
            "tensor",
            "import",
            "cos",
            "euclid",
            "graph",
            "cos",
            "euclid",
            "SQNR",
            "dB",
            "max",
            "error",
            "program",
        ]
    )
    end = next(index for index, line in enumerate(lines) if line.startswith("import:"))
    rows = {words[0]: words[1:] for words in map(str.split, lines[head + 2 : end]) if len(words) > 6}
    for file, model in (("float", built.model), ("graph", built.graph)):
        words = ("--inputs", tmp_path / "one.npz", "--outputs", tmp_path / f"{file}.npz", "--all-tensors")
        assert command("run", model, *words).status == 0
    figures = tmp_path / "figures.json"
    command("compare", tmp_path / "float.npz", tmp_path / "graph.npz", "--json", figures)
    compared = json.loads(figures.read_text(encoding="utf-8"))["tensors"]
    assert {each["name"] for each in compared} == set(rows) != set()
    for each in compared:
        measured = each["measures"]
        assert rows[each["name"]][2:4] == [f"{measured['cosine']:.3f}", f"{measured['euclid']:.3f}"]
