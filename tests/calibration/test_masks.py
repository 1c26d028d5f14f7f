"""Masks computed at run time: ranges are those of what is not masked, and what is masked stays so."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from conftest import slow_except
from models.builder import Builder
from tpuflow.calibration import calibrate
from tpuflow.calibration.masks import DEEP, FAR, Masks, unseen_masks
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config
from tpuflow.errors import SampleError
from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.execution.levels import graph_level
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import load, run_float
from tpuflow.io.samples import Samples
from tpuflow.ptq import quantize
from tpuflow.ptq.confirmation import graph_of

LENGTH, WIDTH = 6, 8
LOWEST = float(np.finfo(np.float32).min)


def attention(kind: str, masked: float) -> onnx.ModelProto:
    """One head that leaves out keys where `keep` is 0; what a mask is made of differs by `kind`."""
    b = Builder("masked")
    x, keep = b.input("x", [1, LENGTH, WIDTH]), b.input("keep", [1, 1, LENGTH])
    query, key, value = (b.node("MatMul", x, b.weight(WIDTH, WIDTH, fan_in=WIDTH)) for _ in range(3))
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 2, 1]))
    one, out = b.constant(np.float32(1)), b.constant(np.float32(masked))
    if kind == "added":
        scores = b.node("Add", scores, b.node("Mul", b.node("Sub", one, keep), out))
    else:
        scores = b.node("Where", b.node("Greater", keep, b.constant(np.float32(0.5))), scores, out)
    b.output(b.node("MatMul", b.node("Softmax", scores, axis=-1), value))
    return b.model()


def shown(count: int) -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(0)
    keep = generator.integers(0, 2, (count, 1, LENGTH)).astype(np.float32)
    keep[:, :, :2] = 1
    return {"x": generator.standard_normal((count, LENGTH, WIDTH)).astype(np.float32), "keep": keep}


@pytest.mark.parametrize("masked", [-1e4, -65504.0, -1e9, LOWEST])
@pytest.mark.parametrize("kind", ["added", "chosen"])
@pytest.mark.feature("IMP-18")
def test_masks_leave_the_grid_of_scores_alone(kind: str, masked: float) -> None:
    model = load(attention(kind, masked))
    samples = Samples.of(shown(16), model.inputs)
    ranges = calibrate(model, samples, Config())
    softmax = next(node for node in model.model.graph if node.op_type == "Softmax")
    assert softmax.inputs[0] is not None
    ((low, _),) = ranges.tensors[softmax.inputs[0].name or ""].pairs
    assert -60 < low < -DEEP / 2
    assert Evaluator(model, samples).sqnr_db(graph_of(model, ranges, Config())) > 20


@pytest.mark.feature("IMP-18")
def test_what_is_masked_counts_as_deep_below_its_row() -> None:
    masks = Masks({"scores": (-1, 1.0)}, {"mask": 1.0}, {})
    scores = np.array([[3, 1, -9999, 2], [-9999, -9998, -9999, -9999]], np.float32)
    found = masks.left_out({"scores": scores, "mask": scores, "other": scores})
    wanted = [[3, 1, 3 - DEEP, 2], [0, 0, 0, 0]]
    np.testing.assert_array_equal(found["scores"], wanted)
    np.testing.assert_array_equal(found["mask"][0], [3, 1, -FAR, 2])
    assert found["other"] is scores
    assert masks.left_out({"scores": np.array([[-500, 400]], np.float32)})["scores"].tolist() == [[384, 400]]
    for kept in ([[-8, 7]], [[-np.inf, np.nan]]):  # the latter to be refused
        array = np.array(kept, np.float32)
        assert masks.left_out({"scores": array})["scores"] is array


@pytest.mark.feature("IMP-18")
def test_masks_are_found_behind_other_shapes() -> None:
    b = Builder("shapes")
    x, mask = b.input("x", [1, 4, 4]), b.input("mask", [1, 4])
    both = b.node("Add", x, b.node("Unsqueeze", mask, b.integers(1)))
    b.output(b.node("Softmax", both, axis=1), b.node("Relu", x))
    model = load(b.model())
    found = Masks.of(model.model.graph)
    assert list(found.scores.values()) == [(1, 1.0)]
    assert {"mask"} < found.added.keys()
    assert "x" not in found.added


@pytest.mark.feature("IMP-18")
def test_masks_are_found_in_sums_and_in_front_of_a_scale() -> None:
    """As with a bias of positions, and with scores that are scaled last."""
    b = Builder("sums")
    x, mask = b.input("x", [1, 4, 4]), b.input("mask", [1, 1, 4])
    bias = b.node("Add", mask, b.constant(np.eye(4, dtype=np.float32)[np.newaxis]))
    both = b.node("Add", b.node("MatMul", x, x), bias)
    b.output(b.node("Softmax", b.node("Mul", both, b.constant(np.float32(0.25))), axis=2))
    masks = Masks.of(load(b.model()).model.graph)
    assert set(masks.scores.values()) == {(2, 1.0), (2, 4.0)}
    assert masks.added["mask"] == 4.0
    far = np.full((1, 1, 4), -1e9, np.float32)
    assert np.all(masks.left_out({"mask": far})["mask"] == -4 * FAR)


@pytest.mark.parametrize("masked", [-1e4, -1e9, LOWEST])
@pytest.mark.parametrize("scaled", [1.0, 0.25])
@pytest.mark.parametrize("kind", ["given", "computed", "subtracted", "chosen"])
def test_a_mask_that_no_sample_sets_still_masks(
    masked: float, scaled: float, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Calibrated without, run with three quarters of the keys masked."""
    b, length = Builder("unset"), 16
    x, mask = b.input("x", [1, length, WIDTH]), b.input("mask", [1, 1, length])
    query, key, value = (b.node("MatMul", x, b.weight(WIDTH, WIDTH, fan_in=WIDTH)) for _ in range(3))
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 2, 1]))
    if kind in {"computed", "subtracted"}:
        masked = masked if kind == "computed" else -masked
        mask = b.node("Mul", b.node("Sub", b.constant(np.float32(1)), mask), b.constant(np.float32(masked)))
    if kind == "chosen":
        kept = b.node("Greater", mask, b.constant(np.float32(0.5)))
        scores = b.node("Where", kept, scores, b.constant(np.float32(masked)))
    else:
        scores = b.node("Sub" if kind == "subtracted" else "Add", scores, mask)
    scores = b.node("Mul", scores, b.constant(np.float32(scaled)))
    b.output(b.node("MatMul", b.node("Softmax", scores, axis=-1), value))
    source = b.model()
    model = load(source)
    generator = np.random.default_rng(3)
    shown = {"x": generator.standard_normal((9, length, WIDTH)).astype(np.float32)}
    absent, present = (0.0, masked) if kind == "given" else (1.0, 0.0)
    shown["mask"] = np.full((9, 1, length), absent, np.float32)
    with caplog.at_level("WARNING"):
        ranges = calibrate(model, {name: array[:8] for name, array in shown.items()}, Config())
    warned = [
        record.getMessage()
        for record in caplog.records
        if "left nothing out in any sample" in record.getMessage()
    ]
    # What a condition chooses the softmax leaves out itself.
    assert len(warned) == (kind != "chosen")
    assert kind != "given" or warned[0].startswith('"mask" masks scores')
    given = {name: array[8:].copy() for name, array in shown.items()}
    given["mask"][:, :, 4:] = present
    (name,) = (port.name for port in model.outputs)
    wanted, unmasked = (
        run_float(source, given)[name],
        run_float(source, shown | {"x": given["x"], "mask": shown["mask"][8:]})[name],
    )
    found = simulate(compile_graph(graph_of(model, ranges, Config()), level=1), given).outputs[name]
    assert np.linalg.norm(found - wanted) < 0.1 * np.linalg.norm(wanted)
    assert np.linalg.norm(unmasked - wanted) > 0.3 * np.linalg.norm(wanted), "the mask makes a difference"


