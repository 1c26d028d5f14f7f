"""Files made to harm: names that are paths, headers that lie, archives that unpack to more than there is."""

from __future__ import annotations

import hashlib
import io
import json
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tpuflow.compiler.program import machine_toml
from tpuflow.config import load_config
from tpuflow.config.section import ConfigError
from tpuflow.errors import FileError, SampleError, TpuflowError
from tpuflow.evaluation.tensor_files.tools import unpack
from tpuflow.io.arrays import array_headers, read_arrays
from tpuflow.io.files import file_stem
from tpuflow.io.files.reading import parse_toml
from tpuflow.io.memory import memory_limit
from tpuflow.partitioning.container import KEY, VERSION
from tpuflow.partitioning.storage import load_graph, load_program
from tpuflow.pipeline.bundle import load_bundle

PATHS = ["{victim}", "../victim", "a/../../victim", "", ".", "..", "/", "a\0b", "n" * 300]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def container(name: str, blob: bytes, suffix: str, **changes: object) -> bytes:
    """A file of one segment, with right checksums."""
    entry: dict[str, object] = {"name": name, "side": "device", "sha256": hashlib.sha256(blob).hexdigest()}
    entry |= {"inputs": [], "outputs": []} | changes
    manifest = {"name": "x", "holds": suffix, "inputs": [], "outputs": [], "segments": [entry]}
    text = json.dumps(manifest, separators=(",", ":"))
    content = {"version": VERSION, "sha256": hashlib.sha256(text.encode()).hexdigest(), "manifest": text}
    header = {
        "__metadata__": {KEY: json.dumps(content, separators=(",", ":"))},
        name: {"dtype": "U8", "shape": [len(blob)], "data_offsets": [0, len(blob)]},
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(8 + len(head)) % 64)
    return len(head).to_bytes(8, "little") + head + blob


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("suffix", [".tpu", ".tpuq"])
def test_names_of_segments_are_no_paths(tmp_path: Path, name: str, suffix: str) -> None:
    victim = tmp_path / f"victim{suffix}"
    victim.write_bytes(b"precious")
    (tmp_path / "in").mkdir()
    evil = tmp_path / "in" / f"evil{suffix}"
    evil.write_bytes(container(name.format(victim=victim.with_suffix("")), b"ATTACK", suffix))
    before = tree(tmp_path)
    with pytest.raises(FileError, match="evil") as caught:
        (load_program if suffix == ".tpu" else load_graph)(evil)
    assert ".part" not in str(caught.value)
    assert tree(tmp_path) == before


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", PATHS)
def test_names_in_bundles_are_no_paths(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim.tpu"
    victim.write_bytes(b"precious")
    name = name.format(victim=victim.with_suffix(""))
    arrays = io.BytesIO()
    np.savez(arrays, x=np.zeros(1))
    evil = tmp_path / "evil.tpub"
    with zipfile.ZipFile(evil, "w") as archive:
        manifest = {"format": 1, "programs": [name], "tests": [name]}
        archive.writestr("bundle.json", json.dumps(manifest))
        archive.writestr(f"programs/{name}.tpu", b"ATTACK")
        for side in ("inputs", "outputs"):
            archive.writestr(f"tests/{name}/{side}.npz", arrays.getvalue())
    before = tree(tmp_path)
    with pytest.raises(FileError):
        load_bundle(evil).program(name)
    assert tree(tmp_path) == before


def test_names_of_arrays_are_no_paths(tmp_path: Path) -> None:
    names = ["../../etc/x", "/abs", "a/b", "a:b", "..", "", "A", "a", "n" * 300, "\0", "\x1b[2J"]
    written = unpack({name: np.zeros(1) for name in names}, tmp_path / "out")
    assert len({path.name.casefold() for path in written}) == len(names)
    assert all(path.parent == tmp_path / "out" and path.is_file() for path in written)


def test_stems_are_short_and_unlike() -> None:
    taken: set[str] = set()
    stems = [file_stem(name, taken) for name in ("é" * 300, "é" * 301, "x", "X", "x.2")]
    assert len({stem.casefold() for stem in stems}) == 5
    assert all(len(stem.encode()) <= 210 for stem in stems)


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    size = len(header).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + size + header + data


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy("(1000000000000, 3)"), r"its header claims float32 \[1000000000000, 3\], 10.91 TiB"),
        (npy(f"({10**30}, 3)"), "its header claims"),
        (npy("(-1, 3)"), "its header claims"),
        (npy("(2,)", data=b"1234"), "not a complete NumPy file"),
        (npy("(2"), "header of the array is damaged"),
        (npy("("), "header of the array is damaged"),
        (npy("'x'"), "header of the array is damaged"),
        (npy("(" * 3000), "header of the array is damaged"),
        (npy("(2,)", "'|O'"), "holds Python objects"),
        (npy("(2,)", "'<q9'"), "header of the array is damaged"),
        (npy("(2,)", version=b"\x09\x00"), "version"),
        (b"", "it is empty"),
        (b"\x93NUM", "does not begin as"),
        (b"text", "does not begin as"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_headers_that_lie_name_file_and_array(
    tmp_path: Path, content: bytes, words: str, *, zipped: bool
) -> None:
    path = tmp_path / "x.npz"
    if zipped:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("weights.npy", content)
        words = 'member "weights"'
    else:
        path.write_bytes(content)
    for read in (read_arrays, array_headers):
        with pytest.raises(SampleError, match=words) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_archives_with_other_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    for members in (["readme.txt"], ["x.npy", "x"]):
        with zipfile.ZipFile(path, "w") as archive:
            for member in members:
                archive.writestr(member, npy("()", data=bytes(4)) if member == "x.npy" else b"text")
        with pytest.raises(SampleError, match=r"x\.npz: "):
            read_arrays(path)


def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((64, 1 << 16), np.float32))
    assert path.stat().st_size < 1 << 17
    assert read_arrays(path)["x"].shape == (64, 1 << 16)
    monkeypatch.setenv("TPUFLOW_MEMORY_LIMIT", str(1 << 20))
    with pytest.raises(SampleError, match=r"16.00 MiB, the largest .* the limit is 1.00 MiB"):
        read_arrays(path)
    monkeypatch.setenv("TPUFLOW_MEMORY_LIMIT", "1e9")
    with pytest.raises(TpuflowError, match="not a number of bytes"):
        memory_limit()


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {
        "c": np.arange(6, dtype=np.int16).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "scalar": np.array(3.5, np.float16),
        "none": np.zeros((0, 4), np.uint8),
        "text": np.array(["a", "bc"]),
        "bool": np.array([True, False]),
        "big": np.arange(3, dtype=">i4"),
    }
    np.savez_compressed(tmp_path / "x.npz", allow_pickle=False, **arrays)
    found = read_arrays(tmp_path / "x.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    np.save(tmp_path / "x.npy", arrays["f"])
    np.testing.assert_array_equal(read_arrays(tmp_path / "x.npy")[""], arrays["f"])


@pytest.mark.parametrize("suffix", [".toml", ".json", ".cfg", ".table"])
@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 100_000, "[" * 100_000, '{"a":' * 100_000, "a." * 500_000 + "b = 1", "a = " + "9" * 5000,
     '{"a": {"b": ' + "9" * 5000 + "}}", "a = " + "[" * 200 + "]" * 200],
)  # fmt: skip
def test_configurations_nested_deeply_are_an_error(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"c{suffix}"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"c{suffix}"):
        load_config(path)


def test_dots_in_texts_and_comments_of_toml_are_no_nesting() -> None:
    dots = "." * 1000
    text = f'a = \'{dots}\' # {dots}\nb = """\\"{dots}"""\nc = "\\"{dots}"\nd = [{"1.5, " * 1000}]'
    found = parse_toml(text, "x.toml", ConfigError)
    assert found == {"a": dots, "b": f'"{dots}', "c": f'"{dots}', "d": [1.5] * 1000}


@pytest.mark.parametrize("name", ["plain", "\U0001f600", "a\x7fb", 'quo"te\\', "tab\tline\nend", "é"])
def test_machine_names_are_valid_toml(name: str) -> None:
    machine = {"name": name, "array": {"rows": 128, "wide": True, "list": [1, 2.5]}}
    assert tomllib.loads(machine_toml(machine)) == machine
