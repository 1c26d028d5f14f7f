"""What the commands do with a network that is in order."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cli.conftest import Built, Command
from models.make_models import MODELS
from tpuflow import _core
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import load
from tpuflow.partitioning import device_networks
from tpuflow.partitioning.storage import load_program
from tpuflow.report.words import BOUND_KEYS, BOUND_NAMES

UNITS = {"me", "ewp", "pdp", "dtl0", "dtl1"}
BOUNDS = {"array", "ddr", "ewp", "pdp", "ports", "flow", "segment", "path"}
STALLS = {"bank_conflict", "ddr", "dependency", "weight_load", "issue", "unit_busy"}
MEMORY = {
    "cache_peak_bytes",
    "cache_in_use_bytes",
    "cache_bytes",
    "ddr_read_bytes",
    "ddr_write_bytes",
    "spill_bytes",
}
LAYER = {
    "name", "op", "dtype", "unit", "start", "end", "busy", "busy_by_unit", "macs", "bound", "binding",
    "ddr_read_bytes", "ddr_write_bytes", "page_misses",
}  # fmt: skip
COMMANDS = (
    "build", "simulate", "calibrate", "quantize", "export", "run", "compare", "evaluate", "inspect", "check",
    "disasm", "asm", "ops", "fields", "plugins", "alloc",
)  # fmt: skip


def done(command: Command, *words: str | Path) -> str:
    result = command(*words)
    assert result.status == 0, result.err
    assert result.err == ""
    return result.out


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def check_figures(figures: dict[str, Any]) -> None:
    """The schema of `simulate --json`, and what its numbers must have to do with each other."""
    assert isinstance(figures["program"], str)
    assert figures["machine"] == "128x128_asic"
    assert figures["level"] == 5
    assert figures["cycles"] > 0
    assert figures["time_us"] == pytest.approx(figures["cycles"] * 1e6 / figures["clock_hz"])
    assert set(figures["utilization"]) == UNITS
    assert all(0 <= share <= 1 for share in figures["utilization"].values())
    assert set(figures["bounds"]) == BOUNDS | set(BOUND_KEYS.values())
    for key in BOUNDS:
        assert figures["bounds"][BOUND_KEYS[key]] == figures["bounds"][key]
    assert figures["binding_name"] == BOUND_NAMES[figures["binding"]]
    assert figures["bound"] == max(figures["bounds"].values()) <= figures["cycles"]
    assert figures["bounds"][figures["binding"]] == figures["bound"]
    assert set(figures["stalls"]) == STALLS
    assert set(figures["memory"]) == MEMORY
    in_use, end, size = (figures["memory"][f"cache_{what}bytes"] for what in ("in_use_", "peak_", ""))
    assert 0 < in_use <= end <= size
    assert figures["host_us"] == 0
    assert figures["host_seconds"] > 0
    assert figures["checker"] == "passed"
    assert figures["macs"] == sum(layer["macs"] for layer in figures["layers"])
    for layer in figures["layers"]:
        assert set(layer) == LAYER
        assert 0 <= layer["start"] < layer["end"] <= figures["cycles"]
        assert layer["dtype"] in ("int8", "int16", "int32")
    idle = sum(
        unit["end"] - unit["start"] - unit["busy"]
        for unit in figures["counters"]["units"]
        if unit["instructions"]
    )
    assert sum(figures["stalls"].values()) == idle


def test_build_figures(built: Built) -> None:
    figures = read(built.figures)
    check_figures(figures)
    stages = ("import", "calibrate", "quantize", "schedule", "write")
    assert tuple(figures["stages_seconds"]) == stages
    assert all(seconds > 0 for seconds in figures["stages_seconds"].values())
    assert figures["peak_rss_bytes"] > 1 << 20
    assert figures["host_subgraphs"] == []
    assert figures["fallback"] is None


def test_simulate_writes_all_it_is_asked_for(built: Built, command: Command, tmp_path: Path) -> None:
    files = {
        option: tmp_path / name
        for option, name in (
            ("--outputs", "y.npz"),
            ("--json", "s.json"),
            ("--report", "r.html"),
            ("--trace", "t.pftrace"),
        )
    }
    words = [word for pair in files.items() for word in pair]
    text = done(command, "simulate", built.program, "--inputs", built.calibration, "--layers", *words)
    figures = read(files["--json"])
    check_figures(figures)
    assert f"{figures['cycles']:,} cycles" in text
    for layer in figures["layers"]:
        assert layer["name"] in text
    with np.load(files["--outputs"]) as outputs:
        assert outputs[built.output].shape == (5, 6)
        assert outputs[built.output].dtype == np.float32
    assert sorted(tmp_path.iterdir()) == sorted(files.values())
    assert files["--report"].read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    timing = tmp_path / "timing.json"
    done(command, "simulate", built.program, "--timing-only", "--json", timing)
    assert read(timing)["cycles"] == figures["cycles"]


@pytest.mark.feature("LOW-07")
def test_every_level_takes_and_gives_floats(built: Built, command: Command, tmp_path: Path) -> None:
    arrays = {}
    for file in (built.model, built.graph, built.program):
        path = tmp_path / f"{file.suffix[1:]}.npz"
        done(command, "run", file, "--inputs", built.calibration, "--outputs", path)
        with np.load(path) as outputs:
            assert list(outputs) == [built.output]
            assert outputs[built.output].dtype == np.float32
            arrays[file.suffix] = outputs[built.output]
    assert np.array_equal(arrays[".tpuq"], arrays[".tpu"])
    assert not np.array_equal(arrays[".tpuq"], arrays[".onnx"])
    assert np.abs(arrays[".tpuq"] - arrays[".onnx"]).max() < 0.1 * np.abs(arrays[".onnx"]).max()


def test_all_tensors_of_float_and_graph(built: Built, command: Command, tmp_path: Path) -> None:
    names = []
    for file in (built.model, built.graph):
        path = tmp_path / "y.npz"
        done(command, "run", file, "--inputs", built.calibration, "--outputs", path, "--all-tensors")
        with np.load(path) as tensors:
            assert all(array.shape[0] == 5 for array in tensors.values())
            names.append(set(tensors))
    shared = names[0] & names[1]
    assert built.output in shared
    assert len(shared) >= 4


def test_stages_on_their_own_make_the_same_program(built: Built, command: Command, tmp_path: Path) -> None:
    ranges, graph, program = tmp_path / "r.json", tmp_path / "m.tpuq", tmp_path / "m.tpu"
    done(command, "calibrate", built.model, "--calib", built.calibration, "-o", ranges)
    done(command, "quantize", built.model, "--ranges", ranges, "-o", graph)
    assert graph.read_bytes() == built.graph.read_bytes()
    done(command, "build", graph, "-O5", "-o", program)
    assert program.read_bytes() == built.program.read_bytes()
    done(command, "build", built.model, "-O5", "--ranges", ranges, "-o", program)
    assert program.read_bytes() == built.program.read_bytes()


@pytest.mark.feature("IMP-08", "SCH-37")
def test_stages_are_saved_and_the_default_name_says_it_all(
    built: Built, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = done(command, "build", built.model, "--machine", "32x32_fpga", "--save-stages", "stages")
    assert "accuracy is not calibrated" in text
    assert "times smaller than" in text
    assert Path("tiny_b1_o1_32x32_fpga.tpu").is_file()
    stages = {path.name for path in Path("stages").iterdir()}
    assert stages - {"origin.data"} == {
        "origin.onnx", "canonical.onnx", "calibrated.onnx", "ranges.json", "model.tpuq", "groups.json",
        "addresses.json",
    }  # fmt: skip
    for name in stages - {"origin.data", "groups.json", "addresses.json"}:
        assert done(command, "inspect", f"stages/{name}")
    paths = (Path("stages/origin.onnx"), built.model)
    origin, model = (onnx.load(path, load_external_data=False) for path in paths)
    assert [node.op_type for node in origin.graph.node] == [node.op_type for node in model.graph.node]
    outside = [tensor.name for tensor in origin.graph.initializer if tensor.external_data]
    assert bool(outside) == Path("stages/origin.data").is_file()
    assert [port.shape for port in load("stages/origin.onnx").outputs] == [(1, 6)]


@pytest.mark.feature("CMP-05")
def test_every_tensor_of_every_stage_is_compared(built: Built, command: Command, tmp_path: Path) -> None:
    figures = tmp_path / "c.json"
    words = ("compare", built.model, built.program, "--inputs", built.calibration, "--samples", "3")
    text = done(command, *words, "--json", figures, "--tolerance", "0.9,0.5")
    assert "graph and program: equal in every bit" in text
    found = read(figures)
    assert found["bit_equal"] is True
    assert found["samples"] == 3
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert tensors[built.output]["equal"] is True
    # The program shows what its instructions make, not the outputs alone.
    made = {row["name"] for row in found["tensors"] if row["equal"]}
    graph = GraphLevel(_core.Graph.load(built.graph))
    results = {graph.graph.tensors[layer.output].name for layer in graph.graph.layers}
    assert made == {port.name for name, port in graph.shown.items() if name in results} > {built.output}
    assert tensors[built.output]["normalized"]["cosine"] == pytest.approx(1)
    compared = [tensor for tensor in tensors.values() if tensor["quantized"]]
    assert len(compared) >= 4
    assert all(0.9 < tensor["quantized"]["cosine"] <= 1 for tensor in compared)
    # Quantisation shows: the second arrow is never perfect everywhere.
    assert any(tensor["quantized"]["max_error"] > 0 for tensor in compared)


@pytest.mark.feature("CMP-19")
def test_measures_of_two_sets_of_samples(built: Built, command: Command, tmp_path: Path) -> None:
    """Every layer's similarity, noise and error on calibration and on validation samples, in one file."""
    figures, validation = tmp_path / "quant_report.json", tmp_path / "validation.npz"
    with np.load(built.calibration) as arrays:
        np.savez(validation, **{name: 0.5 * array[:2] for name, array in arrays.items()})
    words = ("compare", built.model, built.program, "--inputs", built.calibration, "--samples", "2")
    text = done(command, *words, "--validation", validation, "--json", figures)
    assert text.count("worst of each tensor") == 2 and str(validation) in text
    found = read(figures)
    alone = tmp_path / "alone.json"
    done(command, *words[:3], "--inputs", validation, "--samples", "2", "--json", alone)
    assert {"format": 2} | found["validation"] == read(alone)
    sets = [{row["name"]: row for row in each["tensors"]} for each in (found, found["validation"])]
    assert sets[0].keys() == sets[1].keys() and built.output in sets[0]
    for row in (row for each in sets for row in each.values() if row["quantized"]):
        assert {"cosine", "sqnr", "mse"} <= row["quantized"].keys()
    assert any(row["quantized"] != sets[1][name]["quantized"] for name, row in sets[0].items())


