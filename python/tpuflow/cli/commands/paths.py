"""Files that commands read and write, checked before any work is done.

Each function is the callback of an option or argument: it returns the path, or refuses it with one line. One
wording holds for all commands, whatever reads the file later.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tpuflow.cli.commands import console
from tpuflow.errors import FileError, ProgramError

__all__ = [
    "bundle_input", "each_folder", "each_readable", "existing_folder", "figures_target", "file_or_folder",
    "folder", "graph_input", "model_input", "new_folder", "output", "program_input", "program_or_graph",
    "readable", "run_input", "sample_input",
]  # fmt: skip

MISSING = "no such file or directory"
MODELS = (".onnx", ".pb", ".tflite", ".pt")


def readable(path: Path | None) -> Path | None:
    """Checks that a file can be read.

    Raises:
        FileError: There is none, or it is a directory.
    """
    if path is None:
        return None
    _exists(path)
    if path.is_dir():
        raise FileError(f"{path}: is a directory: name a file")
    if not os.access(path, os.R_OK):
        raise FileError(f"{path}: cannot be read: permission denied")
    return path


def each_readable(paths: list[Path] | None) -> list[Path] | None:
    """Checks that all files can be read; see `readable`."""
    for path in paths or ():
        readable(path)
    return paths


def each_folder(paths: list[Path] | None) -> list[Path] | None:
    """Checks that all are folders; see `existing_folder`."""
    for path in paths or ():
        existing_folder(path)
    return paths


def existing_folder(path: Path) -> Path:
    """Checks that a folder is there.

    Raises:
        FileError: It is not, or is a file.
    """
    _exists(path)
    if not path.is_dir():
        raise FileError(f"{path}: not a directory")
    return path


def file_or_folder(path: Path | None) -> Path | None:
    """Checks that a file or folder is there.

    Raises:
        FileError: It is not.
    """
    if path is not None:
        _exists(path)
    return path


def model_input(path: Path | None) -> Path | None:
    """Checks that a model is there: a file, or the directory of a SavedModel.

    Raises:
        FileError: It is not.
    """
    if path is None:
        return None
    _exists(path)
    if path.is_dir() and not (path / "saved_model.pb").exists():
        raise FileError(f"{path}: is a directory without a saved_model.pb: name a model file")
    return path


def program_input(path: Path) -> Path:
    """Checks that a program is there, and is not what a program is built from.

    Raises:
        FileError: There is no such file.
        ProgramError: It is a model or graph.
    """
    if path.suffix in (*MODELS, ".tpuq"):
        what = "a quantised graph" if path.suffix == ".tpuq" else "a model"
        _exists(path)
        built = path.with_suffix(".tpu")
        raise ProgramError(
            f"{path}: is {what}, not a program: build it first: tpuflow build {path} -O5 -o {built}"
        )
    readable(path)
    return path


def bundle_input(path: Path) -> Path:
    """Checks that a bundle is there, and is not a single program, graph or model.

    Raises:
        FileError: There is no such file, or it is of another kind.
    """
    if path.suffix in (*MODELS, ".tpuq", ".tpu"):
        _exists(path)
        what = {".tpuq": "a quantised graph", ".tpu": "a program"}.get(path.suffix, "a model")
        raise FileError(
            f"{path}: is {what}, not a bundle: build one of a decoder: tpuflow build MODEL.onnx --context N"
        )
    readable(path)
    return path


def run_input(path: Path | None) -> Path | None:
    """Checks that a program or the figures of a run are there.

    Raises:
        FileError: There is no such file.
        ProgramError: It is a model or graph.
    """
    return path if path is None else program_input(path)


def program_or_graph(path: Path) -> Path:
    """Checks that a program, or a graph, is there.

    Raises:
        FileError: There is no such file.
        ProgramError: It is a model.
    """
    return path if path.suffix == ".tpuq" and readable(path) else program_input(path)


def graph_input(path: Path | None) -> Path | None:
    """Checks that a graph is there, and is neither the model it is made from nor the program made from it.

    Raises:
        FileError: There is no such file, or it is of another kind.
    """
    if path is not None and path.suffix in (*MODELS, ".tpu"):
        _exists(path)
        what = "a program" if path.suffix == ".tpu" else "a model"
        raise FileError(f"{path}: is {what}, not a quantised graph (.tpuq), which `tpuflow build` writes too")
    return readable(path)


def sample_input(path: Path | None) -> Path | None:
    """Checks that samples are there: a file, a directory of them, or the name of a dataset plugin.

    Raises:
        FileError: They are not.
    """
    if path is not None and "(" not in str(path):
        _exists(path)
    return path


def output(path: Path | None) -> Path | None:
    """Checks that a file can be written.

    Raises:
        FileError: Its folder is missing or read-only, or it is a directory.
    """
    if path is None:
        return None
    if path.is_dir():
        raise FileError(f"{path}: is a directory: name a file in it")
    place = path.absolute().parent
    if not place.is_dir():
        raise FileError(f"{path}: the directory {place} does not exist")
    if not path.exists() and not os.access(place, os.W_OK | os.X_OK):
        raise FileError(f"{path}: cannot be written: permission denied")
    return path


def figures_target(path: Path | None) -> Path | None:
    """Checks where figures go; with `-` all other results go to standard error.

    Raises:
        FileError: The file cannot be written.
    """
    if path is not None and str(path) == "-":
        console.settings.figures = True
        return path
    return output(path)


def folder(path: Path | None) -> Path | None:
    """Checks that a folder is there or can be made.

    Raises:
        FileError: A file has its name, or what it would be made in is read-only or a file.
    """
    if path is None:
        return None
    nearest = path.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise FileError(f"{path}: cannot be made: {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise FileError(f"{path}: cannot be written: permission denied")
    return path


def new_folder(path: Path | None) -> Path | None:
    """Checks that a new folder can be made, or that an empty one is there.

    Raises:
        FileError: It cannot, or holds something.
    """
    if path is not None:
        from tpuflow.io.files import require_unused

        folder(path)
        require_unused(path)
    return path


def _exists(path: Path) -> None:
    """Checks that there is something that ends: no device but the null device and terminals."""
    try:
        there = path.exists()
        mode = path.stat().st_mode if there else 0
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from None
    if not there:
        raise FileError(f"{path}: {MISSING}")
    if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not _ends(path):
        raise FileError(f"{path}: is a device: name a file")


def _ends(device: Path) -> bool:
    """Whether a device is the null device or a terminal."""
    if device.resolve() == Path(os.devnull):
        return True
    try:
        with device.open("rb", buffering=0) as stream:
            return stream.isatty()
    except OSError:
        return False
