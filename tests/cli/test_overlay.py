"""Distributions before and after quantisation: every value is counted once, outliers exactly."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cli.conftest import Built, Command
from tpuflow.report import Overlay

VALUES = arrays(np.float32, st.integers(0, 60), elements=st.floats(-1000, 1000, width=32))


@given(st.lists(VALUES, max_size=3), st.floats(-50, -0.01), st.floats(0.01, 50))
@pytest.mark.feature("CMP-18")
def test_counts_sum_and_outliers_are_those_beyond(samples: list[np.ndarray], low: float, high: float) -> None:
    overlay = Overlay("t", (low, high))
    for values in samples:
        overlay.add(values, np.clip(values, low, high))
    whole = np.concatenate([np.empty(0), *samples]).astype(np.float64)
    assert overlay.floating.sum() == overlay.quantized.sum() == whole.size
    assert overlay.below == sum(value < low for value in whole)
    assert overlay.above == sum(value > high for value in whole)
    # Every bin but the outermost ones holds what lies in it.
    inside, _ = np.histogram(whole[(whole > overlay.edges[1]) & (whole < overlay.edges[-2])], overlay.edges)
    assert np.array_equal(overlay.floating[1:-1], inside[1:-1])
    ET.fromstring(overlay.picture())


@pytest.mark.feature("CMP-18")
def test_what_is_no_number_is_counted_apart() -> None:
    overlay = Overlay("<t>", (-1.0, 1.0))
    overlay.add(np.array([np.nan, np.inf, 0.5, -3.0]), np.array([0.0, 1.0, 0.5, -1.0]))
    assert (overlay.nonfinite, overlay.below, overlay.above) == (2, 1, 1)
    assert (overlay.floating.sum(), overlay.quantized.sum()) == (2, 4)
    ET.fromstring(overlay.picture())


@pytest.mark.feature("CMP-18")
def test_every_tensor_of_a_network(built: Built, command: Command, tmp_path: Path) -> None:
    folder, ours, theirs = tmp_path / "d", tmp_path / "q.npz", tmp_path / "f.npz"
    made = command(
        "compare", built.model, built.program, "--inputs", built.calibration, "--samples", "5",
        "--histograms", folder,
    )  # fmt: skip
    assert made.status == 0, made.err
    found = {
        each["name"]: each for each in json.loads((folder / "overlays.json").read_text(encoding="utf-8"))
    }
    assert len(list(folder.glob("*.svg"))) == len(found) >= 5
    for file, out in ((built.graph, ours), (built.model, theirs)):
        ran = command("run", file, "--inputs", built.calibration, "--outputs", out, "--all-tensors")
        assert ran.status == 0, ran.err
    checked = 0
    with np.load(theirs) as floating, np.load(ours) as quantized:
        for name in set(found) & set(floating.files) & set(quantized.files):
            low, high = found[name]["thresholds"]
            exact = floating[name].astype(np.float64)
            assert sum(found[name]["floating"]) == sum(found[name]["quantised"]) == exact.size
            assert found[name]["below"] == np.count_nonzero(exact < low)
            assert found[name]["above"] == np.count_nonzero(exact > high)
            assert low - 1e-9 <= quantized[name].min() and quantized[name].max() <= high + 1e-9
            checked += 1
    assert checked >= 4


@pytest.mark.parametrize("thresholds", [(0.0, 0.0), (-1e-30, 1e-30), (0.0, 1e30)])
def test_ranges_of_any_size(thresholds: tuple[float, float]) -> None:
    overlay = Overlay("t", thresholds)
    overlay.add(np.array([0.0, 1.0]), np.array([0.0, 0.0]))
    assert overlay.floating.sum() == 2
    ET.fromstring(overlay.picture())