def test_evaluate_pairs_the_levels(built: Built, command: Command, tmp_path: Path) -> None:
    figures = tmp_path / "e.json"
    words = ("--data", built.labeled, "--float", built.model, "--json", figures)
    found = []
    for file in (built.graph, built.program):
        done(command, "evaluate", file, "--metric", "top1", *words)
        found.append(read(figures))
    graph, program = found
    for each in found:
        assert [each.pop("metrics")[0] | {"format": 2}] == [each]
    assert graph.pop("level") == "graph"
    assert program.pop("level") == "program"
    assert graph == program
    share = graph["value"] - graph["reference"]
    assert share == pytest.approx((graph["wrong_to_right"] - graph["right_to_wrong"]) / 5)
    assert graph["sqnr_db"] > 20
    shown = done(command, "evaluate", built.program, "--metric", "top(2),f1(micro),rmse", *words)
    several = read(figures)["metrics"]
    assert [each["metric"] for each in several] == ["top(2)", "f1(micro)", "rmse"]
    assert several[1]["value"] == program["value"]
    assert several[2]["value"] > 0 and several[2]["reference"] is None
    assert "rmse of 5 samples" in shown


@pytest.mark.feature("SCH-28")
def test_instructions_and_constants_come_back_from_the_disassembler(
    built: Built, command: Command, tmp_path: Path
) -> None:
    text = tmp_path / "t.tpuasm"
    text.write_text(done(command, "disasm", built.program), encoding="utf-8")
    done(command, "asm", text)
    assert (tmp_path / "t.tpu").read_bytes() == built.program.read_bytes()
    lines = text.read_text(encoding="utf-8").splitlines()
    instructions = [line for line in lines if line.split(" ")[0] in UNITS]
    assert f"{len(instructions):,} instructions" in done(command, "inspect", built.program)
    sizes = [int(line.split()[2]) for line in lines if line.startswith("constants ")]
    (program,) = device_networks(load_program(built.program))
    assert sizes == [len(image) for image in program.constants()]
    assert sum(sizes) > 0


