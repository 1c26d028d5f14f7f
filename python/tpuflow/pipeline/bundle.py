"""Several programs, or a program with test data, in one file (`.tpub`).

A bundle is a zip archive whose members are stored as they are, so that what goes in comes out byte for byte,
and which any zip tool can look into:

```text
bundle.json               {"format": 1, "programs": ["a", "b"], "tests": ["a"], "graphs": ["a"]}
programs/a.tpu            the very bytes of the program's file
graphs/a.tpuq             the graph it computes, where there is one
tests/a/inputs.npz        samples, one array per input
tests/a/outputs.npz       what the program must give for them, bit for bit
```

Programs of one network share their weights. Where that makes the file smaller, format 2 has all bytes of
programs and graphs once in `blocks`, and the manifest says by `"stretches"` which of them (start, length)
each file consists of.

Equal contents give equal bytes: members stand in the order of the manifest, with one fixed date. The
archive's own checksums guard every member, and programs carry theirs.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import FileError, ProgramError, TpuflowError
from tpuflow.execution.levels import program_level, run_samples
from tpuflow.io.arrays import UNREADABLE, parse_arrays
from tpuflow.io.files import parse_json, replace_atomically, temporary_folder
from tpuflow.io.memory import bytes_text, memory_limit
from tpuflow.io.samples import Samples
from tpuflow.partitioning.storage import AnyGraph, AnyProgram, load_graph, load_program
from tpuflow.pipeline.blocks import assemble, shared_blocks

__all__ = ["Bundle", "Difference", "TestData", "combine", "load_bundle", "record_test", "run_tests"]

Array = NDArray[Any]
Held = TypeVar("Held")
FORMAT = 1
WITH_BLOCKS = 2
BLOCKS = "blocks"
MANIFEST = "bundle.json"
DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class TestData:
    """Samples of a program and what it gives for them.

    Attributes:
        inputs: By the model's names, `[samples, ...]`.
        outputs: Likewise.
    """

    __test__ = False  # no test of pytest's

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    @property
    def sample_count(self) -> int:
        """Number of samples."""
        return len(next(iter(self.inputs.values())))


@dataclass(frozen=True)
class Bundle:
    """A bundle: programs, their graphs and test data.

    Attributes:
        programs: The bytes of program files by name.
        tests: Test data by the name of their program.
        graphs: The bytes of the files of graphs by the name of their program.
    """

    programs: Mapping[str, bytes]
    tests: Mapping[str, TestData] = field(default_factory=dict)
    graphs: Mapping[str, bytes] = field(default_factory=dict)

    def program(self, name: str) -> AnyProgram:
        """One of its programs, checked as any file is.

        Raises:
            FileError: There is none of that name, or it was altered.
        """
        return self._open_entry(name, self.programs, "program.tpu", load_program)

    def graph(self, name: str) -> AnyGraph:
        """The graph of one of its programs, checked likewise.

        Raises:
            FileError: There is none of that name, or it was altered.
        """
        return self._open_entry(name, self.graphs, "graph.tpuq", load_graph)

    def _open_entry(
        self, name: str, held: Mapping[str, bytes], file: str, opened: Callable[[Path], Held]
    ) -> Held:
        kind = file.partition(".")[0]
        if name not in held:
            raise FileError(f'the bundle has no {kind} "{name}", it has {", ".join(held) or "none"}')
        with temporary_folder() as folder:
            # What is mapped outlives the file's name; the program's own name is never a path.
            path = folder / file
            path.write_bytes(held[name])
            try:
                return opened(path)
            except FileError as error:
                reason = str(error).removeprefix(f"{path}: ")
                raise FileError(f'{kind} "{name}" of the bundle: {reason}') from None

    def save(self, path: str | Path) -> None:
        """Writes the bundle.

        Raises:
            FileError: The file cannot be written.
        """
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "programs": list(self.programs),
            "tests": list(self.tests),
        }
        if self.graphs:
            manifest["graphs"] = list(self.graphs)
        files = {f"programs/{name}.tpu": content for name, content in self.programs.items()}
        files |= {f"graphs/{name}.tpuq": content for name, content in self.graphs.items()}
        blocks, stretches = shared_blocks(files)
        text = json.dumps(stretches, separators=(",", ":"))
        sizes = [len(content) for content in files.values()]
        if len(blocks) + len(text) < sum(sizes) and max(sizes) <= len(blocks):
            manifest |= {"format": WITH_BLOCKS, "stretches": stretches}
            files = {BLOCKS: blocks}
        with replace_atomically(path) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as archive:
            _put(archive, MANIFEST, json.dumps(manifest, indent=None if BLOCKS in files else 1).encode())
            for name, content in files.items():
                _put(archive, name, content)
            for name, data in self.tests.items():
                _put(archive, f"tests/{name}/inputs.npz", _npz(data.inputs))
                _put(archive, f"tests/{name}/outputs.npz", _npz(data.outputs))


@dataclass(frozen=True)
class Difference:
    """An output that is not what it must be.

    Attributes:
        program: Name of the program.
        output: Name of the output.
        detail: Where the first difference is.
    """

    program: str
    output: str
    detail: str

    def __str__(self) -> str:
        return f'program "{self.program}", output "{self.output}": {self.detail}'


def combine(files: Mapping[str, Path]) -> Bundle:
    """Programs of several files under the names given; a bundle gives all it holds, its name in front.

    Raises:
        FileError: A file cannot be read, or was altered.
    """
    programs: dict[str, bytes] = {}
    tests: dict[str, TestData] = {}
    graphs: dict[str, bytes] = {}
    for name, path in files.items():
        if path.suffix == ".tpub":
            held = load_bundle(path)
            programs |= {f"{name}.{own}": content for own, content in held.programs.items()}
            tests |= {f"{name}.{own}": data for own, data in held.tests.items()}
            graphs |= {f"{name}.{own}": content for own, content in held.graphs.items()}
            continue
        load_program(path)  # nothing broken goes in
        programs[name] = path.read_bytes()
    for name in programs:
        _require_name(name)
    return Bundle(programs, tests, graphs)


def record_test(path: Path, samples: Samples, progress: Callable[[int, int], None] | None = None) -> Bundle:
    """A program with samples and what it gives for them.

    Raises:
        FileError: The program cannot be read.
    """
    level = program_level(load_program(path))
    samples = replace(samples, one_feed=False)  # what is recorded always leads with the samples
    outputs = run_samples(level, samples, progress=progress)
    rows = list(samples.rows())
    inputs = {port.name: np.stack([row[port.name] for row in rows]) for port in samples.ports}
    return Bundle({path.stem: path.read_bytes()}, {path.stem: TestData(inputs, outputs)})


def load_bundle(path: Path) -> Bundle:
    """Reads a bundle.

    Raises:
        FileError: It cannot be read, was cut or altered, or is of another format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
            if total > path.stat().st_size:
                raise FileError(
                    f"{path}: its members have {bytes_text(total)}, more than the file: "
                    "a bundle is a zip archive without compression"
                )
            if total > memory_limit():
                raise FileError(
                    f"{path}: holds {bytes_text(total)}; the limit is {bytes_text(memory_limit())} "
                    "(TPUFLOW_MEMORY_LIMIT, in bytes)"
                )
            return _parse(path, archive)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except TpuflowError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"{path}: not a bundle, cut short or altered ({reason})") from None


