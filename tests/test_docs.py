"""Every command and snippet of the pages for users runs, in the order of the page, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from cli.conftest import run_command
from conftest import REPOSITORY, slow_except
from frontend.decoders import VOCABULARY, decoder
from frontend.test_cut import heads
from importers.graphdefs import GraphBuilder
from importers.test_graphdef import network
from partitioning.networks import detector
from runtime import c

DIGITS = REPOSITORY / "examples" / "digits"
SAMPLES = 32
PAGES = {"README": REPOSITORY / "README.md"} | {
    path.stem: path for path in sorted((REPOSITORY / "docs").glob("*.md"))
}
BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
"""Commands and programs; what only shows is marked as text, or not at all."""
ELSEWHERE = {"extending"}
"""Pages whose blocks are changes of the package: `test_extending.py` carries them out."""
WITH_SNIPPETS = [
    name
    for name, path in PAGES.items()
    if name not in ELSEWHERE and BLOCK.search(path.read_text(encoding="utf-8"))
]


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall(PAGES[page].read_text(encoding="utf-8"))


def digits(folder: Path) -> None:
    """The network most pages speak of, with fewer samples: a search computes each a hundred times."""
    for name in ("digits.onnx", "digits.npz"):
        shutil.copy(DIGITS / name, folder)
    np.savez(folder / "calibration.npz", image=np.load(DIGITS / "calibration.npz")["image"][:SAMPLES])


def a_detector(folder: Path) -> None:
    """A network with parts for the host, and samples for it."""
    onnx.save(detector(), folder / "detector.onnx")
    image = np.random.default_rng(0).normal(0, 1, (1, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "samples.npz", image=image)


def the_readme(folder: Path) -> None:
    """Stand-ins for the networks it names, in the folder it goes to."""
    folder = folder / "first"
    folder.mkdir()
    a_detector(folder)
    for name in ("network", "model"):
        shutil.copy(DIGITS / "digits.onnx", folder / f"{name}.onnx")
    shutil.copy(DIGITS / "calibration.npz", folder / "samples.npz")
    model, program = folder / "model.onnx", folder / "model.tpu"
    assert run_command("build", model, "--calib", folder / "samples.npz", "-o", program).status == 0
    (folder / "bytes.toml").write_text("[preprocess]\nimage_format = 'gray'\nmean = [128]\n")
    frozen = GraphBuilder()
    network(frozen)
    (folder / "frozen.pb").write_bytes(frozen.bytes)
    onnx.save(heads(3, (255,), joined=False), folder / "yolo5s.onnx")


def a_decoder(folder: Path) -> None:
    """A decoder, rows of tokens for it, and the characters they stand for."""
    onnx.save(decoder("exported", layers=1), folder / "decoder.onnx")
    rows = np.random.default_rng(0).integers(0, VOCABULARY, (4, 70))
    np.savez(folder / "ids.npz", ids=rows)
    np.savez(folder / "eval.npz", ids=rows[:2])
    characters = "ROME:abcdefghijklmnopqr"
    (folder / "tokenizer.json").write_text(json.dumps({"chars": list(characters)}))


def c_files(folder: Path) -> None:
    digits(folder)
    shutil.copy(c.EXAMPLE, folder)
    os.environ["INCLUDE"], os.environ["LIBRARY"] = str(c.HEADER), str(c.folder())


FILES: dict[str, Callable[[Path], None]] = {
    "README": the_readme,
    "c-library": c_files,
    "host-segments": a_detector,
    "language-models": a_decoder,
}


def known_word(words: list[str]) -> bool:
    """Whether a command that is not run here (it builds, or tests everything) is one that exists."""
    match words:
        case ["./start", word]:
            return f"\n  {word} " in (REPOSITORY / "start").read_text(encoding="utf-8")
        case ["cargo", "test", "-p", crate, "--profile", "checked"]:
            return (REPOSITORY / "crates" / crate.removeprefix("tpuflow-")).is_dir()
        case ["PROPTEST_RNG_SEED=$RANDOM", "cargo", "test"]:
            return True
        case ["pytest" | "TPUFLOW_HYPOTHESIS=deep", *rest]:
            return all((REPOSITORY / word).exists() for word in rest if word.startswith("tests"))
        case ["cd", folder]:
            return (REPOSITORY / folder).is_dir()
    return False


def run_line(line: str) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "tpuflow":
        done = run_command(*words[1:])
        assert done.status == 0, f"{line}\n{done.err}"
    elif words[0] == "cd" and Path(words[1]).is_dir():
        os.chdir(words[1])
    elif words[0] in {"cc", "cmp", "python", "./run_program"}:
        if words[0] == "cc":
            c.compiler()
        shell = subprocess.run(["bash", "-ec", line], capture_output=True, text=True, check=False)
        assert shell.returncode == 0, f"{line}\n{shell.stderr}"
    else:
        parts = shlex.split(line.partition("#")[0].replace("&&", ";").split(";")[0])
        assert known_word(parts), line


@pytest.mark.parametrize(
    "page",
    # The other pages search, build decoders or the library in C, which takes seconds.
    slow_except(("program-tools",), WITH_SNIPPETS),
)
def test_the_snippets_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("INCLUDE", "LIBRARY"):
        monkeypatch.setenv(name, "")
    digits(tmp_path)
    FILES.get(page, digits)(tmp_path)
    names: dict[str, object] = {}
    for kind, block in blocks(page):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, f"{page}.md", "exec"), names)
            continue
        for line in block.replace("\\\n", " ").splitlines():
            run_line(line)


def test_code_is_either_run_or_shown_as_what_it_is() -> None:
    kinds = {
        (page, kind)
        for page, path in PAGES.items()
        for kind in re.findall(
            r"^```(\S*)\n.*?^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    }
    assert {kind for _, kind in kinds} <= {
        "",
        "sh",
        "python",
        "html",
        "text",
        "ini",
        "toml",
        "json",
        "rust",
        "{toctree}",
        "{eval-rst}",
    }
    # Edits of Rust sources are carried out by the walks.
    assert {page for page, kind in kinds if kind == "rust"} <= {"adding-a-unit"}


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    path = PAGES[page]
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link
