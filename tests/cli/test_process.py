"""The command line as a process: its streams, its signals, what it executes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Built, Command
from conftest import slow_except
from tpuflow.cli.commands.console import printable

TPUFLOW = [sys.executable, "-P", "-m", "tpuflow"]


def shell(words: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of the shell in which `"$@"` is `tpuflow` with arguments."""
    words_of = ["bash", "-c", words, "bash", *TPUFLOW, *map(str, arguments)]
    return subprocess.run(words_of, capture_output=True, text=True, env=os.environ | environment, check=False)


@pytest.mark.parametrize(
    "streams", slow_except(["<&- >&- 2>&-"], [">&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
)
def test_streams_that_are_closed_are_no_files_of_ours(built: Built, tmp_path: Path, streams: str) -> None:
    page = tmp_path / "page.html"
    done = shell(f'"$@" {streams}', "report", built.program, "-o", page)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""
    assert page.read_text().startswith("<!")


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_an_error(built: Built, unbuffered: str) -> None:
    done = shell('"$@" > /dev/full', "inspect", built.program, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1 and "no space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert shell('set -o pipefail; "$@" | true', "machine", "show", "128x128_asic").stderr == ""


def test_an_encoding_that_lacks_characters_shows_escapes(tmp_path: Path) -> None:
    arrays = tmp_path / "x.npz"
    np.savez(arrays, allow_pickle=False, **{"größe\x1b[2J": np.zeros(1)})
    done = shell('"$@"', "npz", "shape", arrays, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfe\\x1b[2J" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.slow
def test_an_interrupt_while_importing_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == os.environ['INTERRUPT']: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    for module in ("typer", "tpuflow.cli.commands.listings", "numpy", "onnx_ir", "tpuflow.config"):
        done = shell('"$@"', "fields", PYTHONPATH=str(tmp_path), INTERRUPT=module)
        assert "Traceback" not in done.stderr, module
        assert done.returncode in (0, 128 + signal.SIGINT), module
        assert done.returncode or module in ("numpy", "onnx_ir"), f"{module} was not imported"


def test_nothing_in_the_current_folder_is_imported(
    built: Built, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "typer", "onnx", "tpuflow", "sitecustomize", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(77)")
    monkeypatch.chdir(tmp_path)
    program = Path(sys.executable).with_name("tpuflow")
    done = subprocess.run([program, "inspect", built.program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    zoo = tmp_path / "networks"
    zoo.mkdir()
    (zoo / "tiny.onnx").write_bytes(built.model.read_bytes())
    (zoo / "materialize.py").write_text("raise SystemExit(77)")
    result = command("zoo", zoo, "--work", tmp_path / "work")
    assert result.status == 1
    assert "materialize.py: completes the networks of this folder" in result.err


@pytest.mark.parametrize(
    "words",
    [("--seed", "9" * 23), ("--json", "."), ("--json", "a\0b"), ("--batch", "9" * 30), ("-o", "/dev/full")],
)
def test_values_that_make_no_sense_are_an_error(
    built: Built, command: Command, tmp_path: Path, words: tuple[str, str]
) -> None:
    given = ("build", built.model, "--calib", built.calibration, "-o", tmp_path / "x.tpu", *words)
    result = command(*given)
    assert result.status in (1, 2)
    assert "internal error" not in result.err and "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []


def test_names_do_not_command_the_terminal(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, allow_pickle=False, **{"a\x1b]0;owned\x07\u202eb": np.zeros(1)})
    for result in (command("npz", "shape", path), command("npz", "dump", path)):
        assert "\x1b" not in result.out and "\u202e" not in result.out
    result = command("npz", "extract", path, "nothing", "-o", tmp_path / "y.npz")
    assert "\x1b" not in result.err
    assert printable("tab\tline\n\x1b\x9b\u2028") == "tab\tline\n\\x1b\\x9b\\u2028"


def test_files_of_two_builds_are_no_pair(built: Built, command: Command, tmp_path: Path) -> None:
    model, other = tmp_path / "m.tpu", tmp_path / "n.tpu"
    words = ("build", built.model, "--calib", built.calibration, "--no-verify")
    assert command(*words, "-o", model).status == 0
    listing = model.with_suffix(".sha256")
    named = [line.split()[1] for line in listing.read_text().splitlines()]
    assert named == ["m.tpu", "m.tpuq", "m.layers.json"]
    subprocess.run(["sha256sum", "-c", listing.name], cwd=tmp_path, capture_output=True, check=True)
    assert command(*words, "--dtype", "int16", "-o", other).status == 0
    assert command("check", model).status == 0
    graph = model.with_suffix(".tpuq")
    graph.write_bytes(other.with_suffix(".tpuq").read_bytes())
    for given in (("check", model), ("compare", built.model, model), ("compare", model), ("report", model)):
        result = command(*given)
        assert result.status == 1, given
        assert "m.tpuq: is not of the same run as m.tpu" in result.err
        assert "build m.tpu again" in result.err
    assert command(*words, "-o", model).status == 0
    assert command("check", model).status == 0
