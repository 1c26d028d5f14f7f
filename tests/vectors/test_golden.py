"""Golden vectors of layers of small networks, read back by a script that needs no package."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cli.conftest import run_command, tiny
from conftest import slow_except
from models import make_models
from models.builder import Builder, samples
from tpuflow import _core
from tpuflow.cli.commands import golden as golden_command
from tpuflow.execution.simulation import program_ports, random_feed
from tpuflow.execution.vectors import LayerVectors, estimated_bytes

READER = Path(__file__).with_name("read_vectors.py")


def read_back(folder: Path) -> subprocess.CompletedProcess[str]:
    """What the script says, in an interpreter that finds no package."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(READER), str(folder)], capture_output=True, text=True, check=False
    )


def golden(program: Path, layer: object, folder: Path, *words: object) -> dict[str, Any]:
    done = run_command("golden", program, "--layer", str(layer), "-o", folder, *map(str, words))
    assert done.status == 0, done.err
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


@pytest.fixture(scope="module")
def tiny_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("golden"), "tiny", tiny())


def build(folder: Path, name: str, network: onnx.ModelProto, *words: str) -> Path:
    model, program, calibration = (folder / f"{name}{suffix}" for suffix in (".onnx", ".tpu", ".npz"))
    onnx.save(network, model)
    np.savez(calibration, allow_pickle=False, **samples(network, 2))
    calib = () if words else ("--calib", calibration)
    done = run_command("build", model, "-O5", *calib, "-o", program, *words)
    assert done.status == 0, done.err
    return program


def layers(program: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_core.Program.load(program).metadata())["layers"]
    return found


NETWORKS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[str, ...]]] = {
    "tiny": (tiny, ()),
    "floats": (tiny, ("--dtype", "bf16")),
    "embedding": (make_models.embedding, ()),
    "attention": (make_models.attention, ()),
}


@pytest.mark.parametrize("name", slow_except(["tiny"], NETWORKS))
@pytest.mark.feature("SUB-03")
def test_every_layer_is_read_back_without_the_package(name: str, tmp_path: Path) -> None:
    make, words = NETWORKS[name]
    program = build(tmp_path, name, make(), *words)
    content = json.loads(_core.Program.load(program).to_json())
    kinds = {
        (each["unit"], content["layers"][each["layer"]]["op"]): each["layer"]
        for each in content["instructions"]
        if not each["unit"].startswith("dtl") or "Lookup" in each["work"]
    }
    whole = 0
    for number in kinds.values():
        folder = tmp_path / str(number)
        manifest = golden(program, number, folder, "--inputs", program.with_suffix(".npz"))
        answer = read_back(folder)
        assert answer.returncode == 0, (manifest["layer"], answer.stderr)
        result = next(each for each in manifest["tensors"] if each["role"] == "output")
        whole += json.loads(answer.stdout)["held"] == int(np.prod(result["shape"]))
        shutil.rmtree(folder)
    # What moves data alone is not located; of a small network everything else stays in the cache.
    assert whole >= len(kinds) / 2


@pytest.mark.feature("SUB-03")
def test_a_layer_is_found_by_name_and_its_vectors_repeat(tiny_program: Path, tmp_path: Path) -> None:
    name = layers(tiny_program)[0]["name"]
    first = golden(tiny_program, name, tmp_path / "by_name")
    again = golden(tiny_program, 0, tmp_path / "by_number")
    assert first == again
    assert first["layer"]["name"] == name
    figures = tmp_path / "figures.json"
    golden(tiny_program, 0, tmp_path / "third", "--json", figures)
    assert json.loads(figures.read_text()) == first


