"""Trained networks: command line, device, raw mode, C and the simulator give the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tpuflow
from cli.conftest import run_command
from runtime import c
from tpuflow.config import Config
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import generated
from tpuflow.runtime import Device, convert_to_raw

NETWORKS = (
    "fastestdet", "kws_dscnn", "lenet5_mnist", "mnist_cntk", "mobilenetv2_cifar10", "resnet8_cifar10",
    "squeezenet1_1", "ultraface_rfb320", "vit_mnist",
)  # fmt: skip
MADE_SLOWLY = ("fastestdet", "ultraface_rfb320")
"""Level 5 takes seconds for these, and a program is read and run in the same way whatever its order."""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return c.compiled(c.EXAMPLE, tmp_path_factory.mktemp("c") / "run_program")


def test_every_shared_network_is_here(shared: Path) -> None:
    assert sorted(path.parent.name for path in (shared / "data").glob("*/model.onnx")) == list(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.feature("PRG-04", "PRG-08", "PRG-19", "SIM-11")
def test_all_ways_give_the_same_bytes(shared: Path, name: str, tmp_path: Path, example: Path) -> None:
    model = tpuflow.load(shared / "data" / name / "model.onnx")
    samples = generated(model, 1, 0)
    config = Config.parse({"calibrate": {"strategy": "extrema"}})
    graph = tpuflow.quantize(model, tpuflow.calibrate(model, samples, config), config)
    program = tpuflow.compile(graph, level=1 if name in MADE_SLOWLY else 5)
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
    ports, codec_file = (codec.inputs, codec.outputs), tmp_path / "codec.json"
    codec.save(codec_file)
    found["C"] = c.run(example, [path], feed, ports, tmp_path)
    found["C, raw"] = c.run(example, ["--codec", codec_file, raw], feed, ports, tmp_path)
    found["simulator"] = simulate(program, feed).outputs
    wanted = found.pop("device")
    for way, arrays in found.items():
        assert set(arrays) == set(wanted)
        for output, array in arrays.items():
            assert array.tobytes() == wanted[output].tobytes(), f"{way}: {output}"
