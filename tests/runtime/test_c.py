"""The library in C: its example gives the bytes of devices and raw mode, and no mistake gets past it."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import tpuflow
from partitioning.networks import top_scores
from runtime import c
from runtime.small import feed, program
from tpuflow.frontend import generate_samples
from tpuflow.io.samples import Samples
from tpuflow.runtime import Device, convert_to_raw


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return c.compiled(c.EXAMPLE, tmp_path_factory.mktemp("c") / "run_program")


@pytest.mark.parametrize(
    ("dtype", "machine", "channels", "stated"),
    [
        ("int8", "128x128_asic", 3, False),
        ("int8", "32x32_fpga", 8, True),
        ("int16", "128x128_asic", 5, False),
        ("float16", "128x128_asic", 3, False),
        ("bfloat16", "64x64_edge", 17, False),
    ],
)
@pytest.mark.feature("PRG-19")
def test_c_gives_the_bytes_of_devices_and_raw_mode(
    example: Path, tmp_path: Path, dtype: str, machine: str, channels: int, *, stated: bool
) -> None:
    path, raw, codec_file = (tmp_path / name for name in ("net.tpu", "raw.tpu", "codec.json"))
    program(dtype, machine, channels, stated_codes=stated).save(path)
    codec = convert_to_raw(path, raw)
    codec.save(codec_file)
    given = {
        port.name: feed(1, channels)[port.name].astype(port.dtype) if not stated else _codes(port.shape)
        for port in codec.inputs
    }
    with Device.open(machine) as device, device.load(path) as loaded, loaded.inference() as inference:
        expected = inference.sync(given)
    ports = (codec.inputs, codec.outputs)
    ways: list[list[str | Path]] = [[path], ["--codec", codec_file, raw]]
    for words in ways:
        found = c.run(example, words, given, ports, tmp_path)
        assert found.keys() == expected.keys()
        for name, array in found.items():
            assert array.tobytes() == expected[name].tobytes(), name


def _codes(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(2).integers(-100, 100, shape, np.int8)


@pytest.mark.feature("PRG-19")
def test_the_static_library_serves_as_well(tmp_path: Path) -> None:
    example = c.compiled(c.EXAMPLE, tmp_path / "static", static=True)
    done = subprocess.run([str(example)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("usage: ")
    done = subprocess.run([str(example), "none.tpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: none.tpu: ")


@pytest.mark.feature("PRG-19")
def test_errors_are_statuses_with_one_line(tmp_path: Path) -> None:
    tpu = c.library()
    assert tpu.tpuflow_version().decode().count(".") == 2
    path = tmp_path / "net.tpu"
    program().save(path)
    handle = ctypes.c_void_p()

    def fails(status: int, message: str, call: int) -> None:
        assert call == status, tpu.tpuflow_last_error()
        assert message in tpu.tpuflow_last_error().decode()

    argument, file, data = 1, 2, 3
    fails(argument, "path is null", tpu.tpuflow_program_load(None, ctypes.byref(handle)))
    fails(argument, "path is not UTF-8", tpu.tpuflow_program_load(b"\xff", ctypes.byref(handle)))
    fails(argument, "program is null", tpu.tpuflow_program_load(str(path).encode(), None))
    altered = tmp_path / "altered.tpu"
    altered.write_bytes(path.read_bytes()[:-1] + b"?")
    fails(file, "altered.tpu", tpu.tpuflow_program_load(str(altered).encode(), ctypes.byref(handle)))
    fails(file, "not a codec, or cut short", tpu.tpuflow_codec_load(str(path).encode(), ctypes.byref(handle)))
    altered.write_text("{}")
    fails(file, "not a codec", tpu.tpuflow_codec_load(str(altered).encode(), ctypes.byref(handle)))
    assert not handle.value, "nothing is given by a call that fails"

    assert tpu.tpuflow_program_load(str(path).encode(), ctypes.byref(handle)) == 0
    codec = ctypes.c_void_p(tpu.tpuflow_program_codec(handle))
    assert tpu.tpuflow_codec_inputs(codec) == 2
    port = ctypes.create_string_buffer(256)
    fails(
        argument, "there is no input 2, there are 2", tpu.tpuflow_codec_input(codec, ctypes.c_size_t(2), port)
    )
    fails(argument, "port is null", tpu.tpuflow_codec_input(codec, ctypes.c_size_t(0), None))
    fails(argument, "codec is null", tpu.tpuflow_codec_input(None, ctypes.c_size_t(0), port))
    array, size = ctypes.create_string_buffer(4), ctypes.c_size_t(4)
    zero = ctypes.c_size_t(0)
    fails(data, '"image": 4 bytes given', tpu.tpuflow_codec_pack(codec, zero, array, size, array, size))
    whole = ctypes.create_string_buffer(1 * 3 * 5 * 7 * 4)
    sizes = ctypes.c_size_t(len(whole))
    fails(data, "room for 4 bytes", tpu.tpuflow_codec_pack(codec, zero, whole, sizes, array, size))
    fails(
        data,
        "0 inputs given, the program has 2",
        tpu.tpuflow_program_run(handle, 0, None, zero, None, zero, None),
    )
    two = ctypes.c_size_t(2)
    nothing = (ctypes.c_void_p * 2)()
    fails(argument, "output 0 is null", tpu.tpuflow_program_run(handle, 0, nothing, two, nothing, two, None))
    buffers = [ctypes.create_string_buffer(1 << 14) for _ in range(2)]
    outputs = (ctypes.c_void_p * 2)(*(ctypes.addressof(room) for room in buffers))
    fails(
        argument,
        'words of input "image" is null',
        tpu.tpuflow_program_run(handle, 0, nothing, two, outputs, two, None),
    )
    fails(
        argument,
        "mode 7 does not exist",
        tpu.tpuflow_program_run(handle, 7, outputs, two, outputs, two, None),
    )

    said = []
    thread = threading.Thread(target=lambda: said.append(tpu.tpuflow_last_error()))
    thread.start()
    thread.join()
    assert said == [b""], "the last error is that of the thread"
    tpu.tpuflow_program_free(handle)
    tpu.tpuflow_program_free(None)
    tpu.tpuflow_codec_free(None)


@pytest.mark.feature("PRG-19")
def test_a_network_with_parts_on_the_host_is_refused(tmp_path: Path) -> None:
    parts = tpuflow.partition(tpuflow.load(top_scores(), host=True))
    samples = Samples.of_feeds(generate_samples(parts.model, 2), parts.model.inputs)
    graph = tpuflow.quantize(parts, tpuflow.calibrate(parts, samples))
    path = tmp_path / "parts.tpu"
    tpuflow.compile(graph).save(path)
    tpu, handle = c.library(), ctypes.c_void_p()
    assert tpu.tpuflow_program_load(str(path).encode(), ctypes.byref(handle)) == 2
    assert b"parts of it run on the host" in tpu.tpuflow_last_error()