def changed(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """A file changed as somebody would who also states its new hash."""
    manifest = json.loads((folder / "manifest.json").read_text())
    content = change((folder / name).read_bytes())
    (folder / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"][name] = {"bytes": len(content), "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def flipped(content: bytes) -> bytes:
    """The last digit is another one."""
    at = max(position for position, byte in enumerate(content) if byte in b"01")
    return content[:at] + (b"1" if content[at : at + 1] == b"0" else b"0") + content[at + 1 :]


@pytest.mark.slow
def test_the_script_notices_every_file_that_is_changed(tiny_program: Path, tmp_path: Path) -> None:
    manifest = golden(tiny_program, 0, tmp_path / "whole")
    # Nothing else says what these hold.
    alone = {"units.csv", "channels.csv", "instructions.csv", "instructions.tpuasm", "others.tpuasm"}
    for name in sorted(set(manifest["files"]) - alone):
        shutil.copytree(tmp_path / "whole", tmp_path / "changed")
        content = bytearray((tmp_path / "changed" / name).read_bytes())
        if not content:
            shutil.rmtree(tmp_path / "changed")
            continue
        if name.endswith(".bin"):
            content[-1] ^= 1
            (tmp_path / "changed" / name).write_bytes(content)
            assert "altered" in read_back(tmp_path / "changed").stderr
            changed(tmp_path / "changed", name, lambda same: same)
        else:
            changed(tmp_path / "changed", name, flipped)
        assert read_back(tmp_path / "changed").returncode == 1, name
        shutil.rmtree(tmp_path / "changed")


def test_the_script_notices_a_result_at_another_place(tiny_program: Path, tmp_path: Path) -> None:
    manifest = golden(tiny_program, 0, tmp_path / "whole")
    output = next(each for each in manifest["tensors"] if each["role"] == "output")
    output["places"][0][0] += 1
    (tmp_path / "whole" / "manifest.json").write_text(json.dumps(manifest))
    assert "of the cache" in read_back(tmp_path / "whole").stderr


TESTBENCH = """
module testbench;
  reg [{high}:0] words [0:{last}];
  integer word;
  initial begin
    $readmemh("{file}", words);
    for (word = 0; word <= {last}; word = word + 1)
      if (words[word] !== {{{width}{{1'bx}}}}) $display("%0d %h", word, words[word]);
    $finish;
  end
endmodule
"""


def read_by_verilog(file: Path, width: int, words: int, folder: Path) -> dict[int, str]:
    """Words that Icarus Verilog finds in a file."""
    source, binary = folder / "testbench.v", folder / "testbench.vvp"
    source.write_text(TESTBENCH.format(high=width - 1, last=words - 1, width=width, file=file))
    subprocess.run(["iverilog", "-g2005", "-o", str(binary), str(source)], check=True, capture_output=True)
    done = subprocess.run(["vvp", "-n", str(binary)], check=True, capture_output=True, text=True)
    assert "ERROR" not in done.stdout + done.stderr, done.stdout
    lines = (line.split() for line in done.stdout.splitlines() if line[:1].isdecimal())
    return {int(word): digits for word, digits in lines}


@pytest.mark.slow
def test_icarus_verilog_reads_the_same_words(tiny_program: Path, tmp_path: Path) -> None:
    if shutil.which("iverilog") is None:
        pytest.skip(
            "iverilog is not installed: $readmemh itself was not tried (Debian: apt-get install iverilog)"
        )
    folder = tmp_path / "vectors"
    manifest = golden(tiny_program, layers(tiny_program)[0]["name"], folder)
    for each in manifest["memories"]:
        content = (folder / each["after"]["binary"]).read_bytes()
        size = each["word_bytes"]
        found = read_by_verilog(folder / each["after"]["hex"], 8 * size, each["words"], tmp_path)
        numbers = [word for first, count in each["after"]["runs"] for word in range(first, first + count)]
        assert sorted(found) == numbers
        for position, number in enumerate(numbers):
            wanted = content[position * size : (position + 1) * size][::-1].hex()
            got = found[number].lower()
            assert all(a in ("x", b) for a, b in zip(got, wanted, strict=True)), (each["name"], number)
    output = next(each for each in manifest["tensors"] if each["role"] == "output")
    codes = (folder / output["binary"]).read_bytes()
    found = read_by_verilog(folder / output["hex"], 8, len(codes), tmp_path)
    assert bytes(int(found[number], 16) for number in range(len(codes))) == codes


@pytest.mark.parametrize("values", [0, 1])
def test_signals_of_all_cycles_are_what_a_run_counts(tiny_program: Path, values: int) -> None:
    program = _core.Program.load(tiny_program)
    feed = random_feed(program, values)
    codes = [port.encode(feed[port.name]) for port in program_ports(program)[0]]
    run = _core.simulate(program, codes)
    counters = json.loads(run.to_json())["counters"]
    signals = _core.signals(program, codes, 0, run.cycles, 1 << 30)
    requests = signals.requests.astype(np.int64)
    granted = requests[requests[:, 5] == 1]
    per_bank = json.loads(program.to_json())["machine"]["cache"]["words"]
    banks = np.bincount(granted[:, 3] // per_bank, minlength=len(counters["bank_accesses"]))
    assert banks.tolist() == counters["bank_accesses"]
    refused = np.bincount(requests[requests[:, 5] == 0][:, 1], minlength=len(signals.ports))
    assert refused.tolist() == np.array(counters["bank_conflicts"]).sum(axis=0).tolist()
    assert sum(counters["bank_accesses"]) > 0
    assert refused.sum() > 0
    states = signals.states.astype(np.int64)
    for unit, counted in enumerate(counters["units"]):
        own = states[states[:, 1] == unit]
        spans = np.diff(np.append(own[:, 0], run.cycles))
        assert spans[own[:, 2] > 0].sum() == counted["busy"]
        for number, stall in enumerate(signals.stalls, 1):
            assert spans[own[:, 3] == number].sum() == counted["stalls"][stall]


def test_windows_side_by_side_are_the_whole(tiny_program: Path) -> None:
    program = _core.Program.load(tiny_program)
    feed = random_feed(program, 0)
    codes = [port.encode(feed[port.name]) for port in program_ports(program)[0]]
    cycles = _core.simulate(program, codes).cycles
    whole = _core.signals(program, codes, 0, cycles, 1 << 30)
    middle = int(whole.requests[len(whole.requests) // 2, 0])
    parts = [_core.signals(program, codes, *span, 1 << 30) for span in ((0, middle), (middle, cycles))]
    assert np.array_equal(whole.requests, np.concatenate([part.requests for part in parts]))
    for part, (begin, end) in zip(parts, ((0, middle), (middle, cycles)), strict=True):
        for name in ("states", "channels"):
            events, found = getattr(whole, name).tolist(), getattr(part, name).tolist()
            inside = [event for event in events if begin < event[0] < end]
            assert [event for event in found if event[0] > begin] == inside
            # In the first cycle everything is said that holds then.
            said = {event[1]: event[2:] for event in found if event[0] == begin}
            held = {event[1]: event[2:] for event in events if event[0] <= begin}
            assert all(said.get(key, [0, 0]) == value for key, value in held.items())


def test_only_the_cycles_asked_for_are_traced(tiny_program: Path, tmp_path: Path) -> None:
    whole = golden(tiny_program, 0, tmp_path / "whole")
    begin, end = whole["layer"]["begin"], whole["layer"]["end"]
    part = golden(tiny_program, 0, tmp_path / "part", "--cycles", f"{begin + 5}:{end - 5}")
    assert (part["trace"]["begin"], part["trace"]["end"]) == (begin + 5, end - 5)
    assert read_back(tmp_path / "part").returncode == 0
    rows = [(tmp_path / name / "ports.csv").read_text().splitlines() for name in ("whole", "part")]
    inside = [row for row in rows[0][1:] if begin + 5 <= int(row.split(",")[0]) < end - 5]
    assert rows[1][1:] == inside
    assert part["memories"] == whole["memories"]


def test_the_size_is_estimated_and_limited_before_anything_is_written(
    tiny_program: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "vectors"
    made: list[LayerVectors] = []

    def kept(vectors: LayerVectors) -> int:
        made.append(vectors)
        return estimated_bytes(vectors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpuflow.execution.vectors.estimated_bytes", kept)
        golden(tiny_program, 0, folder)
    written = sum(path.stat().st_size for path in folder.iterdir())
    assert written <= estimated_bytes(made[0]) <= 3 * written
    done = run_command("golden", tiny_program, "-l", "0", "-o", tmp_path / "none", "--limit", "50K")
    assert done.status == 1
    assert "--cycles A:B" in done.err
    assert not (tmp_path / "none").exists()
    done = run_command("golden", tiny_program, "-l", "0", "-o", tmp_path / "none", "--limit", "1K")
    assert done.status == 1
    assert "events: ask for fewer cycles" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-l", "nothing"], 'layer "nothing" is unknown: '),
        (["-l", "0", "--cycles", "5"], "--cycles 5: write the first cycle and one past the last"),
        (["-l", "0", "--cycles", "9:9"], "--cycles 9:9: the first cycle must lie before the last"),
        (["-l", "0", "--cycles", "0:99999999"], "the program has cycles 0 to "),
        (["-l", "0", "--limit", "lots"], "--limit lots: expected a number of bytes"),
    ],
)
def test_requests_that_make_no_sense_are_one_line(
    tiny_program: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    done = run_command("golden", tiny_program, *words, "-o", tmp_path / "none")
    assert (done.status, done.err.count("\n")) == (1, 1), done.err
    assert message in done.err
    assert not (tmp_path / "none").exists()


def test_a_folder_that_holds_something_is_left_alone(tiny_program: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = run_command("golden", tiny_program, "-l", "0", "-o", tmp_path)
    assert (done.status, done.err) == (
        1,
        f"error: {tmp_path}: is a folder that is not empty: remove it, or name another\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_is_complete_or_absent(
    tiny_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tpuflow.execution.vectors.writer.write_json", full)
    done = run_command("golden", tiny_program, "-l", "0", "-o", tmp_path / "none")
    assert done.status == 1
    assert "none: cannot be written: no space left on device" in done.err
    assert not list(tmp_path.iterdir())


def test_a_program_that_does_not_compute_its_graph_gives_no_vectors(
    tiny_program: Path, tmp_path: Path
) -> None:
    other = Builder("tiny", seed=1)
    x = other.node("Relu", other.conv(other.input("image", [1, 3, 9, 7]), 8, pads=(1, 1, 1, 1)))
    x = other.node("Add", x, other.conv(x, 8, (1, 1)))
    other.output(other.gemm(other.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 6))
    wrong = build(tmp_path, "other", other.model())
    done = run_command(
        "golden", tiny_program, "-l", "0", "--graph", wrong.with_suffix(".tpuq"), "-o", tmp_path / "v"
    )
    assert done.status == 1
    assert "writes other codes than the graph has" in done.err
    assert not (tmp_path / "v").exists()


def test_the_command_starts_without_its_work() -> None:
    assert "numpy" not in vars(golden_command)


def test_a_layer_without_instructions_names_those_beside_it(tmp_path: Path) -> None:
    b = Builder("joined")
    x = b.input("x", [1, 4, 6, 6])
    branches = [b.conv(x, 4, pads=(1, 1, 1, 1)), b.conv(x, 4, (1, 1))]
    b.output(b.conv(b.node("Concat", *branches, axis=1), 4))
    program = build(tmp_path, "joined", b.model())
    rows = json.loads(_core.Program.load(program).to_json())
    own = {instruction["layer"] for instruction in rows["instructions"]}
    silent = [row["name"] for at, row in enumerate(rows["layers"]) if at not in own]
    assert silent
    done = run_command("golden", program, "--layer", silent[0], "-o", tmp_path / "vectors")
    assert done.status == 1 and not (tmp_path / "vectors").exists()
    named = done.err.split("take ")[1]
    assert any(f'"{row["name"]}"' in named for at, row in enumerate(rows["layers"]) if at in own)
