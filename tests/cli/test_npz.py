"""The `npz` commands: one golden result each, and wrong requests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from cli.conftest import Command
from models.builder import Builder

X = np.arange(6, dtype=np.float32).reshape(2, 3)
CODES = np.array([-128, 0, 7, 127], np.int8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.savez(tmp_path / "in.npz", x=X, codes=CODES, bits=np.array([0x3F80, 0xC000], np.uint16))
    return tmp_path / "in.npz"


def changed(command: Command, folder: Path, *words: str | Path) -> dict[str, NDArray[Any]]:
    done = command("npz", *words, "-o", folder / "out.npz")
    assert done.status == 0, done.err
    with np.load(folder / "out.npz") as arrays:
        return dict(arrays)


@pytest.mark.feature("CMP-09")
def test_sub_commands_change_files(command: Command, file: Path, tmp_path: Path) -> None:
    def run(*words: str | Path) -> dict[str, NDArray[Any]]:
        return changed(command, tmp_path, *words)

    assert list(run("extract", file, "codes,x")) == ["codes", "x"]
    assert list(run("remove", file, "x")) == ["codes", "bits"]
    assert list(run("rename", file, "x=y", "bits=/a")) == ["y", "codes", "/a"]
    assert run("transpose", file, "x", "1,0")["x"].tolist() == X.T.tolist()
    assert run("reshape", file, "x", "3,-1")["x"].tolist() == X.reshape(3, 2).tolist()
    real = run("dequantize", file, "codes", "0.5", "--zero-point", "7")["codes"]
    assert real.dtype == np.float32 and real.tolist() == [-67.5, -3.5, 0.0, 60.0]
    assert run("bf16", file, "bits")["bits"].tolist() == [1.0, -2.0]
    np.save(tmp_path / "one.npy", np.ones(2, np.int32))
    assert run("insert", file, "new", tmp_path / "one.npy")["new"].tolist() == [1, 1]
    np.savez(tmp_path / "more.npz", z=X, x=X)
    assert list(run("merge", file, tmp_path / "more.npz")) == ["x", "codes", "bits", "z"]
    np.savez(tmp_path / "moved.npz", x=X + 0.5, codes=CODES)
    assert run("diff", file, tmp_path / "moved.npz")["x"].tolist() == np.full((2, 3), 0.5).tolist()


@pytest.mark.feature("CMP-09")
def test_bytes_shapes_and_contents(command: Command, file: Path, tmp_path: Path) -> None:
    assert command("npz", "to-bin", file, "x", "-o", tmp_path / "x.bin").status == 0
    assert (tmp_path / "x.bin").read_bytes() == X.astype("<f4").tobytes()
    shown = command("npz", "shape", file).out
    assert "[2, 3]" in shown and "int8" in shown
    dumped = command("npz", "dump", file, "x", "-k", "4").out
    assert "x [2, 3] float32" in dumped and "from 0.0 to 5.0, mean 2.5" in dumped
    assert dumped.splitlines()[-1] == "0.0 1.0 2.0 3.0 ..."


@pytest.mark.feature("CMP-13")
def test_every_tensor_in_a_file_of_its_own(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", allow_pickle=False, **{"/a/b": X, "/a:b": X + 1, "_a_b": X + 2})
    assert command("npz", "unpack", tmp_path / "in.npz", "-o", tmp_path / "all").status == 0
    files = sorted((tmp_path / "all").glob("*.npy"))
    assert len(files) == 3
    assert sorted(float(np.load(path)[0, 0]) for path in files) == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("extract", "{}", "nothing", "-o", "o.npz"), 'array "nothing" is missing, there is "x"'),
        (("rename", "{}", "x", "-o", "o.npz"), "write OLD=NEW"),
        (("rename", "{}", "x=codes", "-o", "o.npz"), 'two arrays would be called "codes"'),
        (("transpose", "{}", "x", "0,0", "-o", "o.npz"), "is not an order of 2 axes"),
        (("transpose", "{}", "x", "a", "-o", "o.npz"), "write whole numbers"),
        (("reshape", "{}", "x", "4", "-o", "o.npz"), r"cannot be read as \[4\]"),
        (("dequantize", "{}", "x", "1", "-o", "o.npz"), "not integers"),
        (("bf16", "{}", "x", "-o", "o.npz"), "not the bits"),
        (("shape", "none.npz"), "none.npz: no such file"),
        (("compare", "{}", "{}", "--stage", "x"), '--stage "x" is unknown'),
        (("compare", "{}", "{}", "--tolerance", "2"), "write two or three numbers"),
        (("compare", "{}", "{}", "--picture", "a.dot"), "give it with --network"),
    ],
)
def test_wrong_requests_are_named(
    command: Command,
    file: Path,
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    group = () if words[0] == "compare" else ("npz",)
    done = command(*group, *(word.replace("{}", str(file)) for word in words))
    assert done.status == 1
    assert re.search(message, done.err), done.err
    assert not (tmp_path / "o.npz").exists()


@pytest.mark.feature("CMP-08")
def test_exit_status_and_files(command: Command, file: Path, tmp_path: Path) -> None:
    same = command("compare", file, file)
    assert same.status == 0 and "3 EQUAL" in same.out
    b = Builder("net")
    b.output(b.node("Relu", b.input("x", [2, 3])))
    onnx.save(b.model(), tmp_path / "net.onnx")
    output = b.model().graph.output[0].name
    np.savez(tmp_path / "a.npz", allow_pickle=False, **{output: X, "y": X})
    np.savez(tmp_path / "b.npz", allow_pickle=False, **{output: X * 3, "y": X})
    done = command(
        "compare", tmp_path / "a.npz", tmp_path / "b.npz", "--network", tmp_path / "net.onnx",
        "--csv", tmp_path / "t.csv", "--json", tmp_path / "t.json", "--picture", tmp_path / "t.dot",
        "--axis", "1",
    )  # fmt: skip
    assert done.status == 3
    assert f'1 of 2 tensors fail, first "{output}" (Relu): NOT_SIMILAR, probably range' in done.err
    assert "reference 0 to 5, other 0 to 15" in done.out
    assert json.loads((tmp_path / "t.json").read_text())["culprits"] == [output]
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 3
    assert "#e5484d" in (tmp_path / "t.dot").read_text()
    assert command("compare", tmp_path / "a.npz", tmp_path / "b.npz", "--ignore-tensors", output).status == 0
    apart = command("compare", file, tmp_path / "b.npz")
    assert apart.status == 1 and "no tensor in common" in apart.err
