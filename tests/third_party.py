"""Writes THIRD_PARTY_LICENSES.txt: the Rust crates in the wheel and the C library, with their licence texts.

`./start licenses` runs it; `tests/test_third_party.py` compares its list with the file. Versions and texts
come from the sources that cargo resolved by `Cargo.lock`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TARGET = REPOSITORY / "THIRD_PARTY_LICENSES.txt"
# What is distributed: the extension module of the wheel and the C library.
SHIPPED = {"tpuflow-python", "tpuflow-capi"}
TEXTS = re.compile(r"(LICEN[CS]E|COPYING|UNLICENSE|NOTICE)([-._].*)?", re.IGNORECASE)
HEADER = """\
tpuflow is licensed under Apache-2.0 (see LICENSE). The wheel and the C library contain the Rust crates
below, each under its own licence. Where a crate offers a choice, any of its licences may be taken. Texts
that several crates share stand once, after their names.
"""


@dataclass(frozen=True, order=True)
class Crate:
    """A crate that is compiled into what is distributed."""

    name: str
    version: str
    license: str
    folder: Path


def shipped() -> list[Crate]:
    """Every third-party crate in the distributed libraries, on any platform, in the order of names."""
    manifest = str(REPOSITORY / "Cargo.toml")
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", manifest]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    packages = {package["id"]: package for package in found["packages"]}
    edges = {
        node["id"]: [
            other["pkg"] for other in node["deps"] if any(kind["kind"] is None for kind in other["dep_kinds"])
        ]
        for node in found["resolve"]["nodes"]
    }
    wanted = [identity for identity, package in packages.items() if package["name"] in SHIPPED]
    seen: set[str] = set()
    while wanted:
        identity = wanted.pop()
        if identity not in seen:
            seen.add(identity)
            wanted += edges[identity]
    outside = (packages[identity] for identity in seen if packages[identity]["source"] is not None)
    return sorted(
        Crate(one["name"], one["version"], one["license"] or "", Path(one["manifest_path"]).parent)
        for one in outside
    )


def written(crates: list[Crate]) -> str:
    """The file's text: a list of crates, then each licence text once with the crates it belongs to."""
    by_text: dict[str, list[str]] = defaultdict(list)
    for crate in crates:
        for path in sorted(crate.folder.iterdir()):
            if path.is_file() and TEXTS.fullmatch(path.name):
                text = "\n".join(
                    line.rstrip() for line in path.read_text(encoding="utf-8").strip().splitlines()
                )
                by_text[text].append(f"{crate.name} {crate.version} ({path.name})")
    lines = [HEADER, *(f"- {crate.name} {crate.version}: {crate.license}" for crate in crates)]
    for text, names in sorted(by_text.items(), key=lambda item: item[1]):
        lines += ["", "-" * 100, ", ".join(names), "-" * 100, "", text]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(written(shipped()), encoding="utf-8")
