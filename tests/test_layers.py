"""The architecture as tables: who may know whom, where unsafe code may stand, how long a file may be.

A new edge is a change of design: argue it in ARCHITECTURE.md, then add it here.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tpuflow
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
    "bounds": {"checker", "kernels", "scheduler", "simulator"},
    "runtime": {"checker", "scheduler"},
}

# The names of a published framework: a distribution of its own, of which nothing here knows.
COMPAT = REPOSITORY / "compat" / "src"
NOT_FOR_COMPAT = {"_core", "cli", "kernels", "reference"}

# package -> packages it may import. Data flows down this list; nothing imports what is below it.
BASE = {"errors", "io"}
PACKAGES = {
    "errors": set(),
    "io": {"errors"},
    "reference": {"errors"},
    "kernels": {"errors", "_core"},
    "strategies": {"errors", "_core"},
    "config": BASE | {"strategies"},
    "executors": {"errors"},
    "ray_cluster": {"errors", "executors"},
    "importers": {"errors"},
    "frontend": BASE | {"config", "importers"},
    "partitioning": BASE | {"_core", "frontend"},
    "calibration": BASE | {"strategies", "config", "_core", "frontend", "partitioning", "executors"},
    "lowering": BASE | {"config", "_core", "frontend", "partitioning", "calibration"},
    "compiler": BASE | {"config", "_core", "partitioning", "lowering"},
    "energy": BASE | {"compiler"},
    "execution": BASE | {"config", "_core", "frontend", "partitioning", "lowering", "compiler", "executors"},
    "runtime": BASE | {"_core", "partitioning", "compiler", "execution"},
    "evaluation": BASE | {"config", "_core", "frontend", "partitioning", "lowering", "execution"},
    "report": BASE
    | {"config", "_core", "frontend", "partitioning", "calibration", "compiler", "execution", "evaluation"},
}
PACKAGES["explore"] = BASE | {"_core", "partitioning", "compiler", "execution", "energy", "executors"}
PACKAGES["ptq"] = set(PACKAGES) - {
    "reference", "kernels", "importers", "runtime", "energy", "explore"
}  # fmt: skip
PACKAGES["plugins"] = BASE | {"config", "calibration", "evaluation"}
PACKAGES["export"] = BASE | {"frontend", "partitioning", "lowering", "ptq"}
PACKAGES["pipeline"] = (set(PACKAGES) | {"_core"}) - {"reference", "kernels", "importers", "export"}
PACKAGES["__init__"] = set(PACKAGES) | {"_core"}
# The command line stands above everything, and is the only one that prints.
PACKAGES["cli"] = set(PACKAGES) | {"_core"}
PACKAGES["__main__"] = {"cli"}
PRINTING = {"cli"}
TERMINAL = {"typer", "rich"}

# The modules that call the extension; all others take its classes for types alone.
CALLERS = {
    "calibration/statistics.py",
    "compiler/allocation.py",
    "compiler/bounds.py",
    "compiler/devices.py",
    "compiler/machine.py",
    "compiler/program.py",
    "compiler/units.py",
    "execution/debug/replay.py",
    "execution/devices.py",
    "execution/levels.py",
    "execution/simulation/program.py",
    "kernels.py",
    "lowering/lowering.py",
    "lowering/operators.py",
    "partitioning/storage.py",
    "runtime/core.py",
}

# Where unsafe code may stand: the kernels' vector instructions, the file that maps programs, the C border.
UNSAFE = re.compile(r"crates/(kernels/src/|ir/src/image\.rs|capi/src/)")

# An error that is a string; errors have types with fields.
STRING_ERROR = re.compile(r"Result<(?:[^<>]|<[^<>]*>)*,\s*String>")

# Files above the limit that hold one idea all the same, each with the reason.
LIMIT = 600
LONG_FILES: dict[str, str] = {}

# No function of the crates' libraries or of the package holds more lines; of Python the body counts, not the
# declaration of its arguments, which for a command is the list of its options.
LONGEST = 80
FUNCTION = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)")

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


@pytest.mark.parametrize("crate", ["bounds", "checker", "scheduler", "simulator"])
def test_no_file_of_tests_is_left_out_of_the_program_that_runs_them(crate: str) -> None:
    folder = REPOSITORY / "crates" / crate / "tests"
    listed = re.findall(r"^mod (\w+);", (folder / "main.rs").read_text(encoding="utf-8"), re.MULTILINE)
    files = {path.stem for path in folder.glob("*.rs")} | {
        path.parent.name for path in folder.glob("*/mod.rs")
    }
    assert files - {"main"} <= set(listed)


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Every import of a module as (top-level package, package or name below it), conditional ones too."""
    return tuple(found_imports(path))


def found_imports(path: Path) -> Iterator[tuple[str, str]]:
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
def test_packages_import_only_what_the_table_allows(path: Path) -> None:
    package = package_of(path)
    assert package in PACKAGES, f"{package} is new: give it a row in PACKAGES"
    for top, target in imports(path):
        if top == "tpuflow" and target != package:
            assert target in PACKAGES[package], f"{package} may not import {target or 'tpuflow itself'}"
        if top in TERMINAL:
            assert package in PRINTING, f"{package} may not import {top}"


