"""Calibration tables: lines of text for ranges."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuflow.calibration import Means, Range, Ranges
from tpuflow.calibration.table import HEADER, from_table, to_table
from tpuflow.errors import RangesError

LETTERS = st.characters(codec="ascii", categories=["L", "N", "P", "Zs"])
NAMES = st.text(LETTERS, min_size=1).map(str.strip).filter(lambda name: name and name[0] != "#")
BOUND = st.floats(0, 3e38)
PAIRS = st.tuples(BOUND.map(lambda bound: 0.0 - bound), BOUND)


@given(st.dictionaries(NAMES, PAIRS))
@pytest.mark.feature("CAL-27")
def test_a_table_that_is_read_again_has_the_same_ranges(pairs: dict[str, tuple[float, float]]) -> None:
    text = to_table(pairs)
    assert text.splitlines()[0] == HEADER
    assert from_table(text) == pairs
    assert to_table(from_table(text)) == text


@pytest.mark.feature("CAL-27")
def test_files_that_end_in_table(tmp_path: Path) -> None:
    ranges = Ranges({"conv 1": Range(-2.5, 3.75), "y": Range(0.0, 1e-7)})
    ranges.save(tmp_path / "net.table")
    assert (tmp_path / "net.table").read_text() == f"{HEADER}\nconv 1 3.75 -2.5 3.75\ny 1e-07 0.0 1e-07\n"
    assert dict(Ranges.load(tmp_path / "net.table").tensors) == dict(ranges.tensors)
    assert from_table("# generated\n\nx 2 -5 9\nz 1 0.5 0.75\n") == {"x": (-2.0, 2.0), "z": (0.0, 0.75)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x 1 2\n", 'line 1: "x 1 2" is not a name, threshold, minimum, maximum'),
        (f"{HEADER}\nx 1 -1 one\n", 'line 2: "x 1 -1 one" is not'),
        ("x nan -1 1\n", "line 1: x has threshold nan"),
        ("x -1 -1 1\n", "the threshold not negative"),
        ("x 1 1 -1\n", "the minimum not above the maximum"),
        ("x 1 -1 1\nx 1 -1 1\n", 'line 2: "x" occurs twice'),
    ],
)
@pytest.mark.feature("CAL-27")
def test_wrong_lines_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.table"
    path.write_text(text)
    with pytest.raises(RangesError) as raised:
        Ranges.load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        (Ranges({"w": Range((-1.0, -2.0), (1.0, 2.0), 0)}), "one each: write"),
        (Ranges({"x": Range(-1.0, 1.0)}, factors={"x": Means(1, (0.5, 2.0))}), "channels were divided"),
    ],
)
@pytest.mark.feature("CAL-27")
def test_what_a_table_cannot_say_needs_another_file(tmp_path: Path, ranges: Ranges, words: str) -> None:
    with pytest.raises(RangesError, match=words):
        ranges.save(tmp_path / "net.table")
    assert list(tmp_path.iterdir()) == []
