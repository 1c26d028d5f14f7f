"""Files of earlier versions are read and mean what they meant; later ones are refused with both versions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Command
from conftest import REPOSITORY
from tpuflow.runtime import Codec, Device

FORMATS = REPOSITORY / "tests" / "formats"
VERSIONS = sorted(path for path in FORMATS.iterdir() if path.is_dir())

# Programs with 16-bit pools, since the width of their results counts no more (CHANGELOG.md, Schedules).
CYCLES = {
    "a29a9a2": {"f16.o1.tpu": 3160, "f16.o5.tpu": 2842, "int16.o1.tpu": 3493, "int16.o5.tpu": 2893},
}


def arrays(path: Path) -> dict[str, object]:
    with np.load(path) as found:
        return {name: (array.dtype.str, array.tolist()) for name, array in found.items()}


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest) -> Path:
    """A folder of files that one version wrote, with what it computed (`tests/formats/make.py`)."""
    folder = request.param
    assert isinstance(folder, Path)
    return folder


def test_old_programs_compute_the_same_bits(command: Command, old: Path, tmp_path: Path) -> None:
    cycles = json.loads((old / "cycles.json").read_text()) | CYCLES.get(old.name, {})
    assert len(cycles) == 7
    for name in cycles:
        outputs, figures = tmp_path / "outputs.npz", tmp_path / "figures.json"
        words = ["--inputs", old / "inputs.npz", "--outputs", outputs, "--json", figures]
        done = command("simulate", old / name, *words)
        assert done.status == 0, done.err
        assert arrays(outputs) == arrays((old / name).with_suffix(".outputs.npz")), name
        assert json.loads(figures.read_text())["cycles"] == cycles[name], name


def test_old_graphs_compute_the_bits_of_their_programs(command: Command, old: Path, tmp_path: Path) -> None:
    for name in ("int8", "int16", "f16", "segments"):
        outputs = tmp_path / "outputs.npz"
        done = command("run", old / f"{name}.tpuq", "--inputs", old / "inputs.npz", "--outputs", outputs)
        assert done.status == 0, done.err
        program = "segments" if name == "segments" else f"{name}.o5"
        assert arrays(outputs) == arrays(old / f"{program}.outputs.npz"), name


def test_old_texts_assemble_to_their_programs(command: Command, old: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a.tpu", tmp_path / "b.tpuasm"
    done = command("asm", old / "int8.o5.tpuasm", "-o", ours)
    assert done.status == 0, done.err
    assert command("disasm", ours, "-o", theirs).status == 0
    assert theirs.read_text() == (old / "int8.o5.tpuasm").read_text()


def test_old_bundles_codecs_and_raw_programs_are_read(command: Command, old: Path) -> None:
    done = command("bundle", "test", old / "recorded.bundle")
    assert done.status == 0, done.err + done.out
    assert command("bundle", "list", old / "combined.bundle").status == 0
    image = {"image": np.load(old / "inputs.npz")["image"][:1]}
    codec = Codec.load(old / "int8.o5.codec.json")
    with (
        Device.open(str(old / "machine.toml")) as device,
        device.load(old / "int8.o5.raw.tpu") as program,
        program.inference() as inference,
    ):
        found = codec.decode(inference.sync(codec.encode(image)))
    (expected,) = np.load(old / "int8.o5.outputs.npz").values()
    (output,) = found.values()
    assert output.tobytes() == expected[:1].tobytes()


def test_old_ranges_statistics_settings_and_machines_are_read(
    command: Command, old: Path, tmp_path: Path
) -> None:
    """They may give better graphs than then: what is asked is that they are read and lead to a program."""
    statistics = ["--statistics", old / "network.statistics.json"]
    ranges, program = tmp_path / "ranges.json", tmp_path / "network.tpu"
    model = old / "network.onnx"
    done = command("calibrate", model, *statistics, "-o", ranges)
    assert done.status == 0, done.err
    assert json.loads(ranges.read_text())
    words = ["--ranges", old / "network.ranges.json", "--machine", old / "machine.toml"]
    words += ["--config", old / "int8.layers.json", "-o", program]
    done = command("build", model, *words)
    assert done.status == 0, done.err
    for name in ("network.ranges.json", "int8.tpuq", "int8.o5.tpu", "segments.tpu"):
        assert command("inspect", old / name).status == 0, name


@pytest.mark.parametrize("name", ["int8.o5.tpu", "int8.tpuq"])
def test_a_later_version_is_refused_in_one_line(command: Command, tmp_path: Path, name: str) -> None:
    content = (VERSIONS[0] / name).read_bytes()
    path = tmp_path / name
    # One digit more, one letter less: the header keeps its length.
    later = re.sub(rb'version\\":\d,\\"sha256', b'version\\\\":14,\\\\"sha25', content, count=1)
    assert later != content
    path.write_bytes(later)
    done = command("inspect", path)
    assert done.status == 1
    (line,) = done.err.splitlines()
    assert "version 14" in line and "newer than this build, which reads" in line and name in line


@pytest.mark.feature("MSC-18")
def test_a_machine_that_asks_for_too_much_memory_is_refused_by_field(
    command: Command, old: Path, tmp_path: Path
) -> None:
    program, text = tmp_path / "huge.tpu", tmp_path / "huge.tpuasm"
    source = (old / "int8.o5.tpuasm").read_text()
    source = re.sub(r"capacity_bytes=\d+", "capacity_bytes=4398046511104", source, count=1)
    text.write_text(re.sub(r"ddr_bytes=\[\d+", "ddr_bytes=[1099511627776", source, count=1))
    assert command("asm", text, "-o", program).status == 0
    done = command("--memory-limit", "1G", "simulate", program)
    assert done.status == 1
    assert "ddr_bytes" in done.err and "--memory-limit" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(("size", "fine"), [("1G", True), ("512M", True), ("4096", False), ("much", False)])
def test_the_memory_limit_is_a_size(command: Command, old: Path, size: str, *, fine: bool) -> None:
    done = command("--memory-limit", size, "inspect", old / "int8.o5.tpu")
    assert (done.status == 0) == fine, done.err
    command("--memory-limit", "0", "machine", "list")