def _parse(path: Path, archive: zipfile.ZipFile) -> Bundle:
    manifest = parse_json(archive.read(MANIFEST).decode(), f"{path}: {MANIFEST}", FileError)
    if manifest["format"] not in (FORMAT, WITH_BLOCKS):
        version = json.dumps(manifest["format"])[:20]
        raise FileError(f"{path}: format {version} of a bundle, this build reads {FORMAT} to {WITH_BLOCKS}")
    programs, tests = (_names(path, manifest[key]) for key in ("programs", "tests"))
    graphs = _names(path, manifest.get("graphs", []))
    for kind, names in (("test for", tests), ("graph of", graphs)):
        for name in names:
            if name not in programs:
                raise FileError(f'{path}: has a {kind} "{name}", but no such program')
    member = archive.read if manifest["format"] == FORMAT else _from_blocks(path, archive, manifest)
    return Bundle(
        {name: member(f"programs/{name}.tpu") for name in programs},
        {
            name: TestData(
                *(_read_test(path, archive, f"tests/{name}/{side}.npz") for side in ("inputs", "outputs"))
            )
            for name in tests
        },
        {name: member(f"graphs/{name}.tpuq") for name in graphs},
    )


def _from_blocks(path: Path, archive: zipfile.ZipFile, manifest: Mapping[str, Any]) -> Callable[[str], bytes]:
    """Returns a function that reads a file made of stretches of the blocks."""
    blocks, stretches = archive.read(BLOCKS), manifest["stretches"]
    sizes = [sum(length for _, length in ranges) for ranges in stretches.values()]
    if max(sizes, default=0) > len(blocks):
        raise FileError(f"{path}: a file of {bytes_text(max(sizes))} is more than the blocks it consists of")
    if (total := sum(sizes)) > memory_limit():
        raise FileError(
            f"{path}: holds {bytes_text(total)}; the limit is {bytes_text(memory_limit())} "
            "(TPUFLOW_MEMORY_LIMIT, in bytes)"
        )
    return lambda name: assemble(blocks, stretches[name])


