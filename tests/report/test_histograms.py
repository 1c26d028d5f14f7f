"""Distributions of calibrated tensors: what is kept, what is drawn, what is refused."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from report.made_up import made_up_histograms
from tpuflow.calibration import Range, Ranges, Statistics
from tpuflow.errors import FileError
from tpuflow.report import load_histograms, save_histograms, tensor_histograms, tensor_rows

SVG = "{http://www.w3.org/2000/svg}"


def counted(values: dict[str, np.ndarray], bins: int = 64) -> Statistics:
    statistics = Statistics(bins)
    statistics.observe({name: array.astype(np.float32) for name, array in values.items()})
    return statistics


def arrays() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(2)
    return {
        "a/input": chance.normal(0, 1, (4, 50)),
        "relu:0": np.maximum(chance.normal(0, 3, (7, 31)), 0),
        "zeros": np.zeros(12),
        "<one> & only": np.array([-2.5]),
    }


@pytest.mark.feature("VIS-13", "CAL-23")
def test_a_file_of_counts_and_a_picture_of_every_tensor(tmp_path: Path) -> None:
    values = arrays()
    thresholds = {
        name: Range(float(min(a.min() / 2, 0)), float(max(a.max() / 2, 0))) for name, a in values.items()
    }
    found = tensor_histograms(counted(values), Ranges(thresholds))
    written = save_histograms(found, tmp_path / "made")
    assert sorted(written) == sorted((tmp_path / "made").iterdir())
    assert len(written) == 1 + len(values)
    back = load_histograms(tmp_path / "made")
    assert [each.name for each in back] == list(values)
    for each, picture in zip(back, written[1:], strict=True):
        array = values[each.name].astype(np.float32)
        chosen = thresholds[each.name]
        assert each.thresholds == (chosen.min, chosen.max)
        assert each.extrema == (min(array.min(), 0), max(array.max(), 0))
        assert each.count == array.size
        drawn = ET.parse(picture).getroot()
        assert drawn.find(f"{SVG}text").text == each.name  # type: ignore[union-attr]
        marks = [line for line in drawn.iter(f"{SVG}line") if line.get("stroke") == "#b3261e"]
        assert len(marks) == 2


@settings(max_examples=15)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60),
    st.floats(0, 120),
    st.floats(0, 120),
    st.integers(1, 40),
)
@pytest.mark.feature("VIS-13")
def test_bars_lose_nothing_and_values_beyond_are_counted(
    values: list[float], low: float, high: float, bars: int
) -> None:
    array = np.array(values, np.float32)
    (found,) = tensor_histograms(counted({"x": array}), Ranges({"x": Range(-low, high)}))
    assert found.count == array.size == found.bars(bars).sum()
    outside = int(((array < -low) | (array > high)).sum())
    # A bin that holds a threshold is not divided: what lies in it counts as inside.
    sure = int(((array < -low - found.width) | (array > high + found.width)).sum())
    assert sure <= found.beyond <= outside
    assert all(0.0 <= found.place(value) <= 1.0 for value in (*found.thresholds, *found.extrema))


def test_a_range_by_channel_is_shown_by_what_spans_it() -> None:
    ranges = Ranges({"x": Range((-1.0, -3.0), (4.0, 2.0), 1)})
    (found,) = tensor_histograms(counted({"x": np.arange(-3.0, 5.0)}), ranges)
    assert found.thresholds == (-3.0, 4.0)


def test_rows_join_similarity_and_distribution() -> None:
    rows = tensor_rows((), made_up_histograms(3))
    assert [row["name"] for row in rows] == ["tensor_0", "tensor_1", "tensor_2"]
    assert all(len(row["marks"]) == 2 and row["path"].startswith("M") for row in rows)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "not a complete NumPy file"), (b"PK\x03\x04 nothing", "not a zip file"), (None, "cannot be read")],
)
def test_files_that_hold_no_histograms_are_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "x.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError, match=words):
        load_histograms(path)


def test_other_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", names=np.zeros(3))
    with pytest.raises(FileError, match="width, zeros, negative"):
        load_histograms(tmp_path / "x.npz")
