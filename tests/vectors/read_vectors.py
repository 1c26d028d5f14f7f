"""Reads golden vectors back with nothing but Python's standard library, and says what does not fit together.

    python read_vectors.py FOLDER

Everything follows from manifest.json and docs/golden-vectors.md: hashes, both forms of every memory, where
the result lies, the value change dump, and that words written on the ports are those memory holds then.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

Memory = dict[int, str]
"""Words by number, as `$readmemh` has them."""


def require(fact: bool, text: str) -> None:  # noqa: FBT001
    if not fact:
        raise SystemExit(text)


def hexadecimal(path: Path) -> Memory:
    """The words of a file for `$readmemh`."""
    words, at = {}, 0
    for token in path.read_text().split():
        if token.startswith("@"):
            at = int(token[1:], 16)
            continue
        words[at] = token
        at += 1
    return words


def memory(folder: Path, described: dict[str, Any], size: int) -> Memory:
    """The words of an image, if its two forms and its list of runs agree."""
    words = hexadecimal(folder / described["hex"])
    content = (folder / described["binary"]).read_bytes()
    numbers = [word for first, count in described["runs"] for word in range(first, first + count)]
    require(sorted(words) == numbers, f"{described['hex']}: other words than the manifest's")
    require(len(content) == size * len(numbers), f"{described['binary']}: other words than the manifest's")
    for position, number in enumerate(numbers):
        plain = content[position * size : (position + 1) * size][::-1].hex()
        text = words[number]
        pairs = zip(text[::2], text[1::2], plain[::2], plain[1::2], strict=True)
        same = all((c, d) == ("0", "0") if "x" in (a, b) else (a, b) == (c, d) for a, b, c, d in pairs)
        require(same, f"{described['hex']}: word {number} is not that of the binary form")
    return words


def byte(words: Memory, size: int, address: int) -> str:
    """Two digits of a byte."""
    text = words.get(address // size, "xx" * size)
    at = 2 * (size - 1 - address % size)
    return text[at : at + 2]


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    names = {path.name for path in folder.iterdir()} - {"manifest.json"}
    require(names == set(manifest["files"]), "the folder holds other files than the manifest names")
    for name, described in manifest["files"].items():
        content = (folder / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        require((len(content), digest) == (described["bytes"], described["sha256"]), f"{name}: was altered")


def check_tensors(folder: Path, manifest: dict[str, Any], cache: Memory, size: int) -> int:
    """Codes in both forms; those of the result also in memory, where the manifest says so."""
    held = 0
    for tensor in manifest["tensors"]:
        lines = (folder / tensor["hex"]).read_text().split()
        content = (folder / tensor["binary"]).read_bytes()
        width = len(lines[0]) // 2 if lines else 1
        require(
            b"".join(bytes.fromhex(line)[::-1] for line in lines) == content,
            f"{tensor['name']}: forms differ",
        )
        elements = 1
        for extent in tensor["shape"]:
            elements *= extent
        require(elements == len(lines), f"{tensor['name']}: {len(lines)} elements")
        for address, first, count in tensor.get("places", ()):
            for offset in range(count * width):
                wanted = content[first * width + offset]
                found = byte(cache, size, address + offset)
                require(found == f"{wanted:02x}", f"{tensor['name']}: byte {address + offset} of the cache")
            held += count
    return held


def value_changes(path: Path) -> tuple[dict[str, int], dict[str, list[tuple[int, str]]], int]:
    """Sizes of variables by their path, their values with the time each holds from, and the last time."""
    names: dict[str, str] = {}
    sizes: dict[str, int] = {}
    values: dict[str, list[tuple[int, str]]] = {}
    scopes: list[str] = []
    now, defined = 0, False
    for line in path.read_text().splitlines():
        words = line.split()
        if not defined:
            if words[0] == "$scope":
                scopes.append(words[2])
            elif words[0] == "$upscope":
                scopes.pop()
            elif words[0] == "$var":
                name = ".".join([*scopes, words[4]])
                names[words[3]], sizes[name], values[name] = name, int(words[2]), []
                require(words[2] == "1" or words[5] == f"[{int(words[2]) - 1}:0]", f"{name}: its range")
            elif words[0] == "$enddefinitions":
                require(not scopes, "a scope is left open")
                defined = True
        elif line.startswith("#"):
            require(not now or int(line[1:]) > now, "time runs backwards")
            now = int(line[1:])
        elif line.startswith("b"):
            value, sign = words
            require(0 < len(value) - 1 <= sizes[names[sign]], f"{names[sign]}: {value} is too long")
            require(set(value[1:]) <= set("01x"), f"{names[sign]}: {value}")
            values[names[sign]].append((now, value[1:]))
        elif not line.startswith("$"):
            require(line[0] in "01x" and sizes[names[line[1:]]] == 1, line)
            values[names[line[1:]]].append((now, line[0]))
    return sizes, values, now


def check_trace(folder: Path, manifest: dict[str, Any], after: Memory) -> None:
    """Dump and tables say the same, and words that are written are in memory then."""
    trace = manifest["trace"]
    with (folder / trace["ports"]).open() as stream:
        requests = list(csv.DictReader(stream))
    cycles = [int(row["cycle"]) for row in requests]
    require(cycles == sorted(cycles), "requests are not in the order of time")
    require(all(trace["begin"] <= cycle < trace["end"] for cycle in cycles), "a request outside the cycles")
    sizes, values, last = value_changes(folder / trace["vcd"])
    require(last == trace["end"], f"the dump ends in cycle {last}")
    busy: dict[tuple[str, int], int] = {}
    for row in requests:
        key = row["port"], int(row["cycle"])
        lane = busy[key] = busy.get(key, -1) + 1
        scope = f"tpu.{row['port']}_{lane}"
        said = {
            "request": 1,
            "grant": int(row["granted"]),
            "write": int(row["access"] == "write"),
            "instruction": int(row["instruction"]),
            "bank": int(row["bank"]),
            "word": int(row["word"]),
        }
        for name, number in said.items():
            found = held_at(values[f"{scope}.{name}"], key[1])
            require(int(found, 2) == number, f"{scope}.{name} in cycle {key[1]}: {found}, not {number:b}")
        bits = held_at(values[f"{scope}.data"], key[1])
        wanted = "".join("xxxx" if digit == "x" else f"{int(digit, 16):04b}" for digit in row["data"])
        require(len(wanted) == sizes[f"{scope}.data"], f"{scope}.data: {len(wanted)} bits")
        require(bits == wanted, f"{scope}.data in cycle {key[1]}")
    granted = sum(int(row["granted"]) for row in requests)
    require(granted == count_grants(values, trace["end"]), "the dump has other grants than the table")
    if (trace["begin"], trace["end"]) == (manifest["layer"]["begin"], manifest["layer"]["end"]):
        check_writes(folder, manifest, requests, after)


def count_grants(values: dict[str, list[tuple[int, str]]], end: int) -> int:
    """Cycles in which ports are served."""
    found = 0
    for name, changes in values.items():
        if name.endswith(".grant"):
            times = [*changes, (end, "0")]
            found += sum(until - since for (since, value), (until, _) in pairwise(times) if value == "1")
    return found


def held_at(changes: list[tuple[int, str]], cycle: int) -> str:
    low, high = 0, len(changes)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if changes[middle][0] <= cycle else (low, middle)
    return changes[low - 1][1]


def check_writes(
    folder: Path, manifest: dict[str, Any], requests: list[dict[str, str]], after: Memory
) -> None:
    """What the layer writes is in memory afterwards, and its result was written."""
    cache = manifest["memories"][0]
    per_bank = manifest["machine"]["words_per_bank"]
    own = {
        int(line.rpartition(";")[2].split()[0])
        for line in (folder / "instructions.tpuasm").read_text().splitlines()
    }
    last: Memory = {}
    others: set[int] = set()
    for row in requests:
        if row["access"] == "write" and row["granted"] == "1":
            word = int(row["bank"]) * per_bank + int(row["word"])
            last[word] = row["data"]
            if int(row["instruction"]) not in own:
                others.add(word)
    for word, data in last.items():
        if word not in others:
            require(after.get(word) == data, f"word {word} of {cache['name']} is not what was written last")
    output = next(each for each in manifest["tensors"] if each["role"] == "output")
    width = len((folder / output["hex"]).read_text().partition("\n")[0]) // 2
    for address, _, count in output["places"]:
        first, end = address // cache["word_bytes"], (address + count * width - 1) // cache["word_bytes"]
        require(all(word in last for word in range(first, end + 1)), "a place of the result was not written")


def main() -> None:
    folder = Path(sys.argv[1])
    manifest = json.loads((folder / "manifest.json").read_text())
    require(manifest["format"] == 1, "another format")
    check_files(folder, manifest)
    images: dict[tuple[str, str], Memory] = {}
    for each in manifest["memories"]:
        for when in ("before", "after"):
            images[each["name"], when] = memory(folder, each[when], each["word_bytes"])
            require(
                all(word < each["words"] for word in images[each["name"], when]), f"{each['name']}: too large"
            )
        same = images[each["name"], "before"] == images[each["name"], "after"]
        require(same != each["changed"], f"{each['name']}: whether it changes")
    cache, size = images["cache", "after"], manifest["memories"][0]["word_bytes"]
    held = check_tensors(folder, manifest, cache, size)
    output = next(each for each in manifest["tensors"] if each["role"] == "output")
    require(held == output["held"], "elements held")
    check_trace(folder, manifest, cache)
    print(json.dumps({"held": held, "files": len(manifest["files"])}))  # noqa: T201


if __name__ == "__main__":
    main()
