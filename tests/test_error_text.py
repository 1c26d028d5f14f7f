"""The text of errors: one line each, whatever they quote, and the same in another process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tpuflow.compiler.allocation import read_instance
from tpuflow.errors import AllocationError, Finding, ProgramError, TpuflowError, UnsupportedModelError

ENDS = ("\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029")


@pytest.mark.parametrize("end", ENDS)
def test_ends_of_lines_in_what_is_quoted_are_escaped(end: str) -> None:
    assert len(str(AllocationError(f'size "6{end}1"')).splitlines()) == 1
    listed = UnsupportedModelError("model", [Finding(f"a{end}b", "Op", None, "no")], [f"c{end}d"])
    assert len(str(listed).splitlines()) == 3


def test_a_cell_of_two_lines_is_refused_in_one(tmp_path: Path) -> None:
    path = tmp_path / "case.csv"
    path.write_text('id,lower,upper,size\n0,0,4,"6\n1,2"\n', encoding="utf-8")
    with pytest.raises(AllocationError) as error:
        read_instance(path)
    assert str(error.value).splitlines() == [f'{path}, line 3: size "6\\n1,2" is not a whole number']


@pytest.mark.parametrize(
    "error",
    [
        TpuflowError(),
        ProgramError("a: 2 broken rules:", ["one", "two"]),
        UnsupportedModelError("model", [Finding("n", "Op", "axis", "no")], ["cut"]),
    ],
)
def test_errors_cross_processes_unchanged(error: TpuflowError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