def calls_the_extension(path: Path) -> bool:
    """Whether a module imports the extension for more than its types."""
    text = path.read_text(encoding="utf-8")
    if "_core" not in text:
        return False
    tree = ast.parse(text)
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return any(
        isinstance(node, ast.ImportFrom)
        and id(node) not in typing
        and (node.module == "tpuflow._core" or any(alias.name == "_core" for alias in node.names))
        for node in ast.walk(tree)
    )


def test_the_extension_is_called_from_the_modules_of_the_table() -> None:
    found = {path.relative_to(PACKAGE).as_posix() for path in modules() if calls_the_extension(path)}
    assert found == CALLERS


def test_no_public_name_is_that_of_a_package() -> None:
    """A function that bears the name of a package hides it, or is hidden by it."""
    packages = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()} - {"__init__"}
    modules_on_purpose = {"kernels", "reference", "runtime"}
    assert set(tpuflow.__all__) & packages == modules_on_purpose
    assert dir(tpuflow) == sorted(tpuflow.__all__)
    for name in tpuflow.__all__:
        getattr(tpuflow, name)
    with pytest.raises(AttributeError, match="no attribute 'calibrated'"):
        _ = tpuflow.calibrated


def test_the_reference_documents_every_public_name_and_nothing_else() -> None:
    page = (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8")
    named = re.findall(r"^\.\. auto\w+:: tpuflow\.(\w+)$", page, re.MULTILINE)
    assert sorted(named) == sorted(tpuflow.__all__)


@pytest.mark.slow
def test_files_that_docstrings_name_exist() -> None:
    wrong = []
    package = {path.name for path in modules()}
    for path in modules():
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        named = re.findall(r"\b[a-z_0-9]+\.py\b", text)
        wrong += [f"{path}: {name}" for name in named if name not in package]
    assert [each for each in wrong if "materialize.py" not in each] == []


def test_paths_that_pages_name_exist() -> None:
    """Of the walks of `extending.md` and `adding-a-unit.md` two files are made by the reader."""
    made = {"python/tpuflow/evaluation/metrics/offset.py", "crates/simulator/tests/move_unit.rs"}
    pages = [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").glob("*.md"),
        *(REPOSITORY / "crates").glob("*/*.md"),
    ]
    place = re.compile(r"`((?:python|crates|compat|tests|benches|examples)/[\w./-]+)`")
    named = {name for page in pages for name in place.findall(page.read_text(encoding="utf-8"))}
    assert not {name for name in named - made if not (REPOSITORY / name).exists()}


@pytest.mark.slow
def test_nothing_of_the_core_knows_the_compatibility_names() -> None:
    names = {path.name for path in COMPAT.iterdir() if path.is_dir() and not path.name.endswith(".egg-info")}
    assert {"tpu_framework", "pytpu", "tpu_compiler"} <= names
    assert not [path for path in modules() if names & {top for top, _ in imports(path)}]
    assert not [path for path in modules() if "compat" in path.relative_to(PACKAGE).as_posix()]
    foreign = re.compile(rf"(?i)\b(?:{'|'.join(sorted(names))})\b|aipu")
    assert not [path for path in modules() if foreign.search(path.read_text(encoding="utf-8"))]


def test_compatibility_names_stand_on_packages_of_the_core() -> None:
    found = {below for path in COMPAT.rglob("*.py") for top, below in imports(path) if top == "tpuflow"}
    assert found and not found & NOT_FOR_COMPAT
    assert found <= PACKAGES.keys()


def sources() -> list[Path]:
    folders = ("benches", "compat", "crates", "examples", "python", "tests")
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


def test_errors_of_the_crates_have_types() -> None:
    library = [path for path in sources() if re.match(r"crates/\w+/src/.*\.rs", named(path))]
    texts = {named(path): path.read_text(encoding="utf-8").partition("#[cfg(test)]")[0] for path in library}
    assert [name for name, text in texts.items() if STRING_ERROR.search(text)] == []


def test_files_are_short_and_exceptions_are_current() -> None:
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    long = {name for name, lines in lengths.items() if lines > LIMIT}
    assert long == set(LONG_FILES), "split them, or explain them in LONG_FILES"


def rust_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Functions and their lines, tests apart; the closing brace stands below the first word."""
    lines = path.read_text(encoding="utf-8").partition("#[cfg(test)]")[0].splitlines()
    for number, line in enumerate(lines):
        if found := FUNCTION.match(line):
            ends = (at for at in range(number, len(lines)) if lines[at] == found[1] + "}")
            if not line.endswith((";", "}")) and (end := next(ends, None)) is not None:
                yield found[2], end - number + 1


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or 0) - node.body[0].lineno + 1


@pytest.mark.slow
def test_functions_are_short() -> None:
    found: dict[str, int] = {}
    for path in sources():
        if re.match(r"crates/\w+/src/", named(path)) and path.suffix == ".rs" and path.name != "tests.rs":
            found |= {f"{named(path)}: {name}": lines for name, lines in rust_functions(path)}
        elif named(path).startswith(("python/", "compat/src/")) and path.suffix == ".py":
            found |= {f"{named(path)}: {name}": lines for name, lines in python_functions(path)}
    assert len(found) > 3000, "functions are not found"
    assert {name: lines for name, lines in found.items() if lines > LONGEST} == {}, "divide them along ideas"


@pytest.mark.slow
def test_nothing_is_left_unfinished() -> None:
    for path in sources():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not UNFINISHED.search(line), f"{named(path)}:{number}: {line.strip()}"
