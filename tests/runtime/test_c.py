"""The library in C: its example gives the bytes of devices and raw mode, and no mistake gets past it."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

import tpuflow
from partitioning.networks import top_scores
from runtime import c
from runtime.small import feed, program
from tpuflow import _core
from tpuflow.execution.decoder import PhaseLevel, phase_feed
from tpuflow.execution.levels import graph_level
from tpuflow.frontend import generate_samples
from tpuflow.io.samples import Samples
from tpuflow.pipeline.decoders import BuiltDecoder
from tpuflow.runtime import Device, convert_to_raw, descriptions

# The library is built for them.
pytestmark = pytest.mark.slow

Buffer: TypeAlias = ctypes.Array[ctypes.c_char]


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
    outputs = (ctypes.c_void_p * 2)(*(ctypes.addressof(each) for each in buffers))
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


@pytest.mark.feature("PRG-19")
def test_steps_in_c_are_those_of_devices(built: BuiltDecoder, tmp_path: Path) -> None:
    part = built.parts["decode1_context8"]
    path, rows = tmp_path / "step.tpu", str(tmp_path / "rows.state").encode()
    part.program.save(path)
    tpu, program, state = c.library(), ctypes.c_void_p(), ctypes.c_void_p()
    tpu.tpuflow_program_last_position.restype = tpu.tpuflow_state_rows.restype = ctypes.c_uint32
    assert tpu.tpuflow_program_load(str(path).encode(), ctypes.byref(program)) == 0
    assert tpu.tpuflow_program_last_position(program) == 7
    assert tpu.tpuflow_state_new(program, ctypes.byref(state)) == 0
    level = graph_level(part.graph)
    inputs, outputs = descriptions(part.program.metadata())  # type: ignore[union-attr]
    codec = _core.Codec(part.program.metadata())  # type: ignore[union-attr]
    with Device.open() as device, device.load(part.program) as loaded:
        inference = loaded.inference()

        def step(position: int, into: ctypes.c_void_p | None, to: list[Buffer | None]) -> int:
            feed = phase_feed(level, PhaseLevel.of(level).phase, None, [position + 2], position)
            words = [
                codec.pack(number, feed[port.name].reshape(-1).view(np.uint8)) if port.name in feed else None
                for number, port in enumerate(inputs)
            ]
            given = (ctypes.c_void_p * len(words))(*(None if w is None else w.ctypes.data for w in words))
            taken = (ctypes.c_void_p * len(to))(*(None if t is None else ctypes.addressof(t) for t in to))
            sizes = [ctypes.c_size_t(len(each)) for each in (words, to)]
            at = ctypes.c_uint32(position)
            return int(tpu.tpuflow_program_step(program, into, at, 1, given, sizes[0], taken, sizes[1], None))

        buffers: list[Buffer | None] = [
            ctypes.create_string_buffer(port.words * port.cache_word_length)
            if port.name == "logits"
            else None
            for port in outputs
        ]
        for position in range(4):
            feed = phase_feed(level, PhaseLevel.of(level).phase, None, [position + 2], position)
            expected = inference.step(feed)["logits"]
            assert step(position, state, buffers) == 0, tpu.tpuflow_last_error()
            number, buffer = next((n, buffer) for n, buffer in enumerate(buffers) if buffer is not None)
            found = codec.unpack(number, np.frombuffer(buffer.raw, np.uint8))
            assert found.tobytes() == expected.tobytes(), position
        assert tpu.tpuflow_state_rows(state) == 4
        assert tpu.tpuflow_state_save(state, rows) == 0
        key = inference.state.names[0]
        held = inference.state.read(key)
        buffer = ctypes.create_string_buffer(held.nbytes)
        size = ctypes.c_size_t(held.nbytes)
        assert tpu.tpuflow_state_read(state, program, key.encode(), buffer, size) == 0
        assert buffer.raw == held.tobytes()
        tpu.tpuflow_state_truncate(state, ctypes.c_uint32(0))
        assert step(2, state, buffers) == 3
        assert tpu.tpuflow_last_error() == b"position 2 lies behind the 0 rows of the state"
        assert tpu.tpuflow_state_restore(state, rows) == 0
        assert step(2, state, buffers) == 0
        assert step(9, state, buffers) == 3
        assert b"lies beyond the context" in tpu.tpuflow_last_error()
        assert step(2, None, buffers) == 1
        assert tpu.tpuflow_last_error() == b"state is null"
        assert step(2, state, [None] * len(buffers)) == 1
        arrays = [inference.state.read(name) for name in inference.state.names]
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        count, four = ctypes.c_size_t(len(arrays)), ctypes.c_uint32(4)
        assert tpu.tpuflow_state_write(state, program, four, pointers, count, size) == 0
        assert tpu.tpuflow_state_rows(state) == 4
        assert tpu.tpuflow_state_restore(state, str(path).encode()) == 3
        assert tpu.tpuflow_last_error() == b"not a saved state, or one that was cut or altered"
    tpu.tpuflow_state_free(state)
    tpu.tpuflow_state_free(None)
    tpu.tpuflow_program_free(program)
