"""The promises of the top level: what a bare machine is told, and that every dependency is pinned by hash."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import REPOSITORY
from tpuflow import _core

PINNED = [REPOSITORY / "constraints.txt", REPOSITORY / "examples" / "digits" / "constraints.txt"]


def start(word: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Runs `./start word` on a machine whose PATH is the one folder `path`."""
    bash = shutil.which("bash")
    assert bash is not None
    command = [bash, str(REPOSITORY / "start"), word]
    return subprocess.run(command, env={"PATH": str(path)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("word", ["demo", "test", "build", "lint"])
def test_without_cargo_the_first_line_says_how_to_get_it(word: str, tmp_path: Path) -> None:
    done = start(word, tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    first = done.stderr.splitlines()[0]
    assert first.startswith("cargo is missing")
    assert "https://sh.rustup.rs" in first


def test_an_old_cargo_is_named_with_the_remedy(tmp_path: Path) -> None:
    cargo = tmp_path / "cargo"
    cargo.write_text(f"#!{shutil.which('sh')}\necho 'cargo 1.70.0 (ec8a8a0ca 2023-04-25)'\n")
    cargo.chmod(0o755)
    done = start("demo", tmp_path)
    assert done.returncode == 1
    assert "cargo 1.70.0" in done.stderr
    assert "rustup update" in done.stderr


def test_an_unknown_word_is_a_usage_error() -> None:
    cat = shutil.which("cat")
    assert cat is not None
    done = start("everything", Path(cat).parent)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


def pins(path: Path) -> dict[str, str]:
    """Package -> version; every entry carries a hash, and nothing tells where packages were fetched from."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", path.read_text(encoding="utf-8").replace("\\\n", "")):
        if entry.startswith("#"):
            continue
        match = re.match(r"([\w.-]+)==(\S+)", entry)
        assert match, entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
        found[canonicalize_name(match[1])] = match[2]
    return found


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.parent.name)
def test_pins_name_no_index(path: Path) -> None:
    assert pins(path)
    assert "://" not in path.read_text(encoding="utf-8")


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    common, training = (pins(path) for path in PINNED)
    extras = project["optional-dependencies"]
    for wanted, found in (("dev", common), ("train", training)):
        for requirement in map(Requirement, project["dependencies"] + extras[wanted]):
            version = found.get(canonicalize_name(requirement.name), "0")
            assert requirement.specifier.contains(version), f"{requirement}: {version} is pinned"
    assert all(common[name] == training[name] for name in common.keys() & training.keys())


@pytest.mark.feature("MSC-16")
def test_one_wheel_for_python_3_11_and_later(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "maturin", "pep517", "write-dist-info", "--interpreter", sys.executable]
    command += ["--metadata-directory", str(tmp_path), "--manifest-path", "crates/python/Cargo.toml"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.dist-info/WHEEL")
    assert re.findall(r"^Tag: (cp311-abi3)-", wheel.read_text(), re.MULTILINE) == ["cp311-abi3"]
    assert "Requires-Python: >=3.11" in (wheel.parent / "METADATA").read_text()
    assert sys.version_info >= (3, 11)
    extension = _core.__file__
    assert extension.endswith("_core.abi3.so")
    needed = {
        tuple(map(int, version.split(b".")))
        for version in re.findall(rb"GLIBC_(2\.\d+)\0", Path(extension).read_bytes())
    }
    stated = re.search(r"glibc (\d+)\.(\d+) or newer", (REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert stated is not None
    if sys.platform == "linux":
        assert needed and max(needed) <= (int(stated[1]), int(stated[2]))
