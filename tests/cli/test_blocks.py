"""Files of one bundle share their equal stretches; what goes in comes out byte for byte."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tpuflow.errors import FileError
from tpuflow.pipeline.blocks import assemble, shared_blocks
from tpuflow.pipeline.bundle import Bundle, load_bundle


def _file(header: int, *parts: bytes) -> bytes:
    """A header of so many bytes behind its length, then parts."""
    return header.to_bytes(8, "little") + b"h" * header + b"".join(parts)


def _weights(seed: int, size: int = 1 << 20) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def test_files_come_back_and_equal_stretches_are_stored_once() -> None:
    a, b, c = (_weights(seed) for seed in range(3))
    files = {
        "one": _file(100, a, b, c),
        "other header": _file(2311, a, b, c),
        "moved": _file(8, c, b"\1" * 800, a),
        "cut": _file(8, a[: 1 << 19], b[1 << 18 :]),
        "zeros": _file(0, bytes(1 << 20), a),
        "odd": _file(5, a, b"123"),
    }
    blocks, ranges = shared_blocks(files)
    assert {name: assemble(blocks, own) for name, own in ranges.items()} == files
    # Three weights, a megabyte of zeros, headers, and what is cut in two.
    assert len(blocks) < (4 << 20) + (1 << 18)
    assert len(ranges["one"]) == 1


@pytest.mark.parametrize(
    "content", [b"", b"1234567", b"\xff" * 9, bytes(64), b"\xff" * 8 + _weights(1, 1 << 16)]
)
def test_files_of_any_kind_come_back(content: bytes) -> None:
    blocks, ranges = shared_blocks({"a": content, "b": content + b"x"})
    assert (assemble(blocks, ranges["a"]), assemble(blocks, ranges["b"])) == (content, content + b"x")


def test_a_bundle_of_equal_programs_is_hardly_larger_than_one(tmp_path: Path) -> None:
    weights = _weights(4)
    programs = {f"p{number}": _file(50 * number, weights) for number in range(5)}
    Bundle(programs, {}, {"p0": _file(7, weights)}).save(tmp_path / "b.tpub")
    assert (tmp_path / "b.tpub").stat().st_size < (1 << 20) + (1 << 18)
    held = load_bundle(tmp_path / "b.tpub")
    assert held.programs == programs
    assert held.graphs == {"p0": _file(7, weights)}
    # A single program is stored as it always was.
    Bundle({"p": programs["p0"]}).save(tmp_path / "one.tpub")
    with zipfile.ZipFile(tmp_path / "one.tpub") as archive:
        assert archive.namelist() == ["bundle.json", "programs/p.tpu"]
        assert json.loads(archive.read("bundle.json"))["format"] == 1


@pytest.mark.parametrize(
    "stretches",
    [{}, {"programs/a.tpu": [[9, 2]]}, {"programs/a.tpu": [[-1, 2]]}, {"programs/a.tpu": [["x", 1]]}],
)
def test_stretches_outside_of_the_blocks_are_refused(tmp_path: Path, stretches: object) -> None:
    manifest = {"format": 2, "programs": ["a"], "tests": [], "stretches": stretches}
    with zipfile.ZipFile(tmp_path / "b.tpub", "w") as archive:
        archive.writestr("bundle.json", json.dumps(manifest))
        archive.writestr("blocks", b"0123456789")
    with pytest.raises(FileError, match=r"b\.tpub: not a bundle, cut short or altered"):
        load_bundle(tmp_path / "b.tpub")


def test_stretches_that_repeat_blocks_are_refused(tmp_path: Path) -> None:
    manifest = {
        "format": 2,
        "programs": ["a"],
        "tests": [],
        "stretches": {"programs/a.tpu": [[0, 10], [0, 1]]},
    }
    with zipfile.ZipFile(tmp_path / "b.tpub", "w") as archive:
        archive.writestr("bundle.json", json.dumps(manifest))
        archive.writestr("blocks", b"0123456789")
    with pytest.raises(FileError, match="a file of 11 B is more than the blocks it consists of"):
        load_bundle(tmp_path / "b.tpub")