def test_scores_with_a_mask_that_is_set_keep_their_ranges() -> None:
    model = load(attention("added", -1e4))
    ranges = calibrate(model, Samples.of(shown(16), model.inputs), Config())
    assert unseen_masks(model.model.graph, ranges.tensors) == ({}, [])


def test_a_mask_that_no_sample_sets_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Though the recipe calibrates halves of the samples, with and without factors, as well."""
    model = load(attention("added", -1e4))
    given = shown(16)
    given["keep"][:] = 1
    with caplog.at_level("WARNING"):
        quantize(model, samples=given)
    assert [record.getMessage() for record in caplog.records if "left nothing out" in record.getMessage()][
        1:
    ] == []
    assert caplog.records


@pytest.mark.parametrize("dtype", slow_except(["int8"], ["int8", "int16"]))
@pytest.mark.parametrize("masked", [100.0, 1e3, 1e9, -LOWEST])
@pytest.mark.parametrize("kind", ["input", "computed", "given apart", "few samples", "never set"])
def test_a_mask_scaled_from_zero_and_less_leaves_the_scores_their_bits(
    kind: str, masked: float, dtype: str
) -> None:
    """`scores + (m - 1) * c`: of the difference no more is needed than c makes of what scores span."""
    b = Builder("less")
    scores, mask = b.input("scores", [1, LENGTH, LENGTH]), b.input("mask", [1, 1, LENGTH])
    if kind == "computed":
        mask = b.node("Clip", b.node("Ceil", mask), b.constant(np.float32(0)), b.constant(np.float32(1)))
    less = b.node("Sub", mask, b.constant(np.float32(1)))
    both = b.node("Add", scores, b.node("Mul", less, b.constant(np.float32(masked))))
    b.output(b.node("Softmax", both, axis=-1))
    if kind == "given apart":
        b.output(less)
    source = b.model()
    model, generator = load(source), np.random.default_rng(1)
    count = 4 if kind == "few samples" else 16
    keep = generator.integers(0, 2, (count, 1, LENGTH)).astype(np.float32)
    keep[:, :, :2] = 1
    given = {
        "scores": 3 * generator.standard_normal((count, LENGTH, LENGTH)).astype(np.float32),
        "mask": keep,
    }
    shown = given | {"mask": np.ones_like(keep)} if kind == "never set" else given
    config = Config.parse({"quantize": {"dtype": dtype}})
    graph = graph_of(model, calibrate(model, Samples.of(shown, model.inputs), config), config)
    (name,) = (port.name for port in model.outputs[:1])
    feeds = [{name: array[at : at + 1] for name, array in given.items()} for at in range(count)]
    exact = np.concatenate([run_float(source, feed)[name] for feed in feeds])
    found = np.concatenate([graph_level(graph).run(feed)[name] for feed in feeds])
    assert 20 * np.log10(np.linalg.norm(exact) / np.linalg.norm(found - exact)) > (
        32 if dtype == "int8" else 62
    )


@pytest.mark.parametrize("masked", [1e4, 1e9])
def test_a_mask_between_zero_and_one_leaves_out_as_well(masked: float) -> None:
    b = Builder("soft")
    scores, mask = b.input("scores", [1, 4, LENGTH]), b.input("mask", [1, 1, LENGTH])
    less = b.node("Sub", mask, b.constant(np.float32(1)))
    both = b.node("Add", scores, b.node("Mul", less, b.constant(np.float32(masked))))
    b.output(b.node("Softmax", both, axis=-1))
    model = load(b.model())
    scores_shown = np.random.default_rng(1).standard_normal((8, 4, LENGTH)).astype(np.float32)
    given = {"scores": scores_shown, "mask": np.ones((8, 1, LENGTH), np.float32)}
    graph = graph_of(model, calibrate(model, given, Config()), Config())
    soft = np.array([[[1, 1, 0.7, 0.2, 1, 0]]], np.float32)
    (found,) = graph_level(graph).run({"scores": scores_shown[:1], "mask": soft}).values()
    assert np.all(found[..., [2, 3, 5]] < 1e-4)
    assert np.all(found[..., [0, 1, 4]] > 1e-2)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("set_in_samples", [False, True])
@pytest.mark.parametrize("bound", ["none", "Clip", "Max", "of the mask"])
@pytest.mark.parametrize("last", ["Softmax", "LogSoftmax"])
def test_a_mask_of_minus_infinity_masks(last: str, bound: str, set_in_samples: bool, dtype: str) -> None:  # noqa: FBT001
    """As exporters write it, with or without a bound behind or in front of the sum."""
    b = Builder("masked")
    x, mask = b.input("x", [1, LENGTH, WIDTH]), b.input("mask", [1, 1, LENGTH])
    low = b.constant(np.float32(-65504))
    scores = b.node("Relu", b.node("MatMul", x, b.weight(WIDTH, LENGTH, fan_in=WIDTH)))
    total = b.node("Add", scores, b.node("Clip", mask, low) if bound == "of the mask" else mask)
    b.output(b.node(last, b.node(bound, total, low) if bound in {"Clip", "Max"} else total, axis=-1))
    model, samples = load(b.model()), shown(16)
    samples["x"] *= np.float32(0.2)  # scores among which the least masks nothing
    with np.errstate(divide="ignore"):
        masked = np.log(samples.pop("keep"))
    settings = Config.parse({"quantize": {"dtype": dtype}})
    ranges = calibrate(
        model, {**samples, "mask": masked if set_in_samples else 0 * samples["x"][:, :1, :LENGTH]}, settings
    )
    feed = {"x": samples["x"][:1], "mask": masked[:1]}
    (found,) = simulate(compile_graph(graph_of(model, ranges, settings)), feed).outputs.values()
    (expected,) = run_float(model.model, feed).values()
    kept = np.broadcast_to(masked[:1] == 0, expected.shape)
    np.testing.assert_allclose(found[kept], expected[kept], atol=0.02 if dtype == "int8" else 2e-3)
    assert np.all(found[~kept] <= (0.0 if last == "Softmax" else -DEEP / 2))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_of_numbers_that_are_not_finite_only_minus_infinity_is_a_mask(number: float) -> None:
    model = load(attention("added", -1e9))
    samples = shown(4)
    samples["keep"][1, 0, 3] = number
    with pytest.raises(SampleError, match='"keep": NaN or infinite values, first in sample 1'):
        calibrate(model, samples, Config())
