"""Trained networks: the command line, a device, raw mode and the simulator give the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tpuflow
from cli.conftest import run_command
from tpuflow.build import made_up
from tpuflow.config import Config
from tpuflow.runtime import Device, convert_to_raw
from tpuflow.simulate import simulate

NETWORKS = ("kws_dscnn", "mnist_cntk", "resnet8_cifar10", "vit_mnist")


@pytest.mark.parametrize("name", NETWORKS)
def test_prg_04_prg_08_sim_11_all_ways_give_the_same_bytes(shared: Path, name: str, tmp_path: Path) -> None:
    model = tpuflow.load(shared / "data" / name / "model.onnx")
    samples = made_up(model, 1, 0)
    config = Config.parse({"calibrate": {"strategy": "extrema"}})
    program = tpuflow.compile(
        tpuflow.quantize(model, tpuflow.calibrate(model, samples, config), config), level=5
    )
    path, raw = tmp_path / "net.tpu", tmp_path / "raw.tpu"
    program.save(path)
    codec = convert_to_raw(path, raw)
    feed = next(samples.batches()).arrays
    with Device.open() as device:
        with device.load(path) as loaded, loaded.inference() as inference:
            found = {"device": dict(inference.sync(feed))}
        with device.load(raw) as loaded, loaded.inference() as inference:
            found["raw"] = codec.decode(inference.sync(codec.encode(feed)))
    np.savez(tmp_path / "in.npz", allow_pickle=False, **feed)
    done = run_command("run", path, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    assert done.status == 0, done.err
    with np.load(tmp_path / "out.npz") as arrays:
        found["command"] = dict(arrays)
    found["simulator"] = simulate(program, feed).outputs
    wanted = found.pop("device")
    for way, arrays in found.items():
        assert set(arrays) == set(wanted)
        for output, array in arrays.items():
            assert array.tobytes() == wanted[output].tobytes(), f"{way}: {output}"
