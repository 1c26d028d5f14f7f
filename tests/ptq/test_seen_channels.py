"""What samples show of channels: as value by value, and halves as the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.graphs import array, graph, normalized
from tpuflow.calibration import summarize_channels
from tpuflow.frontend import FloatModel, FloatSession
from tpuflow.io.samples import Samples
from tpuflow.ptq.seen_channels import SeenChannels


def convolutions() -> FloatModel:
    """Channels along the second axis, then along the last one."""
    nodes = [
        ("Conv", "x w", "a"),
        ("Relu", "a", "b"),
        ("Conv", "b v", "c"),
        ("Relu", "c", "d"),
        ("Transpose", "d", "t", {"perm": [0, 2, 3, 1]}),
        ("MatMul", "t u", "y"),
    ]
    constants = {"w": array(6, 3, 1, 1), "v": array(5, 6, 1, 1), "u": array(5, 4)}
    return normalized(graph(nodes, {"x": [1, 3, 4, 5]}, ["y"], constants))


def images(model: FloatModel, count: int, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    return Samples.of({"x": rng.standard_normal((count, 3, 4, 5)).astype(np.float32)}, model.inputs)


@settings(max_examples=30, deadline=None)
@given(
    axes=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
@pytest.mark.feature("QMO-29")
def test_statistics_of_any_channels(axes: list[tuple[int, bool]], seed: int) -> None:
    shape, kept = [length for length, _ in axes], [own for _, own in axes]
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    (found,) = summarize_channels([values], [kept])
    over = tuple(axis for axis, own in enumerate(kept) if not own)
    low, high = np.min(values, over).ravel(), np.max(values, over).ravel()
    np.testing.assert_array_equal(found[:2], [low, high])
    squares = np.square(values).astype(np.float64)
    np.testing.assert_allclose(found[2], np.mean(squares, over).ravel(), rtol=1e-12)


@pytest.mark.parametrize(
    ("kept", "text"), [([[True]], "4"), ([[True, False], [True, False]], "axes of 2 arrays, for 1")]
)
def test_axes_that_do_not_fit_are_refused(kept: list[list[bool]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        summarize_channels([np.zeros((2, 2), np.float32)], kept)


@pytest.mark.feature("QMO-29")
def test_reach_of_one_sample_is_that_of_its_values() -> None:
    model = convolutions()
    samples = images(model, 1)
    seen = SeenChannels.of(model, samples)
    (batch,) = samples.batches()
    floats = FloatSession(model.model, "all").run(batch.arrays)
    ids = {value.name: numbers for value, numbers in seen.channels.ids.items()}
    statistics = seen.statistics()
    assert {"b", "d"} <= statistics.keys()
    for name, found in statistics.items():
        over = tuple(axis for axis, length in enumerate(ids[name].shape) if length == 1)
        reach = (floats[name].min(over, keepdims=True), floats[name].max(over, keepdims=True))
        np.testing.assert_allclose(found.low, np.minimum(reach[0], 0), rtol=1e-6)
        np.testing.assert_allclose(found.high, np.maximum(reach[1], 0), rtol=1e-6)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 100))
@pytest.mark.feature("QMO-29")
def test_halves_together_are_the_whole(seed: int) -> None:
    model = convolutions()
    samples = images(model, 6, seed)
    rows = list(samples.rows())
    halves = [SeenChannels.of(model, samples.of_rows(rows[at::2])) for at in (0, 1)]
    joined, whole = halves[0].join(halves[1]).statistics(), SeenChannels.of(model, samples).statistics()
    assert joined.keys() == whole.keys() != set()
    for name, found in joined.items():
        for own, other in zip(
            (found.low, found.high, found.square),
            (whole[name].low, whole[name].high, whole[name].square),
            strict=True,
        ):
            np.testing.assert_allclose(own, other, rtol=1e-12)
