"""Levels, causes, tables of two files, and the first failing tensor."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tpuflow
from models.builder import Builder, samples
from tpuflow.evaluation.tensor_files import (
    STAGES,
    Level,
    Network,
    Scope,
    Step,
    Tolerance,
    cause,
    classify,
    compare_arrays,
    compare_files,
    network_of,
    to_dot,
)
from tpuflow.evaluation.tensor_files.levels import ToleranceError
from tpuflow.evaluation.tensor_files.table import COLUMNS

F = NDArray[np.float32]


@pytest.fixture
def x() -> F:
    return np.random.default_rng(1).normal(0, 1, (2, 6, 5, 3)).astype(np.float32)


@pytest.mark.feature("CMP-07")
def test_one_fixture_per_level(x: F) -> None:
    noise = np.random.default_rng(2).normal(0, 1, x.shape).astype(np.float32)
    tolerance = Tolerance(0.99, 0.9)
    found = {
        Level.EQUAL: x.copy(),
        Level.CLOSE: (x * np.float32(1 + 2e-5)),
        Level.SIMILAR: x + 0.05 * noise,
        Level.NOT_SIMILAR: x + 0.5 * noise,
        Level.NOT_MATCH: x[:, :5],
    }
    for level, other in found.items():
        assert classify(x, other, tolerance).level is level
    assert classify(x, found[Level.CLOSE], tolerance).digits == 4
    assert classify(x, x * np.float32(1 + 2e-3), Tolerance(0.9, 0.9)).level is Level.SIMILAR
    assert classify(x, found[Level.SIMILAR], Tolerance(0.99, 0.9, sqnr=60)).level is Level.NOT_SIMILAR
    assert not classify(x, np.array(["text"]), tolerance).level.passed


@given(st.integers(-9, -1), st.integers(0, 99))
@settings(max_examples=60)
@pytest.mark.feature("CMP-07")
def test_digits_equal_allclose(exponent: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.normal(0, 1, 40)
    y = x * (1 + generator.uniform(-1, 1, 40) * 10.0**exponent)
    verdict = classify(x, y, Tolerance(-1, -1e9))
    agreeing = [k for k in range(3, 9) if np.allclose(y, x, rtol=10.0**-k, atol=1e-8)]
    assert verdict.digits == (max(agreeing) if agreeing else None)
    assert (verdict.level is Level.CLOSE) == bool(agreeing)


@pytest.mark.feature("CMP-24")
def test_nan_and_infinity_must_stand_in_the_same_places(x: F) -> None:
    same, moved = x.copy(), x.copy()
    same[0, 0, 0, 0], same[1, 2, 3, 1] = np.nan, np.inf
    moved[0, 0, 0, 1], moved[1, 2, 3, 1] = np.nan, np.inf
    equal = classify(same, same.copy(), Tolerance())
    assert (equal.level, equal.nan, equal.inf) == (Level.EQUAL, (1, 1), (1, 1))
    close = classify(same, same + np.float32(1e-6), Tolerance())
    assert close.level is not Level.NOT_SIMILAR
    different = classify(same, moved, Tolerance(-1, -1e9))
    assert (different.level, different.nan, different.first) == (Level.NOT_SIMILAR, (1, 1), (0, 0, 0, 0))
    assert cause(same, moved).kind == "range"


@pytest.mark.feature("CMP-06")
def test_tolerances_of_stages() -> None:
    assert {name: (stage.cosine, stage.euclid) for name, stage in STAGES.items()} == {
        "import": (0.99, 0.99), "quantize": (0.8, 0.5), "program": (0.99, 0.90),
    }  # fmt: skip
    assert Tolerance.parse("0.9,0.8,20") == Tolerance(0.9, 0.8, 20)
    for wrong in ("0.9", "a,b", "1.5,0.9", "0.9,0.9,nan", "1,2,3,4"):
        with pytest.raises(ToleranceError, match="tolerance"):
            Tolerance.parse(wrong)


@pytest.mark.feature("CMP-11")
def test_injected_faults_map_to_their_causes(x: F) -> None:
    codes = np.clip(np.rint(x / 0.02), -32768, 32767).astype(np.int16)
    faults = {
        "range: the same values on another scale": (x, 2 * x),
        "range: only": (x, (np.rint(x / 2.5) * 2.5).astype(np.float32)),
        "saturation: ": (x, np.clip(x, -0.4, 0.4)),
        "layout: the same numbers": (x, np.ascontiguousarray(x.transpose(0, 3, 1, 2)).reshape(x.shape)),
        "layout: shapes": (x, x.transpose(0, 3, 1, 2)),
        "layout: the same numbers, 3 elements too": (x, np.roll(x.ravel(), -3).reshape(x.shape)),
        "dtype: float32 and int16": (x, codes),
        "dtype: .* wrapped around": (codes.astype(np.int32), codes.astype(np.int8).astype(np.int32)),
        "value: ": (x, np.random.default_rng(5).normal(0, 1, x.shape).astype(np.float32)),
    }
    for wanted, (reference, other) in faults.items():
        assert re.match(wanted, str(cause(reference, other))), (wanted, str(cause(reference, other)))


@pytest.mark.feature("CMP-08")
def test_table_csv_json_and_excepts(x: F, tmp_path: Path) -> None:
    wrong = np.clip(x, -0.3, 0.3)
    full = np.array([127, -128, 5, 127], np.int8)
    np.savez(tmp_path / "a.npz", good=x, bad=x, left=x, codes=full, only_a=x)
    np.savez(tmp_path / "b.npz", good=x, bad=wrong, left=wrong, codes=full, only_b=x)
    table = compare_files(tmp_path / "a.npz", tmp_path / "b.npz", Tolerance(), Scope(excepts=("lef*",)))
    assert [row.name for row in table.rows] == ["good", "bad", "codes"]
    assert [row.name for row in table.failures] == table.first_failing == ["bad"]
    assert (table.missing, table.extra) == (["only_a"], ["only_b"])
    assert table.row("codes").verdict.saturated == (0.75, 0.75)
    lines = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert table.to_csv().splitlines()[0] == ",".join(COLUMNS)
    assert table.to_csv().splitlines()[1] == "good,,float32,1,1,1,inf,EQUAL,0,0,0,inf,0/0,0/0,,,"
    assert lines[1]["pass"] == "0" and lines[1]["cause"].startswith("saturation") and lines[1]["first"]
    content = json.loads(json.dumps(table.to_json()))
    assert (content["compared"], content["failed"], content["passed"]) == (3, 1, False)
    assert content["tensors"][1]["cause"]["kind"] == "saturation"


@pytest.mark.feature("CMP-17")
def test_a_small_component_is_not_hidden_by_a_large_one() -> None:
    generator = np.random.default_rng(1)
    boxes = generator.uniform(0, 300, (20, 5)).astype(np.float32)
    boxes[:, 4] /= 300
    wrong = boxes.copy()
    wrong[:, 4] = boxes[::-1, 4]
    table = compare_arrays({"boxes": boxes}, {"boxes": wrong}, Tolerance(), Scope(axis=1))
    row = table.row("boxes")
    assert row.passed and row.worst == 4
    assert row.axis[0].cosine == 1 and row.axis[4].cosine < 0.95
    assert not compare_arrays({"s": boxes[0]}, {"s": boxes[0]}, Tolerance(), Scope(axis=1)).row("s").axis


@pytest.mark.feature("CMP-25")
def test_sampling_says_what_it_leaves_out(x: F) -> None:
    arrays = {f"t{n}": x for n in range(300)}
    table = compare_arrays(arrays, arrays, Tolerance(), Scope(sample=20))
    assert len(table.rows) == 20 and table.left_out == 280
    assert table.rows[0].name == "t0" and table.rows[-1].name == "t299"
    assert compare_arrays(arrays, arrays, Tolerance()).left_out == 0


def chain() -> Network:
    """x -> a -> b -> c, and x -> d; e joins c and d."""
    steps = [
        Step("conv1", "conv", "int8", ("x",), "a"),
        Step("relu", "unary", "int8", ("a",), "b"),
        Step("conv2", "conv", "int8", ("b",), "c"),
        Step("pool", "max_pool", "int8", ("x",), "d"),
        Step("add", "binary", "int8", ("c", "d"), "e"),
    ]
    return Network({step.output: step for step in steps})


@pytest.mark.parametrize(
    ("failing", "first_failing"),
    [("e", "e"), ("ce", "c"), ("bce", "b"), ("ade", "ad"), ("cd", "cd"), ("abcde", "ad"), ("", "")],
)
@pytest.mark.feature("CMP-10")
def test_the_first_failing_tensor_is_found(x: F, failing: str, first_failing: str) -> None:
    reference = dict.fromkeys("edcba", x)
    other = {name: 2 * x if name in failing else x for name in reference}
    table = compare_arrays(reference, other, Tolerance(), Scope(network=chain()))
    assert [row.name for row in table.rows] == list("abcde")
    assert table.first_failing == list(first_failing)
    assert table.row("c").op == "conv"
    # A tensor nobody compared hands on what stands above it.
    del reference["b"]
    again = compare_arrays(reference, other, Tolerance(), Scope(network=chain()))
    assert again.first_failing == list("c" if failing == "bce" else first_failing)


@pytest.mark.feature("VIS-10")
def test_the_picture_has_the_failing_set_red(x: F) -> None:
    other = {name: 2 * x if name in "ce" else x for name in "abce"}
    table = compare_arrays(dict.fromkeys("abce", x), other, Tolerance(), Scope(network=chain()))
    text = to_dot(chain(), table, 'a "name"')
    lines = text.splitlines()
    red = [line.split("\\n")[1] for line in lines if "#e5484d" in line]
    assert set(red) == {row.name for row in table.failures} == {"c", "e"}
    assert sum("penwidth" in line for line in lines) == 1
    assert sum("->" in line for line in lines) == 6
    assert text.startswith('digraph "a \\"name\\""') and text.endswith("}\n")


def test_networks_come_from_graphs_and_models(tmp_path: Path) -> None:
    b = Builder("net")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 6, 6]), 4))
    b.output(b.gemm(b.node("Add", x, x), 3))
    onnx.save(b.model(), tmp_path / "net.onnx")
    model = tpuflow.load(b.model())
    graph = tpuflow.quantize(model, tpuflow.calibrate(model, samples(b.model(), 2)))
    graph.save(tmp_path / "net.tpuq")
    found, floats = network_of(tmp_path / "net.tpuq"), network_of(tmp_path / "net.onnx")
    output = b.model().graph.output[0].name
    assert output in found.steps and output in floats.steps
    first = next(iter(found.steps.values()))
    assert (first.op, first.inputs, first.dtype) == ("conv", ("image",), "int8")
    known = {"image", *found.steps}
    assert all(name in known for step in found.steps.values() for name in step.inputs)
