"""`tpuflow alloc`: instances from files, what it writes, and what wrong files get."""

from __future__ import annotations

import csv
import json
from itertools import combinations
from pathlib import Path

import pytest

from cli.conftest import Command
from cli.test_bad_input import refused

# Five buffers around each other: every unit of 6 is taken at every moment.
PINWHEEL = "id,lower,upper,size\nlow,0,4,2\nright,4,6,4\nhigh,2,6,2\nleft,0,2,4\nmiddle,2,4,2\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "instance.csv"
    path.write_text(text, encoding="utf-8")
    return path


def check_placed(path: Path, capacity: int) -> None:
    """No two buffers share a moment and an address, by comparing all pairs; all end within the capacity."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    placed = [tuple(int(row[name]) for name in ("lower", "upper", "offset", "size")) for row in rows]
    assert all(offset >= 0 and offset + size <= capacity for _, _, offset, size in placed)
    assert all(int(row["offset"]) % int(row.get("alignment", 1)) == 0 for row in rows)
    for (l1, u1, o1, s1), (l2, u2, o2, s2) in combinations(placed, 2):
        assert u1 <= l2 or u2 <= l1 or o1 + s1 <= o2 or o2 + s2 <= o1


@pytest.mark.feature("SCH-25")
def test_alloc_places_an_instance(command: Command, tmp_path: Path) -> None:
    path, placed, figures = write(tmp_path, PINWHEEL), tmp_path / "placed.csv", tmp_path / "figures.json"
    result = command("alloc", path, "--capacity", 6, "-o", placed, "--json", figures)
    assert (result.status, result.err) == (0, "")
    assert "height 6, lower bound 6, gap 0.000%, optimal" in result.out
    check_placed(placed, 6)
    content = json.loads(figures.read_text(encoding="utf-8"))
    assert (content["height"], content["bound"], content["gap"], content["optimal"]) == (6, 6, 0, True)
    assert (content["buffers"], content["capacity"]) == (5, 6)
    assert set(content["offsets"]) == {"low", "right", "high", "left", "middle"}
    # What was written is an instance again.
    assert command("alloc", placed).out.splitlines()[1] == result.out.splitlines()[1]


def test_alloc_keeps_alignments_and_skips_hints(command: Command, tmp_path: Path) -> None:
    text = "size,id,upper,lower,alignment,hint\n3,a,9,-5,,7\n2,b,9,0,4,\n\n1,c,2,1,1,-1\n0,d,2,1,8,\n"
    path, placed = write(tmp_path, text), tmp_path / "placed.csv"
    result = command("alloc", path, "-o", placed)
    assert result.status == 0, result.err
    assert "height 6, lower bound 6, gap 0.000%" in result.out
    check_placed(placed, 6)


def test_alloc_gives_the_same_answer_for_the_same_seed(command: Command, tmp_path: Path) -> None:
    rows = [f"{i},{i * 7 % 50},{i * 7 % 50 + 1 + i * 13 % 23},{1 + i * 31 % 97}" for i in range(60)]
    path = write(tmp_path, "id,lower,upper,size\n" + "\n".join(rows) + "\n")
    outputs = []
    for name in ("one.csv", "two.csv"):
        result = command("alloc", path, "--steps", 3000, "--seed", 5, "-o", tmp_path / name)
        assert result.status == 0, result.err
        outputs.append((tmp_path / name).read_bytes())
    assert outputs[0] == outputs[1]


def test_alloc_says_when_nothing_fits(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path, PINWHEEL)
    message = refused(
        command, tmp_path, "alloc", path, "--capacity", 5, "-o", tmp_path / "placed.csv", status=3
    )
    assert message.endswith("does not fit in 5: every allocation takes at least 6")
    # No moment holds more than 4, yet aligned addresses need 5: proven by the search.
    ring = "id,lower,upper,size,alignment\na,0,2,1,1\nb,1,3,2,2\nc,2,4,1,2\nd,0,4,1,2\n"
    message = refused(command, tmp_path, "alloc", write(tmp_path, ring), "--capacity", 4, status=3)
    assert "does not fit in 4: every allocation takes at least 5" in message


def test_alloc_without_search_may_find_nothing(command: Command, shared: Path, tmp_path: Path) -> None:
    path = shared / "bench" / "minimalloc" / "A.1048576.csv"
    message = refused(command, tmp_path, "alloc", path, "--capacity", 1048576, "--steps", 0, status=4)
    assert "no allocation within 1048576 found in 0 steps" in message
    message = refused(command, tmp_path, "alloc", path, "--capacity", 1048576, "--time-limit", 0, status=4)
    assert "allow more steps or time" in message


@pytest.mark.parametrize("name", ["A", "C", "D", "G"])
@pytest.mark.feature("SCH-25")
def test_alloc_solves_public_instances(command: Command, shared: Path, tmp_path: Path, name: str) -> None:
    placed = tmp_path / "placed.csv"
    path = shared / "bench" / "minimalloc" / f"{name}.1048576.csv"
    result = command("alloc", path, "--capacity", 1048576, "-o", placed)
    assert result.status == 0, result.err
    check_placed(placed, 1048576)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: no column id, lower, upper, size"),
        ("id,lower,upper\n", "line 1: no column size"),
        ("id,lower,upper,size,colour\n", 'line 1: column "colour" is unknown'),
        ("id,lower,upper,size,size\n", "line 1: column size is there twice"),
        ("id,lower,upper,size\n", "no buffers"),
        ("id,lower,upper,size\na,0,1,1\nb,5,5,1\n", "line 3: upper 5 must be greater than lower 5"),
        ("id,lower,upper,size\na,0,1,1\nb,5,x,1\n", 'line 3: upper "x" is not a whole number'),
        ("id,lower,upper,size\na,0,1,-1\n", "line 2: size -1 is negative"),
        ("id,lower,upper,size\na,0,1\n", "line 2: 3 cells, 4 columns"),
        ("id,lower,upper,size\na,0,1,1\n\na,1,2,1\n", 'line 4: buffer "a" was on line 2 already'),
        ("id,lower,upper,size,alignment\na,0,1,1,0\n", "line 2: alignment 0 must be at least 1"),
        (
            f"id,lower,upper,size\na,0,1,{2**63}\n",
            f"line 2: all sizes and alignments together exceed {2**60}",
        ),
    ],
)
def test_alloc_names_the_line_that_is_wrong(command: Command, tmp_path: Path, text: str, reason: str) -> None:
    path = write(tmp_path, text)
    assert refused(command, tmp_path, "alloc", path, "--capacity", 9).startswith(f"{path}")
    assert reason in refused(command, tmp_path, "alloc", path, "--capacity", 9)


def test_alloc_refuses_what_is_no_text(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "instance.csv"
    path.write_bytes(b"\xff\xfe\x00id")
    assert "not a text file" in refused(command, tmp_path, "alloc", path)
    assert "no such file" in refused(command, tmp_path, "alloc", tmp_path / "absent.csv")
