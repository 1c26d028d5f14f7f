"""The library in C, built once per session, and C programs compiled against it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conftest import REPOSITORY
from tpuflow.runtime import TensorDescription

HEADER = REPOSITORY / "crates" / "capi" / "include"
EXAMPLE = REPOSITORY / "examples" / "c" / "run_program.c"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O1")
SYSTEM = ("-lpthread", "-ldl", "-lm")


def compiler() -> str:
    """The C compiler; the test is not run where there is none."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("no C compiler")
    return found


@cache
def folder() -> Path:
    """Where the library lies: `TPUFLOW_LIBRARY`, else where `./start library` builds that of the sources."""
    named = os.environ.get("TPUFLOW_LIBRARY")
    if named:
        return Path(named)
    command = [str(REPOSITORY / "start"), "library"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release"


def compiled(source: Path, target: Path, *, static: bool = False) -> Path:
    """A C program, linked with the shared or the static library."""
    compiler_path, library = compiler(), folder()
    link = (
        [str(library / "libtpuflow.a"), *SYSTEM]
        if static
        else [f"-L{library}", "-ltpuflow", f"-Wl,-rpath,{library}"]
    )
    command = [compiler_path, *STRICT, f"-I{HEADER}", str(source), "-o", str(target), *link]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def library() -> ctypes.CDLL:
    """The shared library, for calls one by one."""
    compiler()
    found = ctypes.CDLL(str(folder() / "libtpuflow.so"))
    found.tpuflow_last_error.restype = found.tpuflow_version.restype = ctypes.c_char_p
    found.tpuflow_program_codec.restype = ctypes.c_void_p
    found.tpuflow_codec_inputs.restype = ctypes.c_size_t
    return found


def run(
    program: Path,
    words: Sequence[str | Path],
    feed: Mapping[str, NDArray[Any]],
    ports: tuple[Sequence[TensorDescription], Sequence[TensorDescription]],
    work: Path,
) -> dict[str, NDArray[Any]]:
    """What the example gives for a feed: files in, files out."""
    inputs, outputs = ports
    files: list[Path] = []
    for number, port in enumerate(inputs):
        files.append(work / f"in{number}.bin")
        feed[port.name].tofile(files[-1])
    results = [work / f"out{number}.bin" for number in range(len(outputs))]
    done = subprocess.run(
        [str(word) for word in (program, *words, *files, *results)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        port.name: np.frombuffer(path.read_bytes(), port.dtype).reshape(port.shape)
        for port, path in zip(outputs, results, strict=True)
    }
