"""`bundle`, `weights`, `disasm` and `run` as tools for program files."""

from __future__ import annotations

import json
import zipfile
from copy import copy
from pathlib import Path

import numpy as np
import onnx
import pytest

from cli.conftest import Built, Command, tiny
from tpuflow import _core
from tpuflow.errors import FileError, ProgramError
from tpuflow.partitioning import Partitioned
from tpuflow.partitioning.storage import load_graph, load_program
from tpuflow.pipeline.bundle import Bundle, TestData, load_bundle, run_tests
from tpuflow.pipeline.constants import weights_of, with_weights


@pytest.mark.feature("PRG-13")
def test_combine_then_extract_gives_the_originals(command: Command, built: Built, tmp_path: Path) -> None:
    raw = tmp_path / "tiny.raw.tpu"
    assert command("raw", built.program, "-o", raw).status == 0
    both = tmp_path / "both.tpub"
    done = command("bundle", "combine", built.program, raw, built.program, "-o", both)
    assert done.status == 0, done.err
    assert list(load_bundle(both).programs) == ["tiny", "tiny.raw", "tiny.2"]
    assert "tiny.raw" in command("bundle", "list", both).out
    for name, source in (("tiny", built.program), ("tiny.raw", raw), ("tiny.2", built.program)):
        target = tmp_path / "out.tpu"
        assert command("bundle", "extract", both, name, "-o", target).status == 0
        assert target.read_bytes() == source.read_bytes()
    again = tmp_path / "again.tpub"
    assert command("bundle", "combine", built.program, raw, built.program, "-o", again).status == 0
    assert again.read_bytes() == both.read_bytes()
    nested = tmp_path / "nested.tpub"
    assert command("bundle", "combine", both, "-o", nested).status == 0
    assert list(load_bundle(nested).programs) == ["both.tiny", "both.tiny.raw", "both.tiny.2"]
    missing = command("bundle", "extract", both, "none", "-o", tmp_path / "x.tpu")
    assert missing.status == 1 and 'no program "none", it has tiny' in missing.err


def test_bundles_that_unpack_to_more_than_their_bytes_are_refused_at_once(
    command: Command, built: Built, tmp_path: Path
) -> None:
    sound, bomb, twice = (tmp_path / f"{name}.tpub" for name in ("sound", "bomb", "twice"))
    assert command("bundle", "combine", built.program, "-o", sound).status == 0
    with zipfile.ZipFile(sound) as members, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.json", members.read("bundle.json"))
        archive.writestr("programs/tiny.tpu", bytes(1 << 24))
    content = sound.read_bytes()
    with zipfile.ZipFile(twice, "w") as archive:
        # Thousands of members whose entries all lead to the same bytes.
        archive.writestr("programs/0.tpu", content)
        first = archive.infolist()[0]
        for number in range(1, 1000):
            entry = copy(first)
            entry.filename = f"programs/{number}.tpu"
            archive.filelist.append(entry)
    for file in (bomb, twice):
        for words in (("list", file), ("test", file), ("extract", file, "tiny", "-o", tmp_path / "x.tpu")):
            done = command("bundle", *words)
            assert done.status == 1 and "more than the file" in done.err, done.err
    assert not (tmp_path / "x.tpu").exists()


def test_groups_offer_no_completion_of_their_own(command: Command) -> None:
    for group in ("bundle", "npz", "weights", "machine"):
        assert "completion" not in command(group, "--help").out


@pytest.mark.feature("PRG-10")
def test_recorded_tests_run_and_tell_what_differs(command: Command, built: Built, tmp_path: Path) -> None:
    file = tmp_path / "tiny.tpub"
    done = command("bundle", "record", built.program, "--inputs", built.calibration, "-o", file)
    assert done.status == 0, done.err
    done = command("bundle", "test", file)
    assert done.status == 0, done.err
    assert "1 programs, 5 samples, every output as recorded" in done.out
    found = load_bundle(file)
    data = found.tests["tiny"]
    outputs = {name: array.copy() for name, array in data.outputs.items()}
    outputs[built.output][3, 2] += 1
    Bundle(found.programs, {"tiny": TestData(data.inputs, outputs)}).save(file)
    wrong = command("bundle", "test", file)
    assert wrong.status == 3
    assert "1 of 30 elements, first at [3, 2]" in wrong.err
    listed = json.loads(command("bundle", "list", file, "--json", "-").out)
    assert listed["programs"]["tiny"]["test_samples"] == 5
    figures = json.loads(command("bundle", "test", file, "--json", "-").out)
    assert figures["samples"] == 5 and "first at [3, 2]" in figures["differences"][0]
    with pytest.raises(ProgramError, match="tpuflow bundle record"):
        run_tests(Bundle(found.programs))


