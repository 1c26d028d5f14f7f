"""What is given to others: a wheel that does the main job, libraries of a stated size and age."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY
from distribution.pack import PACKAGE, environment, glibc_versions, requirements, stripped, wheel
from runtime import c
from tpuflow.pipeline.example import WALK

MOST_BYTES_OF_THE_LIBRARY = 6_000_000
MOST_BYTES_OF_THE_WHEEL = 12_000_000
linux = pytest.mark.skipif(sys.platform != "linux", reason="versions of symbols are those of glibc")


def stated_glibc() -> tuple[int, int]:
    """The oldest glibc that the README says a build serves."""
    text = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    found = re.search(r"glibc (\d+)\.(\d+) or newer", text)
    assert found is not None
    return int(found[1]), int(found[2])


@pytest.mark.slow
def test_a_wheel_does_the_main_job_without_the_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = wheel(tmp_path)
    assert made.stat().st_size <= MOST_BYTES_OF_THE_WHEEL
    python, from_index = environment(tmp_path / "environment", made)
    if not from_index:
        with capsys.disabled():
            sys.stdout.write("\nno package index: the wheel was tried with packages of this environment\n")
    work = tmp_path / "work"
    work.mkdir()
    clean = {"PATH": os.defpath, "HOME": str(work), "LC_ALL": "C.UTF-8"}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=work, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr}"
        return done.stdout

    where = Path(run(str(python), "-c", "import tpuflow; print(tpuflow.__file__)").strip())
    assert where.is_relative_to(tmp_path / "environment")
    run(str(python), "-m", "tpuflow", "example", ".")
    tpuflow = str(python.with_name("tpuflow"))
    for line, _ in WALK:
        run(tpuflow, *shlex.split(line)[1:])
    run(tpuflow, "simulate", "stripes.tpu", "--json", "run.json")
    figures = json.loads((work / "run.json").read_text())
    assert figures["cycles"] > 0
    assert "<html" in (work / "report.html").read_text(encoding="utf-8")
    listed = run(
        str(python), "-c", "from importlib.metadata import files; print(*files('tpuflow'), sep='\\n')"
    )
    assert "THIRD_PARTY_LICENSES.txt" in listed
    shutil.rmtree(tmp_path / "environment")


def test_the_pins_cover_what_the_package_needs() -> None:
    pins = requirements()
    names = {pin.split("==")[0] for pin in pins}
    assert {"numpy", "onnx", "onnx-ir", "onnxruntime", "typer", "rich", "pydantic"} <= names
    assert not names & {"pytest", "mypy", "ruff", "maturin", "tensorboard", "sphinx"}
    assert all("--hash=sha256:" in pin for pin in pins)


@linux
@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
@pytest.mark.feature("MSC-16")
def test_the_extension_needs_no_newer_glibc_than_stated(tmp_path: Path) -> None:
    (extension,) = PACKAGE.glob("_core.*.so")
    versions = glibc_versions(extension)
    assert versions
    assert versions[-1] <= stated_glibc()
    assert glibc_versions(stripped(extension, tmp_path / "stripped")) == versions


@linux
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_the_library_for_c_is_small_and_needs_no_newer_glibc_than_stated() -> None:
    c.compiler()
    library = c.folder() / "libtpuflow.so"
    assert library.stat().st_size <= MOST_BYTES_OF_THE_LIBRARY
    versions = glibc_versions(library)
    assert versions
    assert versions[-1] <= stated_glibc()