def _names(path: Path, found: Any) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise FileError(f"{path}: {MANIFEST} does not list programs and tests by name")
    for name in found:
        _require_name(name, f"{path}: ")
    if len(set(found)) != len(found):
        raise FileError(f"{path}: {MANIFEST} lists a name twice")
    return found


def _read_test(path: Path, archive: zipfile.ZipFile, member: str) -> dict[str, Array]:
    arrays = parse_arrays(archive.read(member), f"{path}: {member}")
    if not arrays or any(array.ndim == 0 for array in arrays.values()):
        raise FileError(f"{path}: {member} holds no samples")
    return arrays


def _require_name(name: str, where: str = "") -> None:
    if not name or "/" in name or name.startswith(".") or not name.isprintable():
        raise FileError(f'{where}"{name}" cannot be the name of a program in a bundle')


def run_tests(bundle: Bundle, progress: Callable[[int, int], None] | None = None) -> list[Difference]:
    """Runs every program that has test data and compares bit for bit.

    Returns:
        What differs; nothing if all is well.

    Raises:
        ProgramError: The bundle has no test data.
        TpuflowError: A program cannot be run on its inputs.
    """
    if not bundle.tests:
        raise ProgramError("the bundle has no test data: record some with `tpuflow bundle record`")
    found = []
    for name, data in bundle.tests.items():
        level = program_level(bundle.program(name))
        samples = replace(Samples.of(data.inputs, level.ports, f"inputs of {name}"), one_feed=False)
        outputs = run_samples(level, samples, progress=progress)
        for output, wanted in data.outputs.items():
            detail = _difference(wanted, outputs.get(output))
            if detail:
                found.append(Difference(name, output, detail))
    return found


def _difference(wanted: Array, given: Array | None) -> str:
    if given is None:
        return "is missing"
    if given.shape != wanted.shape or given.dtype != wanted.dtype:
        return f"{given.dtype} {list(given.shape)}, recorded {wanted.dtype} {list(wanted.shape)}"
    if given.tobytes() == wanted.tobytes():
        return ""
    size = max(1, wanted.dtype.itemsize)
    bytes_of = (np.frombuffer(array.tobytes(), np.uint8).reshape(-1, size) for array in (given, wanted))
    wrong = np.flatnonzero((next(bytes_of) != next(bytes_of)).any(axis=1))
    first = tuple(int(index) for index in np.unravel_index(int(wrong[0]), wanted.shape))
    return (
        f"{len(wrong)} of {wanted.size} elements, first at {list(first)}: {given[first]}, not {wanted[first]}"
    )


def _put(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, DATE), content)


def _npz(arrays: Mapping[str, Array]) -> bytes:
    """An `.npz` with one fixed date, so that equal arrays give equal bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            plain = array.astype(str) if array.dtype == object else array
            member = io.BytesIO()
            np.save(member, plain, allow_pickle=False)
            _put(archive, f"{name}.npy", member.getvalue())
    return stream.getvalue()


def names_of(files: Sequence[Path]) -> dict[str, Path]:
    """Files by their stems, made unique by a number behind."""
    found: dict[str, Path] = {}
    for path in files:
        name, number = path.stem, 1
        while name in found:
            number += 1
            name = f"{path.stem}.{number}"
        found[name] = path
    return found
