"""The architecture as tables: who may know whom, where unsafe code may stand, how long a file may be.

A new edge is a change of design: argue it in ARCHITECTURE.md, then add it here.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import REPOSITORY

PACKAGE = REPOSITORY / "python" / "tpuflow"

# crate -> crates it may depend on. Scheduler and simulator never see each other: they meet in `Program`.
CRATES = {
    "ir": set(),
    "kernels": {"ir"},
    "statistics": {"kernels"},
    "bounds": {"ir"},
    "checker": {"ir"},
    "scheduler": {"ir", "bounds", "checker"},
    "simulator": {"ir", "kernels"},
    "runtime": {"ir", "kernels", "simulator"},
    "python": {"ir", "kernels", "statistics", "bounds", "checker", "scheduler", "simulator", "runtime"},
    "capi": {"ir", "runtime"},
}
# Only their tests may reach this far.
CRATES_FOR_TESTS = {
    "simulator": {"scheduler", "checker"},
    "scheduler": {"simulator"},
    "checker": {"bounds", "scheduler", "simulator"},
    "bounds": {"scheduler"},
}

# room of the package -> rooms it may import. Data flows down this list; nothing imports what is below it.
VOCABULARY = {"errors", "files", "memory", "arrays", "similarity", "samples"}
ROOMS = {
    "errors": set(),
    "files": {"errors"},
    "late": set(),
    "executor": {"errors"},
    "similarity": {"errors"},
    "memory": {"errors"},
    "arrays": {"errors", "memory"},
    "samples": {"errors", "memory", "arrays"},
    "config": VOCABULARY,
    "reference": {"errors"},
    "kernels": {"errors", "_core"},
    "doors": {"errors"},
    "frontend": VOCABULARY | {"config", "doors"},
    "partition": VOCABULARY | {"frontend"},
    "calibrate": VOCABULARY | {"config", "_core", "frontend", "partition"},
    "quantize": VOCABULARY | {"config", "_core", "frontend", "partition", "calibrate"},
    "machine": {"errors", "files", "_core"},
    "parameters": {"errors", "config"},
    "tiling": {"errors", "config"},
    "compile": VOCABULARY | {"config", "_core", "machine", "parameters", "tiling", "partition", "quantize"},
    "allocation": {"errors", "files", "_core"},
    "simulate": VOCABULARY | {"config", "_core", "partition", "quantize", "compile"},
    "explain": {"errors", "_core", "compile", "parameters", "simulate"},
    "report": VOCABULARY | {"config", "_core", "calibrate", "simulate"},
    "store": {"errors", "files", "_core", "partition"},
    "plugins": {"errors", "arrays", "samples", "config", "calibrate", "metrics"},
    "weights": {"errors", "partition", "compile", "store"},
    "audit": VOCABULARY | {"config", "frontend", "calibrate", "partition", "quantize", "compile"},
    "run": VOCABULARY | {"_core", "frontend", "partition", "simulate", "store"},
    "event_log": VOCABULARY | {"_core", "frontend", "partition", "simulate", "store", "run"},
    "likeness": VOCABULARY | {"frontend", "run", "store"},
    "layer_errors": VOCABULARY | {"frontend", "partition", "simulate", "run", "store"},
    "metrics": {"errors", "similarity"},
    "judge": VOCABULARY | {"frontend", "run", "store", "metrics"},
    "refine": VOCABULARY
    | {"config", "frontend", "partition", "calibrate", "quantize", "run", "store", "judge"},
    "precision": VOCABULARY
    | {
        "config",
        "frontend",
        "partition",
        "calibrate",
        "quantize",
        "machine",
        "compile",
        "simulate",
        "run",
        "store",
        "metrics",
        "judge",
    },
    "fine_tune": VOCABULARY | {"config", "frontend", "calibrate", "judge", "refine", "event_log"},
    "build": VOCABULARY
    | {
        "config",
        "plugins",
        "judge",
        # How many metrics a configuration names: a judge for each.
        "metrics",
        "precision",
        "likeness",
        "layer_errors",
        "_core",
        "frontend",
        "partition",
        "calibrate",
        "quantize",
        "refine",
        "machine",
        "parameters",
        "tiling",
        "compile",
        "store",
        "event_log",
    },
    "compare": VOCABULARY | {"frontend", "build", "run", "store"},
    "export": VOCABULARY | {"frontend", "partition", "quantize", "refine"},
    "evaluate": VOCABULARY | {"metrics", "run"},
    "npz": VOCABULARY | {"frontend", "partition", "store"},
    "runtime": VOCABULARY | {"_core", "partition", "compile", "simulate", "store"},
    "compat": VOCABULARY
    | {
        "config",
        "fine_tune",
        "parameters",
        "tiling",
        "frontend",
        "partition",
        "calibrate",
        "quantize",
        "refine",
        "compile",
        "simulate",
        "store",
        "run",
        "runtime",
        "export",
    },
    "debug": {"errors", "_core", "run", "simulate"},
    "bundle": VOCABULARY | {"run", "store"},
    "smoke": VOCABULARY
    | {"frontend", "calibrate", "quantize", "compile", "simulate", "build", "run", "runtime"},
    "zoo": VOCABULARY
    | {
        "config",
        "frontend",
        "partition",
        "calibrate",
        "refine",
        "compile",
        "simulate",
        "store",
        "build",
        "run",
    },
    "__init__": VOCABULARY
    | {"config", "doors", "frontend", "partition", "calibrate", "quantize", "compile", "simulate", "kernels"}
    | {"event_log", "machine", "refine", "report"},
}
# The command line stands above everything, and is the only one that prints.
ROOMS["commands"] = set(ROOMS) | {"_core"}
ROOMS["__main__"] = {"cli"}
ROOMS["cli"] = set(ROOMS) | {"_core"}
PRINTING = {"cli", "commands"}
TERMINAL = {"typer", "rich"}

# Where unsafe code may stand: the kernels' vector instructions, the file that maps programs, the C border.
UNSAFE = re.compile(r"crates/(kernels/src/|ir/src/image\.rs|capi/src/)")

# Files above the limit that hold one idea all the same, each with the reason.
LIMIT = 600
LONG_FILES: dict[str, str] = {}

# Marks of unfinished work, written so that this file does not find itself.
NOTES = "|".join(word.upper() for word in ("todo", "fixme", "xxx"))
MACROS = "|".join(f"{word}!" for word in ("todo", "unimplemented"))
UNFINISHED = re.compile(rf"\b(?:{NOTES})\b|\b(?:{MACROS})|\bNotImplemented{'Error'}\b|#\[{'ignore'}")


def manifests() -> dict[str, dict[str, object]]:
    found = sorted((REPOSITORY / "crates").glob("*/Cargo.toml"))
    return {path.parent.name: tomllib.loads(path.read_text(encoding="utf-8")) for path in found}


def own_crates(table: object) -> set[str]:
    assert isinstance(table, dict)
    return {name.removeprefix("tpuflow-") for name in table if name.startswith("tpuflow-")}


def test_crates_depend_only_on_what_the_table_allows() -> None:
    found = manifests()
    assert set(found) == set(CRATES)
    for crate, manifest in found.items():
        extra = own_crates(manifest.get("dependencies", {})) - CRATES[crate]
        assert not extra, f"crates/{crate} depends on {extra}"
        allowed = CRATES[crate] | CRATES_FOR_TESTS.get(crate, set())
        extra = own_crates(manifest.get("dev-dependencies", {})) - allowed
        assert not extra, f"the tests of crates/{crate} depend on {extra}"
        assert not own_crates(manifest.get("build-dependencies", {}))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Every import of a module as (top-level package, room or name below it), conditional ones too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "tpuflow" else [module]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            yield top, rest.partition(".")[0]


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_only_what_the_table_allows(path: Path) -> None:
    room = room_of(path)
    assert room in ROOMS, f"{room} is a new room: give it a row in ROOMS"
    for top, target in imports(path):
        if top == "tpuflow" and target != room:
            assert target in ROOMS[room], f"{room} may not import {target or 'tpuflow itself'}"
        if top in TERMINAL:
            assert room in PRINTING, f"{room} may not import {top}"


def test_the_extension_is_called_from_one_module_per_room() -> None:
    callers: dict[str, list[str]] = {}
    for path in modules():
        if ("tpuflow", "_core") in imports(path):
            callers.setdefault(room_of(path), []).append(path.name)
    assert all(len(names) == 1 for names in callers.values()), callers


def sources() -> list[Path]:
    folders = ("benches", "crates", "examples", "python", "tests")
    files = (path for folder in folders for path in (REPOSITORY / folder).rglob("*"))
    return sorted(path for path in files if path.suffix in {".py", ".pyi", ".rs"})


def named(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_unsafe_code_stands_only_where_the_table_allows() -> None:
    rust = [path for path in sources() if path.suffix == ".rs"]
    assert rust
    for path in rust:
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        if re.search(r"\bunsafe\s+(fn|impl|trait|extern)|\bunsafe\s*\{", text):
            assert UNSAFE.match(named(path)), f"{named(path)} holds unsafe code"


def test_files_are_short_and_exceptions_are_current() -> None:
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    long = {name for name, lines in lengths.items() if lines > LIMIT}
    assert long == set(LONG_FILES), "split them, or explain them in LONG_FILES"


def test_nothing_is_left_unfinished() -> None:
    for path in sources():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not UNFINISHED.search(line), f"{named(path)}:{number}: {line.strip()}"


def module_imports(crate: str) -> dict[str, set[str]]:
    """The top-level modules of a crate, each with those it imports; tests apart."""
    source = REPOSITORY / "crates" / crate / "src"
    found: dict[str, set[str]] = {}
    for path in source.rglob("*.rs"):
        module = path.relative_to(source).parts[0].removesuffix(".rs")
        text = path.read_text(encoding="utf-8").split("#[cfg(test)]")[0]
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
        found.setdefault(module, set()).update(re.findall(r"\bcrate::([a-z_]+)", code))
    return {module: (names & found.keys()) - {module} for module, names in found.items()}


@pytest.mark.parametrize("crate", ["scheduler", "kernels", "checker", "bounds"])
def test_no_module_of_a_crate_imports_itself_by_way_of_others(crate: str) -> None:
    left = module_imports(crate)
    while free := {module for module, names in left.items() if not names}:
        left = {module: names - free for module, names in left.items() if module not in free}
    assert not left, f"cycles among {left}"
