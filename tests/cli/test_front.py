"""The command line as a whole: what it lists, what it prints where, how quickly it refuses, its statuses."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from cli.conftest import Built, Command
from tpuflow.cli.catalog import COMMANDS, GROUPS
from tpuflow.compiler.program import machine_text

HARD = "5,8,5 6,8,3 0,5,3 1,4,5 3,7,2 4,8,1 6,7,6 2,6,8 0,1,6 1,2,7"
"""Buffers for which 18 is the lower bound, and the greedy orders take 19."""


def implementation(name: str) -> object:
    module, attribute = COMMANDS[name].source.split(".")
    return getattr(import_module(f"tpuflow.cli.commands.{module}"), attribute)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_in_the_list_is_that_of_the_command(name: str, command: Command) -> None:
    found = implementation(name)
    text = found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)
    assert str(text).splitlines()[0] == COMMANDS[name].summary
    assert len(COMMANDS[name].summary) <= 63
    shown = command(name, "--help")
    assert shown.status == 0
    assert COMMANDS[name].summary in shown.out
    assert "--quiet" in shown.out or "COMMAND" in shown.out


def test_every_command_is_listed_once_and_the_main_job_comes_first(command: Command) -> None:
    listed = [entry.name for entries in GROUPS.values() for entry in entries]
    assert len(listed) == len(set(listed))
    assert listed[:2] == ["build", "simulate"]
    shown = command("--help").out
    places = [shown.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    assert all(f"\n  {name} " in shown for name in listed)


def test_the_first_hint_of_the_help_works(
    built: Built, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = " ".join(command("--help").out.split())
    first, second = shown.rpartition("A first look: ")[2].split(" && ")
    (tmp_path / "model.onnx").write_bytes(built.model.read_bytes())
    monkeypatch.chdir(tmp_path)
    for line in (first, second):
        assert command(*line.split()[1:]).status == 0, line


def imported(*words: str) -> set[str]:
    """Modules that a process has imported at its end."""
    script = (
        "import sys, atexit\n"
        "atexit.register(lambda: sys.stderr.write('MODULES ' + ' '.join(sys.modules)))\n"
        "sys.argv[0] = 'tpuflow'\n"
        "from tpuflow.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *words], capture_output=True, text=True, check=True
    )
    return set(done.stderr.rpartition("MODULES ")[2].split())


def test_help_imports_no_library_of_the_work_and_few_modules() -> None:
    """How long it takes is bounded by what it imports; the Python of tests may be loaded otherwise."""
    bare = imported("--version")
    found = imported("--help")
    ours = {name for name in found if name.startswith("tpuflow")}
    heavy = (
        "numpy",
        "onnx",
        "onnx_ir",
        "onnxruntime",
        "pydantic",
        "rich",
        "tpuflow._core",
        "sympy._",
        "jinja2",
    )
    # A placeholder (`tpuflow.cli.lazy`), not yet the module.
    assert not [name for name in found - {"onnx_ir._symbolic_shapes", "sympy"} if name.startswith(heavy)]
    assert len(ours) <= 16, sorted(ours)
    assert len(found) <= 330, len(found)
    assert found - bare <= ours | {name for name in found if name.startswith(("typer", "textwrap"))}


@pytest.mark.slow
def test_figures_go_to_standard_output_alone_and_carry_their_format(
    built: Built, command: Command, tmp_path: Path
) -> None:
    for words in (
        ("simulate", built.program, "--timing-only"),
        ("explain", built.program),
        ("compare", built.model, built.program),
        ("evaluate", built.graph, "--data", built.labeled, "--metric", "top1"),
        ("compare", built.program),
        ("inspect", built.program),
        ("inspect", built.graph),
        ("inspect", built.model),
        ("check", built.program),
        ("check", built.model),
        ("check", built.model, "--no-host"),
        ("run", built.graph, "--inputs", built.calibration, "--outputs", tmp_path / "y.npz"),
        ("calibrate", built.model, "--calib", built.calibration, "-o", tmp_path / "r.json"),
        ("quantize", built.model, "--ranges", tmp_path / "r.json", "-o", tmp_path / "q.tpuq"),
        ("export", built.model, built.graph, "-o", tmp_path / "q.onnx"),
        ("npz", "shape", built.calibration),
        ("npz", "dump", built.calibration),
        ("machine", "list"),
        ("ops",),
        ("fields",),
        ("cuts",),
        ("plugins",),
    ):
        loud = command(*words, "--json", "-")
        assert loud.status == 0, loud.err
        assert json.loads(loud.out)["format"] == 2
        assert loud.err, "results for people go to standard error"
        quiet = command("-q", *words, "--json", "-")
        assert json.loads(quiet.out).keys() == json.loads(loud.out).keys()
        assert quiet.err == ""
    assert command("simulate", built.program, "--quiet").out == ""
    assert command("simulate", built.program, "--layers").out


def test_colors_follow_the_option(built: Built, command: Command) -> None:
    assert "\x1b[" not in command("inspect", built.program).out
    assert "\x1b[1m" in command("inspect", built.program, "--color", "always").out
    assert "\x1b[" not in command("inspect", "--color", "never", built.program).out


def test_versions(command: Command) -> None:
    assert command("-V").out == command("--version").out
    assert command("-V").out.startswith("tpuflow ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_complete_commands(shell: str, command: Command) -> None:
    script = command("completion", shell)
    assert script.status == 0
    assert "_TPUFLOW_COMPLETE" in script.out
    asked = {"_TPUFLOW_COMPLETE": f"complete_{shell}", "COMP_WORDS": "tpuflow si", "COMP_CWORD": "1"}
    asked |= {"_TYPER_COMPLETE_ARGS": "tpuflow si", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tpuflow"],
        capture_output=True,
        text=True,
        env=os.environ | asked,
        check=False,
    )
    assert "simulate" in done.stdout, done.stderr
    assert "build" not in done.stdout


EARLY = (
    ("--machine", "MACHINE"),
    ("--machine", "nothing.toml"),
    ("-o", "nowhere/x.tpu"),
    ("--json", "nowhere/x.json"),
    ("--report", "nowhere/x.html"),
    ("--save-stages", "x.onnx/stages"),
    ("--log-dir", "x.onnx/log"),
    ("--config", "nothing.toml"),
    ("--calib", "nothing.npz"),
    ("-o", "x.txt"),
)


@pytest.mark.parametrize("words", EARLY)
def test_a_wrong_request_is_refused_before_the_model_is_read(
    words: tuple[str, str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is no model: any other answer than that about the option shows that work had begun."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.onnx").write_bytes(b"not a model")
    broken = machine_text("128x128_asic").replace("rows = 128", "rows = 0")
    (tmp_path / "broken.toml").write_text(broken, encoding="utf-8")
    option, value = words
    done = command("build", "x.onnx", option, "broken.toml" if value == "MACHINE" else value)
    assert (done.status, done.out) == (1, "")
    assert "not an ONNX model" not in done.err
    assert done.err.startswith("error: ") and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("simulate", "MODEL"), 1, "is a model, not a program: build it first: tpuflow build"),
        (("simulate", "GRAPH"), 1, "is a quantised graph, not a program: build it first"),
        (("simulate", "."), 1, ".: is a directory: name a file"),
        (("inspect", "none.tpu"), 1, "none.tpu: no such file or directory"),
        (("build", "none.onnx"), 1, "none.onnx: no such file or directory"),
        (("build", "MODEL", "-O7"), 2, "for '-O': '7' is not one of '1', '5' (see `tpuflow build --help`)"),
        (("mixed", "MODEL", "-O7", "--budget", "cycles=1", "-o", "x.json"), 2, "'7' is not one of '1', '5'"),
        (("compare", "MODEL", "DATA"), 1, ".npz: samples are given with --inputs"),
        (("build", "MODEL", "--time-limit", "0"), 2, "0 is not more than 0"),
        (("build", "MODEL", "--time-limit", "nan"), 2, "nan is not more than 0"),
        (("bild", "MODEL"), 2, "did you mean 'build'"),
        (("simulate",), 2, "missing argument 'PROGRAM.tpu'"),
        (("evaluate", "GRAPH", "--data", "DATA", "--metric", "top1", "--threshold", "1.01"), 3, "is below"),
        (("evaluate", "GRAPH", "--data", "DATA", "--metric", "top1", "--max-drop", "0.1"), 1, "--float"),
        (("compare", "MODEL", "PROGRAM", "--tolerance", "1,1"), 3, "below"),
        (("alloc", "FULL", "--capacity", "5"), 3, "does not fit in 5"),
        (("alloc", "HARD", "--capacity", "18", "--steps", "0"), 4, "allow more steps or time"),
    ],
)
def test_statuses(
    words: tuple[str, ...],
    status: int,
    told: str,
    built: Built,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full.csv").write_text("id,lower,upper,size\na,0,2,3\nb,0,2,3\n", encoding="utf-8")
    rows = [f"{number},{row}" for number, row in enumerate(HARD.split())]
    (tmp_path / "hard.csv").write_text("id,lower,upper,size\n" + "\n".join(rows) + "\n", encoding="utf-8")
    files = {"MODEL": built.model, "GRAPH": built.graph, "PROGRAM": built.program, "DATA": built.labeled}
    files |= {"FULL": tmp_path / "full.csv", "HARD": tmp_path / "hard.csv"}
    done = command(*(files.get(word, word) for word in words))
    assert done.status == status, done.err
    assert told.lower() in done.err.lower()
    assert done.err.count("error: ") == 1


def test_a_budget_that_is_not_kept_is_below_the_bar(built: Built, command: Command, tmp_path: Path) -> None:
    layers = tmp_path / "layers.json"
    words = ("--budget", "cycles=0", "--steps", "2", "-o", layers)
    done = command("mixed", built.model, "--calib", built.calibration, *words)
    assert done.status == 3
    assert "the budget cycles=0 is exceeded" in done.err
    assert layers.is_file()


def test_check_and_build_agree_on_their_defaults() -> None:
    check, build = (inspect.signature(implementation(name)).parameters for name in ("check", "build"))  # type: ignore[arg-type]
    shared = check.keys() & build.keys()
    assert {"host", "machine", "batch", "config", "ranges", "input_shape"} <= shared
    for name in shared:
        assert check[name].default == build[name].default, name


@pytest.mark.feature("MSC-21")
def test_former_names_work_with_a_note(built: Built, command: Command, tmp_path: Path) -> None:
    arrays = tmp_path / "a.npz"
    arrays.write_bytes(built.calibration.read_bytes())
    for old, new, told in (
        (("steps", built.program), ("compare", built.program), "tpuflow steps is now tpuflow compare"),
        (("-q", "steps", built.program), ("-q", "compare", built.program), "tpuflow steps is now"),
        (
            ("npz", "compare", arrays, arrays),
            ("compare", arrays, arrays),
            "npz compare is now tpuflow compare",
        ),
        (("compare", arrays, arrays, "--excepts", "x"), ("compare", arrays, arrays), "--ignore-tensors"),
        (("compare", arrays, arrays, "--sample=1"), ("compare", arrays, arrays, "--tensors=1"), "--tensors"),
    ):
        before, after = command(*old), command(*new)
        assert (before.status, before.out) == (after.status, after.out) == (0, after.out)
        assert before.err.startswith("note: ") and told in before.err
        assert "note: " not in after.err


def test_words_behind_the_options_are_no_former_names(command: Command) -> None:
    assert "note: " not in command("inspect", "steps").err
    assert "note: " not in command("--memory-limit", "steps", "inspect", "x.tpu").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("PROGRAM", "--tolerance", "1,1"),
            "--tolerance has no effect where a program with its graph is compared",
        ),
        (
            ("MODEL", "PROGRAM", "--csv", "t.csv"),
            "--csv has no effect where a model with its program is compared",
        ),
        (("DATA", "DATA", "--batch", "2"), "--batch has no effect where two files of tensors are compared"),
        (("DATA",), "name a second file of tensors"),
        (("MODEL",), "name the program or graph to compare the model with"),
        (("DATA", "PROGRAM"), "not"),
    ],
)
def test_compare_refuses_what_has_no_effect(
    words: tuple[str, ...],
    told: str,
    built: Built,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"MODEL": built.model, "PROGRAM": built.program, "DATA": built.calibration}
    done = command("compare", *(files.get(word, word) for word in words))
    assert done.status == 1
    assert told in done.err


def test_what_check_finds_is_in_its_figures(built: Built, command: Command, tmp_path: Path) -> None:
    text, wrong, figures = tmp_path / "wrong.tpuasm", tmp_path / "wrong.tpu", tmp_path / "c.json"
    assert command("disasm", built.program, "-o", text).status == 0
    content = text.read_text(encoding="utf-8")
    assert " lo=-128" in content
    text.write_text(content.replace(" lo=-128", " lo=-3", 1), encoding="utf-8")
    assert command("asm", text, "-o", wrong).status == 0
    for program, passed in ((built.program, True), (wrong, False)):
        done = command("check", program, "--graph", built.graph, "--json", figures)
        found = json.loads(figures.read_text(encoding="utf-8"))
        assert (found["passed"], done.status) == (passed, 0 if passed else 1)
        assert bool(found["broken"]) != passed
