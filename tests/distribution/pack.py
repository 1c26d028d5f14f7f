"""A wheel of what is built already, and a fresh environment to install it into."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from conftest import REPOSITORY

PACKAGE = REPOSITORY / "python" / "tpuflow"
SKIPPED = ("__pycache__",)
NAME = re.compile(r"^[A-Za-z0-9._-]+")


def wheel(folder: Path) -> Path:
    """Packs the package, its extension without debug information, and the metadata it was installed with."""
    installed = metadata.distribution("tpuflow")
    files = {
        path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes()
        for path in sorted(PACKAGE.rglob("*"))
        if path.is_file() and not set(path.parts) & set(SKIPPED)
    }
    (extension,) = (name for name in files if name.startswith("tpuflow/_core.") and not name.endswith(".pyi"))
    files[extension] = stripped(PACKAGE.parent / extension, folder / "stripped").read_bytes()
    info = f"tpuflow-{installed.version}.dist-info"
    for name in ("METADATA", "WHEEL", "entry_points.txt"):
        text = installed.read_text(name)
        assert text is not None, name
        files[f"{info}/{name}"] = text.encode()
    for name in ("LICENSE", "THIRD_PARTY_LICENSES.txt"):
        files[f"{info}/licenses/{name}"] = (REPOSITORY / name).read_bytes()
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    tag = re.search(r"^Tag: (\S+)$", files[f"{info}/WHEEL"].decode(), re.MULTILINE)
    assert tag is not None
    made = folder / f"tpuflow-{installed.version}-{tag[1]}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def stripped(library: Path, target: Path) -> Path:
    """A copy of a shared library without debug information, where there is a tool for it."""
    tool = shutil.which("strip")
    if tool is None:
        return library
    options = ["-x"] if sys.platform == "darwin" else ["--strip-unneeded"]
    subprocess.run([tool, *options, "-o", str(target), str(library)], check=True)
    return target


def requirements() -> list[str]:
    """The pins, with hashes, of what the package needs and what that needs, for this interpreter."""
    wanted, found = ["tpuflow"], set[str]()
    while wanted:
        name = _canonical(wanted.pop())
        if name in found:
            continue
        try:
            needed = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            continue  # for another platform
        found.add(name)
        for line in needed:
            match = NAME.match(line)
            if match and "extra ==" not in line:
                wanted.append(match[0])
    pins = re.split(r"\n(?=\S)", (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"))
    named = ((_canonical(match[0]), pin) for pin in pins if (match := NAME.match(pin)))
    return [pin for name, pin in named if name in found]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def environment(folder: Path, made: Path) -> tuple[Path, bool]:
    """A fresh environment with the wheel; whether its packages come from an index, by hash.

    Where no index can be reached, the packages of this environment are shown to it, and nothing else of it.
    """
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python, pins = folder / "bin" / "python", folder.parent / "requirements.txt"
    pins.write_text("\n".join(requirements()) + "\n", encoding="utf-8")
    pip = [str(python), "-I", "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input"]
    by_hash = [
        "install",
        "--no-deps",
        "--no-compile",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "-r",
        str(pins),
    ]
    fetched = subprocess.run(
        [*pip, "--retries", "0", "--timeout", "10", *by_hash], capture_output=True, check=False
    )
    if fetched.returncode:
        (site,) = (folder / "lib").glob("python*/site-packages")
        own = next(path for path in sys.path if path.endswith("site-packages"))
        # A line of such a file is one folder more to import from; the links in that folder are not followed.
        (site / "packages.pth").write_text(own + "\n", encoding="utf-8")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--ignore-installed", str(made)], check=True)
    return python, fetched.returncode == 0


def glibc_versions(library: Path) -> list[tuple[int, int]]:
    """Versions of the C library that a shared library names, from its tables of needed versions."""
    shown = subprocess.run(
        ["readelf", "--version-info", "--wide", str(library)], capture_output=True, text=True, check=True
    )
    found = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", shown.stdout)
    return sorted({(int(major), int(minor)) for major, minor in found})
