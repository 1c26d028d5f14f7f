"""Reads damaged files of every kind Python parses: `python tests/fuzz/files.py --cases 100000 --seed 0`.

Each case takes a sound file, changes it where its form has structure (keys, numbers, nesting and names of
JSON, TOML and CSV; members, headers and claims of archives), or its bytes, and reads it. A file may be read,
or be refused by an error of the package in one line; anything else is a finding: another exception, more than
`SECONDS` of time, more than `BYTES` of memory.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import signal
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tpuflow.calibration import Ranges, load_statistics
from tpuflow.compiler.allocation import read_instance
from tpuflow.compiler.program import machine_text
from tpuflow.config import load_config
from tpuflow.errors import MachineError, TpuflowError
from tpuflow.io.arrays import array_headers, read_arrays
from tpuflow.io.files import parse_toml
from tpuflow.partitioning.storage import load_graph, load_program
from tpuflow.pipeline.bundle import load_bundle
from tpuflow.runtime.raw import Codec

SECONDS = 5
BYTES = 1 << 30
Read = Callable[[Path], object]

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "x", "\0", "\x1b[2J", "\ud800", "é", "a/../b", "9" * 40, [], {}, [[]], {"": {}},
    [0] * 100,
    "1" * 5000, [[[[[[[[[[]]]]]]]]]],
)  # fmt: skip
"""Values put in the place of others."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        suffix: Of its name.
        content: A sound file.
        read: Its reader.
        change: Changes the form, given the content.
    """

    suffix: str
    content: bytes
    read: Read
    change: Callable[[bytes, random.Random], bytes]


class FuzzError(AssertionError):
    """A reader did what it must not do."""


def bytes_changed(content: bytes, chance: random.Random) -> bytes:
    """A few bytes flipped, cut, doubled or put in."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0:
                del found[at:]
            case 1:
                found[at:at] = found[chance.randrange(len(found) + 1) :][: chance.randint(1, 64)]
            case 2:
                found[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3:
                del found[at : at + chance.randint(1, 16)]
            case _:
                found[at : at + 1] = chance.choice(
                    (b"\0", b"\xff", b"[", b"{", b'"', b",", b"9", b"-", b"\n")
                )
    return bytes(found)


def json_changed(content: bytes, chance: random.Random) -> bytes:
    """A value, key or entry of a JSON document changed."""
    document = json.loads(content)
    for _ in range(chance.randint(1, 3)):
        document = value_changed(document, chance)
    return json.dumps(document).encode()


def value_changed(value: Any, chance: random.Random) -> Any:
    """A value with something inside changed, or another."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        if isinstance(value, str) and chance.random() < 0.3:  # documents inside texts
            try:
                return json.dumps(value_changed(json.loads(value), chance))
            except (ValueError, RecursionError):
                pass
        return chance.choice(ODD)
    if isinstance(value, list):
        found, at = list(value), chance.randrange(len(value))
        match chance.randrange(4):
            case 0:
                del found[at]
            case 1:
                found.insert(at, found[at])
            case _:
                found[at] = value_changed(found[at], chance)
        return found
    key = chance.choice(list(value))
    match chance.randrange(5):
        case 0:
            return {name: each for name, each in value.items() if name != key}
        case 1:
            return value | {chance.choice(("", "x", "\0", "format", "a/b")): value[key]}
        case _:
            return value | {key: value_changed(value[key], chance)}


def header_changed(content: bytes, chance: random.Random) -> bytes:
    """A safetensors file with its JSON header changed, and its length right or wrong."""
    size = int.from_bytes(content[:8], "little")
    head = json_changed(content[8 : 8 + size], chance)
    length = len(head) if chance.random() < 0.9 else chance.choice((0, 1, 2**40, 2**64 - 1))
    return length.to_bytes(8, "little") + head + content[8 + size :]


def lines_changed(content: bytes, chance: random.Random) -> bytes:
    """A line or a word of a text changed."""
    lines = content.decode().splitlines()
    at = chance.randrange(len(lines))
    match chance.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[chance.randrange(len(lines))])
        case 2:
            lines[at] = chance.choice(
                ("[" * 2000, "a = " + "[" * 500, "=", '"', "[[a]]", "[a.b.c]", "," * 500)
            )
        case _:
            words = lines[at].replace(",", " , ").replace("=", " = ").split(" ")
            words[chance.randrange(len(words))] = str(chance.choice(ODD)).replace("\ud800", "?")
            lines[at] = " ".join(words)
    return "\n".join(lines).encode()


def archive_changed(content: bytes, chance: random.Random) -> bytes:
    """An archive with a member changed, renamed, dropped, doubled or compressed otherwise."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        names = old.namelist()
        chosen = chance.choice(names)
        for name in names:
            member, what = old.read(name), chance.randrange(6) if name == chosen else -1
            if what == 0:
                continue
            if what == 1:
                name = chance.choice(("../x", "/x", "x.npy", "read", "\x1b.npy", "a" * 300))  # noqa: PLW2901
            if what == 2 and name.endswith(".npz"):
                member = archive_changed(member, chance)
            elif what in (2, 3):
                member = npy_changed(member, chance)
            elif what == 4:
                member = json_changed(member, chance) if name.endswith(".json") else chance.randbytes(40)
            way = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
            new.writestr(zipfile.ZipInfo(name), member, way)
    return made.getvalue() if chance.random() < 0.8 else bytes_changed(made.getvalue(), chance)


def npy_changed(content: bytes, chance: random.Random) -> bytes:
    """An array with another header."""
    shape = chance.choice(
        ("(10**12,)", "(1000000000000,)", "(-1,)", "()", "(0,)", "'x'", "(1.5,)", "(2, " * 50, "(" * 900)
    )
    descr = chance.choice(("'<f4'", "'|O'", "'<f9'", "'V0'", "[('a', '<f4')]", "'<U1000000000'", "3", "None"))
    header = f"{{'descr': {descr}, 'fortran_order': {chance.choice(('True', '2', 'x'))}, 'shape': {shape}}}\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content[80:]


def kinds(folder: Path) -> list[Kind]:
    """All kinds, with sound files; the ones with programs come from `folder` if they are there."""
    arrays = io.BytesIO()
    np.savez(arrays, allow_pickle=False, image=np.zeros((2, 3), np.float32), labels=np.arange(2))
    lone = io.BytesIO()
    np.save(lone, np.zeros((2, 3)))
    ranges = {
        "format": 1,
        "samples": 4,
        "strategy": "mse",
        "tensors": {"a": {"min": -1.0, "max": 2.0, "axis": None}},
    }
    ranges |= {"means": {"a": {"axis": 1, "mean": [0.5]}}, "errors": {"a": {"axis": 1, "error": [0.5]}}}
    settings = {"conv1": {"weight_bits": 8, "dtype": "int8"}, "conv2": {"strategy": "mse"}}
    toml = (
        '[quantize]\ndtype = "int8"\nweight_bits = 8\n\n[calibrate]\nstrategy = "mse"\nclip_weight = 16.0\n\n'
    )
    toml += '[[layers]]\nnames = ["a", "b"]\ndtype = "int16"\n'
    listing = io.BytesIO()
    with zipfile.ZipFile(listing, "w") as archive:
        archive.writestr("bundle.json", json.dumps({"format": 1, "programs": ["a"], "tests": ["a"]}))
        archive.writestr("programs/a.tpu", b"program")
        archive.writestr("tests/a/inputs.npz", arrays.getvalue())
        archive.writestr("tests/a/outputs.npz", arrays.getvalue())
    found = [
        Kind(
            ".npz", arrays.getvalue(), lambda path: (array_headers(path), read_arrays(path)), archive_changed
        ),
        Kind(".npy", lone.getvalue(), read_arrays, npy_changed),
        Kind(".tpub", listing.getvalue(), load_bundle, archive_changed),
        Kind(".json", json.dumps(ranges).encode(), Ranges.load, json_changed),
        Kind(".json", json.dumps(settings).encode(), load_config, json_changed),
        Kind(".toml", toml.encode(), load_config, lines_changed),
        Kind(".cfg", b"[Common]\nweight_bits = 8\nactivation_bits = 8\n", load_config, lines_changed),
        Kind(".table", b"# op mode\nconv1 INT8\nconv2 F16\n", load_config, lines_changed),
        Kind(".csv", b"id,lower,upper,size\n0,0,4,16\n1,2,6,32\n", read_instance, lines_changed),
        Kind(
            ".toml",
            machine_text("128x128_asic").encode(),
            lambda path: parse_toml(machine_text(path), path, MachineError),
            lines_changed,
        ),
    ]
    readers: dict[str, tuple[Read, Callable[[bytes, random.Random], bytes]]] = {
        ".tpu": (load_program, header_changed),
        ".tpuq": (load_graph, header_changed),
        ".statistics.json": (load_statistics, json_changed),
        ".codec.json": (Codec.load, json_changed),
    }
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        for suffix, (read, change) in readers.items():
            if path.name.endswith(suffix):
                found.append(Kind("".join(path.suffixes[-1:]), path.read_bytes(), read, change))
    return found


def campaign(cases: int, seed: int, folder: Path, first: int = 0) -> dict[str, int]:
    """Reads so many damaged files; how many were read, and refused.

    Raises:
        FuzzError: A finding; the message names kind and case, the file is kept.
    """
    count = {"read": 0, "refused": 0}
    _limit()
    with tempfile.TemporaryDirectory() as made:
        known = kinds(folder)
        for case in range(first, first + cases):
            chance = random.Random(f"{seed}.{case}")
            kind = known[case % len(known)]
            change = kind.change if chance.random() < 0.7 else bytes_changed
            path = Path(made) / f"case{kind.suffix}"
            path.write_bytes(change(kind.content, chance))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of processor time: other processes do not count
            try:
                kind.read(path)
                count["read"] += 1
            except TpuflowError as error:
                count["refused"] += 1
                if "\n" in str(error).strip() or not str(error):
                    raise _finding(kind, seed, case, path, error) from error
            except Exception as error:
                raise _finding(kind, seed, case, path, error) from error
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    return count


def _finding(kind: Kind, seed: int, case: int, path: Path, error: Exception) -> FuzzError:
    kept = Path(tempfile.gettempdir()) / f"fuzz-{seed}-{case}{kind.suffix}"
    kept.write_bytes(path.read_bytes())
    return FuzzError(f"{kind.suffix}, seed {seed}, case {case}: {type(error).__name__}: {error}; see {kept}")


def _limit() -> None:
    """Bounds memory above what the process has now, and the time of each case."""

    def late(_: int, __: FrameType | None) -> None:
        raise FuzzError(f"a case takes more than {SECONDS} s")

    signal.signal(signal.SIGPROF, late)
    status = Path("/proc/self/statm")
    if status.is_file():
        size = int(status.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> None:
    """Runs a campaign and says what became of the files."""
    parser = argparse.ArgumentParser(description="Read damaged files of every kind.")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=Path, default=Path(__file__).parent.parent / "formats" / "a29a9a2")
    words = parser.parse_args()
    sys.stdout.write(f"{words.cases} files: {campaign(words.cases, words.seed, words.files, words.first)}\n")


if __name__ == "__main__":
    main()