def test_broken_bundles_are_refused(command: Command, built: Built, tmp_path: Path) -> None:
    file = tmp_path / "tiny.tpub"
    assert command("bundle", "combine", built.program, "-o", file).status == 0
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "altered.tpub").write_bytes(content)
    (tmp_path / "cut.tpub").write_bytes(content[:-30])
    with zipfile.ZipFile(tmp_path / "later.tpub", "w") as archive:
        archive.writestr("bundle.json", '{"format": 7, "programs": [], "tests": []}')
    for name, message in (("altered", "altered"), ("cut", "cut short"), ("later", "format 7 .*reads 1")):
        with pytest.raises(FileError, match=rf"{name}\.tpub: .*{message}"):
            load_bundle(tmp_path / f"{name}.tpub")
    with pytest.raises(FileError, match="no such file"):
        load_bundle(tmp_path / "none.tpub")


def whole(path: Path) -> _core.Graph:
    graph = load_graph(path)
    assert not isinstance(graph, Partitioned)
    return graph


@pytest.mark.feature("PRG-13", "IMP-30")
def test_update_changes_constants_only(command: Command, built: Built, tmp_path: Path) -> None:
    retrained = tiny()
    weights = next(each for each in retrained.graph.initializer if each.dims == [8, 3, 3, 3])
    array = onnx.numpy_helper.to_array(weights)
    weights.CopyFrom(onnx.numpy_helper.from_array((array * 0.9 + 0.01).astype(np.float32), weights.name))
    onnx.save(retrained, tmp_path / "newer.onnx")
    ranges = tmp_path / "ranges.json"
    assert command("calibrate", built.model, "--calib", built.calibration, "-o", ranges).status == 0
    for dtype in ("int8", "int16"):
        words = ("--ranges", ranges, "--dtype", dtype, "-o", tmp_path / f"newer.{dtype}.tpuq")
        done = command("quantize", tmp_path / "newer.onnx", *words)
        assert done.status == 0, done.err
    newer = tmp_path / "newer.int8.tpuq"
    done = command("weights", "update", built.program, newer, "-o", tmp_path / "newer.tpu")
    assert done.status == 0, done.err
    old, new = load_program(built.program), load_program(tmp_path / "newer.tpu")
    assert isinstance(old, _core.Program) and isinstance(new, _core.Program)
    assert old.to_json() == new.to_json() and old.constants() != new.constants()
    assert _core.check(whole(newer), new) == []
    assert with_weights(old, whole(built.graph)).constants() == old.constants()  # type: ignore[union-attr]
    with pytest.raises(ProgramError, match="would change, too"):
        with_weights(old, whole(tmp_path / "newer.int16.tpuq"))


@pytest.mark.feature("PRG-13", "IMP-30")
def test_constants_by_name(command: Command, built: Built, tmp_path: Path) -> None:
    assert command("weights", "dump", built.graph, "-o", tmp_path / "w.npz").status == 0
    graph = whole(built.graph)
    with np.load(tmp_path / "w.npz") as arrays:
        assert set(arrays) == {tensor.name for tensor in graph.tensors if tensor.is_constant}
        for name, array in weights_of(graph).items():
            np.testing.assert_array_equal(arrays[name], array)


@pytest.mark.feature("PRG-16")
def test_text_and_back_to_the_same_bytes(command: Command, built: Built, tmp_path: Path) -> None:
    text, again = tmp_path / "tiny.tpuasm", tmp_path / "again.tpu"
    assert command("disasm", built.program, "-o", text).status == 0
    assert command("asm", text, "-o", again).status == 0
    assert again.read_bytes() == built.program.read_bytes()
    program = load_program(built.program)
    assert isinstance(program, _core.Program)
    names = {layer.name for layer in whole(built.graph).layers}
    lines = [line for line in text.read_text().splitlines() if line.split(" ")[0] in ("me", "ewp", "pdp")]
    assert lines and all(line.rpartition("; ")[2].split(" ", 1)[1] in names for line in lines)


@pytest.mark.feature("PRG-12")
def test_one_command_at_every_stage(command: Command, built: Built, tmp_path: Path) -> None:
    for name, file in (("float", built.model), ("graph", built.graph), ("program", built.program)):
        done = command("run", file, "--inputs", built.calibration, "--outputs", tmp_path / f"{name}.npz")
        assert done.status == 0, done.err
    same = command("compare", tmp_path / "graph.npz", tmp_path / "program.npz", "--stage", "program")
    assert same.status == 0 and "1 EQUAL" in same.out
    alike = command("compare", tmp_path / "float.npz", tmp_path / "graph.npz", "--stage", "quantize")
    assert alike.status == 0 and "1 SIMILAR" in alike.out