def test_check(built: Built, command: Command, tmp_path: Path) -> None:
    assert "computes" in done(command, "check", built.program)
    alone = tmp_path / "alone.tpu"
    alone.write_bytes(built.program.read_bytes())
    assert "not followed" in done(command, "check", alone)
    assert "every node" in done(command, "check", built.model)
    # A program that no longer waits for its weights obeys no rule; neither does one of another constant.
    text = done(command, "disasm", built.program)
    line = next(line for line in text.splitlines() if line.startswith("me ") and "wait=[" in line)
    start, end = line.index("wait=["), line.index("]")
    hasty = tmp_path / "hasty.tpuasm"
    hasty.write_text(text.replace(line, line[:start] + line[end + 2 :]), encoding="utf-8")
    done(command, "asm", hasty)
    result = command("check", tmp_path / "hasty.tpu")
    assert result.status == 1
    assert "broken rules" in result.err


def test_listings(built: Built, command: Command, tmp_path: Path) -> None:
    listed = dict(line.split(maxsplit=1) for line in done(command, "ops").splitlines()[3:] if line.strip())
    assert listed["Conv"].strip() == "int8, int16, f16, bf16, f32"
    assert listed["And"].strip() == "truth values"
    machines = done(command, "machine", "list")
    for name in ("128x128_asic", "32x32_fpga"):
        assert name in machines
        text = done(command, "machine", "show", name)
        assert tomllib.loads(text)["name"] == name
    path = tmp_path / "same.toml"
    path.write_text(done(command, "machine", "show", "128x128_asic"), encoding="utf-8")
    program = tmp_path / "same.tpu"
    done(command, "build", built.graph, "-O5", "--machine", path, "-o", program)
    assert program.read_bytes() == built.program.read_bytes()
    done(command, "simulate", built.program, "--machine", path)
    fields = done(command, "fields")
    for part in ("[quantize]", "[calibrate]", "[[layers]]", "activation_mode", "percentile", "int8 or int16"):
        assert part in fields


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_command(command: Command, name: str) -> None:
    text = done(command, name, "--help")
    assert "Usage:" in text
    assert name in done(command, "--help")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom tpuflow.cli import main\nsys.argv = ['tpuflow', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'onnx', 'onnxruntime', 'pydantic', 'jinja2') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_what_adds_sizes_with_names_is_executed_when_it_is_asked() -> None:
    program = (
        "import sys\nfrom tpuflow.cli.lazy import ALGEBRA, defer\ndefer(*ALGEBRA)\n"
        "import onnx_ir\nbefore = 'sympy.core' in sys.modules\n"
        "size = onnx_ir.SymbolicDim('n') * 2 + onnx_ir.SymbolicDim('max(n, 2)')\n"
        "print(before, 'sympy.core' in sys.modules, size)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False True 2*n + Max(2, n)"


def test_a_plain_network_is_built_without_what_it_does_not_need(tmp_path: Path) -> None:
    onnx.save(MODELS["plain"](), tmp_path / "plain.onnx")
    program = (
        "import sys\nfrom tpuflow.cli import main\nsys.argv = ['tpuflow', 'build', 'plain.onnx']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "print([m for m in ('sympy.core', 'onnxscript', 'jinja2', 'torch') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_functions_are_there_in_any_order() -> None:
    program = (
        "import tpuflow, tpuflow.execution.simulation\nfrom tpuflow.calibration import Ranges\n"
        "import tpuflow.compiler.program\nfrom tpuflow import quantize\n"
        "modules = {'kernels', 'reference', 'runtime'}\n"
        "print(all(callable(getattr(tpuflow, name)) for name in set(tpuflow.__all__) - modules), "
        "tpuflow.Ranges is Ranges)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True True"
