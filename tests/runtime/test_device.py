"""Devices, programs and inferences, as an application uses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.small import feed, program
from tpuflow.compiler.program import machine_text, machines
from tpuflow.errors import DeviceError, FileError, MachineError, SampleError
from tpuflow.execution.simulation import simulate
from tpuflow.runtime import Device


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runtime") / "small.tpu"
    program().save(path)
    return path


@pytest.mark.feature("PRG-08")
def test_the_quick_start(path: Path) -> None:
    devices = Device.list_devices()
    assert [device.machine for device in devices] == machines()
    expected = simulate(program(), feed(1))
    for mode, cycles in (("fast", None), ("exact", expected.cycles)):
        with (
            Device.open(devices[0], mode=mode) as device,  # type: ignore[arg-type]
            device.load(path) as loaded,
            loaded.inference() as inference,
        ):
            outputs = inference.sync(feed(1))
        assert outputs.cycles == cycles
        assert outputs.time_us == (None if cycles is None else expected.time_us)
        assert list(outputs) == list(expected.outputs)
        for name, array in expected.outputs.items():
            assert outputs[name].dtype == array.dtype
            np.testing.assert_array_equal(outputs[name], array)


@pytest.mark.feature("PRG-02", "PRG-17")
def test_names_shapes_types_scales_and_masks_come_with_the_program(path: Path) -> None:
    with Device.open() as device, device.load(path) as loaded:
        image, vector = loaded.inputs
        assert [tensor.name for tensor in loaded.outputs] == list(simulate(program(), feed(1)).outputs)
    assert (image.name, image.shape, image.dtype.name) == ("image", (1, 3, 5, 7), "float32")
    assert image.stored_dtype == np.int8 and len(image.scale) == 1 and image.scale[0] > 0
    # 5 rows of 7 pixels of 4 bytes, three of which are used; a row takes a word.
    assert (image.words, image.cache_word_length) == (5, 128)
    assert image.mask.shape == (5, 128) and image.mask.sum() == 5 * 7 * 3
    assert not image.mask[:, 3:28:4].any() and not image.mask[:, 28:].any()
    assert vector.mask.sum() == 13


@pytest.mark.feature("PRG-09")
def test_submitted_inferences_equal_sequential_ones_in_order(path: Path) -> None:
    with Device.open() as device, device.load(path) as loaded:
        with loaded.inference() as inference:
            expected = [inference.sync(feed(seed)) for seed in range(8)]
        with loaded.inference(in_flight=3) as inference:
            tickets = [inference.submit(feed(seed)) for seed in range(8)]
            assert [ticket.number for ticket in tickets] == list(range(8))
            late = inference.wait(tickets[5])
            rest = [inference.wait() for _ in range(7)]
            with pytest.raises(DeviceError, match="nothing to wait for"):
                inference.wait()
    order = [*rest[:5], late, *rest[5:]]
    for found, wanted in zip(order, expected, strict=True):
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.feature("PRG-18")
def test_other_versions_and_machines_are_refused_with_both_sides(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    at = content.index(b'version\\":') + len(b'version\\":')
    other = tmp_path / "later.tpu"
    kept = content[at + 1 :].replace(b"sha256", b"sha25", 1)  # the header keeps its length
    other.write_bytes(content[:at] + b"14" + kept)
    slow = tmp_path / "slow.toml"
    slow.write_text(machine_text("128x128_asic").replace("clock_hz = 1_000_000_000", "clock_hz = 500000000"))
    with (
        Device.open() as device,
        pytest.raises(FileError, match=r"version 14 .*newer than this build, which reads \d"),
    ):
        device.load(other)
    with Device.open(str(slow)) as device:
        assert device.info.clock_hz == 500_000_000
        with pytest.raises(
            MachineError, match=r"small\.tpu: made for machine .*clock_hz is 1000000000, not 500000000"
        ):
            device.load(path)
    with (
        Device.open("sim:64x64_edge") as device,
        pytest.raises(MachineError, match="128x128_asic, not for 64x64_edge"),
    ):
        device.load(path)


@pytest.mark.feature("PRG-01", "PRG-18")
def test_a_changed_byte_is_refused(path: Path, tmp_path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    (tmp_path / "changed.tpu").write_bytes(content)
    with Device.open() as device, pytest.raises(FileError, match=r"changed\.tpu: .*checksum"):
        device.load(tmp_path / "changed.tpu")


def test_what_does_not_fit_is_named(path: Path) -> None:
    with pytest.raises(MachineError, match='"tpu9" is unknown'):
        Device.open("tpu9")
    with pytest.raises(DeviceError, match='mode "slow" does not exist'):
        Device.open(mode="slow")  # type: ignore[arg-type]
    arrays: dict[str, NDArray[Any]] = {**feed(1)}
    wrong: list[tuple[dict[str, NDArray[Any]], str]] = [
        ({"image": arrays["image"]}, 'input "vector" is missing, there is "image"'),
        (arrays | {"more": arrays["image"]}, r'unknown input "more" \(inputs: "image", "vector"\)'),
        (
            arrays | {"vector": arrays["vector"][:, 1:]},
            r'input "vector": shape \[1, 12\], the program takes \[1, 13\]',
        ),
        (arrays | {"vector": np.zeros((1, 13))}, 'input "vector": dtype float64, the program takes float32'),
    ]
    with Device.open() as device, device.load(path) as loaded, loaded.inference() as inference:
        for given, message in wrong:
            with pytest.raises(SampleError, match=message):
                inference.sync(given)
            with pytest.raises(SampleError, match=message):
                inference.submit(given)


def test_what_was_closed_says_so(path: Path) -> None:
    with Device.open() as device:
        with device.load(path) as loaded:
            with loaded.inference() as inference:
                pass
            with pytest.raises(DeviceError, match=r"the inference of .* was closed"):
                inference.sync(feed(1))
        with pytest.raises(DeviceError, match="was unloaded"):
            loaded.inference()
        again = device.load(path).inference()
    with pytest.raises(DeviceError, match="the device is closed"):
        device.load(path)
    with pytest.raises(DeviceError, match="the device is closed"):
        again.sync(feed(1))


def test_an_exact_device_gives_the_figures(path: Path) -> None:
    with Device.open(mode="exact") as device, device.load(path) as loaded, loaded.inference() as inference:
        outputs = inference.sync(feed(1))
    (report,) = outputs.reports
    expected = json.loads(simulate(program(), feed(1)).to_json())
    assert {key: report[key] for key in ("cycles", "stalls", "layers")} == {
        key: expected[key] for key in ("cycles", "stalls", "layers")
    }
    assert outputs.simulation_seconds > 0
