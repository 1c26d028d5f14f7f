"""Ranges: the invariant of a range, the file's round trip, and every way the file can be wrong."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuflow.calibration import Range, Ranges
from tpuflow.errors import FileError, RangesError

if TYPE_CHECKING:
    from pathlib import Path

LOW = st.floats(-1e30, 0)
HIGH = st.floats(0, 1e30)


@st.composite
def some_ranges(draw: st.DrawFn) -> Ranges:
    single = st.builds(Range, LOW, HIGH)
    pairs = st.lists(st.tuples(LOW, HIGH), min_size=1, max_size=4)
    lists = st.builds(
        lambda pairs, axis: Range(tuple(low for low, _ in pairs), tuple(high for _, high in pairs), axis),
        pairs,
        st.integers(0, 5),
    )
    tensors = draw(st.dictionaries(st.text(max_size=8), single | lists, max_size=5))
    return Ranges(tensors, draw(st.none() | st.integers(1, 999)), draw(st.none() | st.text(max_size=5)))


@given(some_ranges())
@pytest.mark.feature("CAL-22")
def test_text_round_trip_is_exact_and_keeps_the_order(ranges: Ranges) -> None:
    again = Ranges.from_json(ranges.to_json())
    assert again == ranges
    assert list(again.tensors) == list(ranges.tensors)
    assert again.to_json() == ranges.to_json()


def test_the_file_is_one_line_per_tensor(tmp_path: Path) -> None:
    ranges = Ranges(
        {"a": Range(-1.0, 2.5), "b": Range((-1.0, 0.0), (0.0, 3.0), 1)}, samples=3, strategy="mse"
    )
    path = tmp_path / "ranges.json"
    ranges.save(path)
    assert path.read_text(encoding="utf-8") == (
        "{\n"
        '  "format": 1,\n'
        '  "samples": 3,\n'
        '  "strategy": "mse",\n'
        '  "tensors": {\n'
        '    "a": {"min": -1.0, "max": 2.5, "axis": null},\n'
        '    "b": {"min": [-1.0, 0.0], "max": [0.0, 3.0], "axis": 1}\n'
        "  }\n"
        "}\n"
    )
    assert Ranges.load(path) == ranges
    assert [entry.name for entry in tmp_path.iterdir()] == ["ranges.json"]


def test_a_file_written_by_hand_is_accepted() -> None:
    text = '{"format": 1, "tensors": {"x": {"min": -1, "max": 2}, "w": {"min": [0], "max": [4], "axis": 3}}}'
    ranges = Ranges.from_json(text)
    assert dict(ranges.tensors) == {"x": Range(-1.0, 2.0), "w": Range((0.0,), (4.0,), 3)}
    assert ranges.tensors["w"].pairs == ((0.0, 4.0),)


def entry(text: str) -> str:
    return f'{{"format": 1, "tensors": {{"x": {text}}}}}'


def errors(text: str) -> str:
    return f'{{"format": 1, "tensors": {{}}, "errors": {text}}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.json: not JSON: line 1, column 1: expecting value"),
        ('{"format": 1,', "f.json: not JSON: line 1, column 14: expecting property name"),
        ("[]", "f.json: not a ranges file: an object is needed, this is a list"),
        ("[" * 100_000, "f.json: not a ranges file: nested too deep"),
        ('{"format": 1}', 'f.json: key "tensors" is missing'),
        ('{"tensors": {}}', 'f.json: key "format" is missing'),
        ('{"format": 2, "tensors": {}}', 'f.json: key "format" is 2, 1 is understood'),
        ('{"format": true, "tensors": {}}', 'f.json: key "format" is true, 1 is understood'),
        ('{"format": 1, "tensors": {}, "more": 0}', 'f.json: unknown key "more"'),
        ('{"format": 1, "tensors": []}', 'f.json: key "tensors" must be an object, it is a list'),
        (
            '{"format": 1, "tensors": {}, "samples": 0}',
            'f.json: key "samples" must be a positive number, it is 0',
        ),
        ('{"format": 1, "tensors": {}, "strategy": 1}', 'f.json: key "strategy" must be text, it is 1'),
        ('{"format": 1, "tensors": {"x": {}, "x": {}}}', 'f.json: "x" occurs twice'),
        (entry("3"), 'f.json: tensor "x": an object with "min", "max" and "axis" is needed, this is 3'),
        (entry('{"max": 1}'), 'f.json: tensor "x": field "min" is missing'),
        (entry('{"min": 0}'), 'f.json: tensor "x": field "max" is missing'),
        (entry('{"min": 0, "max": 1, "axes": 0}'), 'f.json: tensor "x": unknown field "axes"'),
        (entry('{"min": "0", "max": 1}'), 'f.json: tensor "x": field "min" must be a number, it is text'),
        (entry('{"min": 0, "max": true}'), 'f.json: tensor "x": field "max" must be a number, it is true'),
        (entry('{"min": 0, "max": null}'), 'f.json: tensor "x": field "max" must be a number, it is null'),
        (entry('{"min": NaN, "max": 1}'), 'f.json: tensor "x": field "min" is NaN'),
        (
            entry('{"min": 0, "max": Infinity}'),
            'f.json: tensor "x": field "max" is inf, beyond the largest float32',
        ),
        (
            entry('{"min": 0, "max": 1e39}'),
            'f.json: tensor "x": field "max" is 1e+39, beyond the largest float32',
        ),
        (
            entry('{"min": 0, "max": 1' + "0" * 400 + "}"),
            'f.json: tensor "x": field "max" is beyond the largest',
        ),
        (entry('{"min": 2, "max": 1}'), 'f.json: tensor "x": field "min" is 2, above "max" 1'),
        (entry('{"min": 0.5, "max": 1}'), 'f.json: tensor "x": field "min" is 0.5, a range contains 0'),
        (entry('{"min": -2, "max": -1}'), 'f.json: tensor "x": field "max" is -1, a range contains 0'),
        (
            entry('{"min": [0], "max": 1, "axis": 0}'),
            'fields "min" and "max" must both be numbers or both be lists',
        ),
        (entry('{"min": [0], "max": [1]}'), 'field "axis" is null, lists of "min" and "max" need an axis'),
        (entry('{"min": [0, 0], "max": [1], "axis": 0}'), 'fields "min" and "max" have 2 and 1 entries'),
        (entry('{"min": [], "max": [], "axis": 0}'), 'fields "min" and "max" have 0 and 0 entries'),
        (
            entry('{"min": 0, "max": 1, "axis": 0}'),
            'field "axis" is 0, single numbers "min" and "max" need null',
        ),
        (entry('{"min": [0], "max": [1], "axis": -1}'), 'field "axis" is -1, it must not be negative'),
        (
            entry('{"min": [0], "max": [1], "axis": 0.0}'),
            'field "axis" must be a whole number or null, it is 0.0',
        ),
        (
            entry('{"min": [0, [1]], "max": [1, 1], "axis": 0}'),
            'field "min[1]" must be a number, it is a list',
        ),
        (errors("null"), 'f.json: key "errors" must be an object, it is null'),
        (errors("[]"), 'f.json: key "errors" must be an object, it is a list'),
        (errors('{"y": 1}'), 'f.json: errors of "y": an object with "axis" and "error" is needed'),
        (
            errors('{"y": {"axis": 1, "mean": [0]}}'),
            'f.json: errors of "y": an object with "axis" and "error" is needed',
        ),
        (
            errors('{"y": {"axis": -1, "error": [0]}}'),
            'f.json: errors of "y": field "axis" must be a whole number',
        ),
        (
            errors('{"y": {"axis": 1, "error": []}}'),
            'f.json: errors of "y": field "error" must be a list of numbers',
        ),
        (errors('{"y": {"axis": 1, "error": [0, null]}}'), 'field "error[1]" must be a number, it is null'),
        (
            '{"format": 1, "tensors": {}, "errors_of": 8}',
            'f.json: key "errors_of" must be text, it is 8',
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(RangesError) as caught:
        Ranges.from_json(text, source="f.json")
    assert message in str(caught.value)
    assert str(caught.value).startswith("f.json: ")
    assert "\n" not in str(caught.value)


def test_a_margin_is_kept_and_held_within_bounds() -> None:
    wide = Ranges({"x": Range(-1.0, 2.0, margin=3.0), "y": Range(0.0, 1.0)})
    again = Ranges.from_json(wide.to_json())
    assert [each.margin for each in again.tensors.values()] == [3.0, 1.0]
    with pytest.raises(RangesError, match=r'tensor "x": field "margin" is 9\.0, it must be from 0 to 8'):
        Ranges.from_json(wide.to_json().replace("3.0", "9"))


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(RangesError, match=r"none\.json: cannot be read: no such file or directory"):
        Ranges.load(tmp_path / "none.json")
    with pytest.raises(RangesError, match="cannot be read: is a directory"):
        Ranges.load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RangesError, match="not UTF-8"):
        Ranges.load(tmp_path / "binary")
    with pytest.raises(FileError, match="cannot be written: no such file or directory"):
        Ranges({}).save(tmp_path / "no" / "ranges.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(FileError, match="cannot be written"):
        Ranges({}).save(tmp_path / "taken")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["binary", "taken"]


def test_ranges_are_frozen_and_numbers_are_written_in_full() -> None:
    tensors = {"x": Range(0.0, 1 / 3)}
    ranges = Ranges(tensors)
    tensors["y"] = Range(0.0, 1.0)
    assert list(ranges.tensors) == ["x"]
    with pytest.raises(TypeError):
        ranges.tensors["y"] = Range(0.0, 1.0)  # type: ignore[index]
    assert json.loads(ranges.to_json())["tensors"]["x"]["max"] == 1 / 3
    assert math.isclose(Ranges.from_json(ranges.to_json()).tensors["x"].pairs[0][1], 1 / 3, rel_tol=0.0)
