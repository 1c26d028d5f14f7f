"""`raw` and `smoke` as they are typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Built, Command
from tpuflow.runtime import Codec, Device


@pytest.mark.parametrize("machine", ["128x128_asic", "32x32_fpga"])
@pytest.mark.feature("PRG-11")
def test_smoke_ends_well_in_seconds(command: Command, machine: str) -> None:
    done = command("smoke", "--machine", machine)
    assert done.status == 0, done.err
    assert done.out.splitlines()[-1] == "all is well"
    assert "raw mode too" in done.out


@pytest.mark.feature("PRG-03")
def test_raw_writes_program_and_codec(command: Command, built: Built, tmp_path: Path) -> None:
    target, codec = tmp_path / "tiny.raw.tpu", tmp_path / "codec.json"
    done = command("raw", built.program, "-o", target, "--codec", codec)
    assert done.status == 0, done.err
    assert "input0" in done.out and "image [1, 3, 9, 7] float32" in done.out
    image = {"image": np.load(built.calibration)["image"][:1]}
    packer = Codec.load(codec)
    with Device.open() as device:
        with device.load(target) as program, program.inference() as inference:
            found = packer.decode(inference.sync(packer.encode(image)))
        with device.load(built.program) as program, program.inference() as inference:
            wanted = inference.sync(image)
    assert found[built.output].tobytes() == wanted[built.output].tobytes()
    again = command("raw", target)
    assert again.status == 1 and "is raw already" in again.err
