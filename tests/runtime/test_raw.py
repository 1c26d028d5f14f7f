"""Raw mode against the normal path and against the layout written out in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from conftest import slow_except
from runtime.small import feed, program
from tpuflow.errors import FileError, ProgramError, SampleError
from tpuflow.execution.simulation import ProgramPort, program_ports, simulate
from tpuflow.partitioning.storage import AnyProgram, load_program
from tpuflow.runtime import Codec, Device, convert_to_raw

WORDS = {"32x32_fpga": 32, "64x64_edge": 64, "128x128_asic": 128, "256x256_dc": 256}
DTYPES = ("int8", "int16", "float16", "bfloat16", "float32")


def padded(dense: NDArray[Any], word: int) -> NDArray[np.uint8]:
    """Words of a stored tensor, row by row and pixel by pixel: the law of docs/machine.md."""
    shape = (1,) * (2 - dense.ndim) + dense.shape
    rows = dense.reshape(-1, *shape[-2:])
    payload = rows.shape[-1] * dense.itemsize
    pixel = -(-payload // word) * word if payload >= word else 1 << (payload - 1).bit_length()
    length = -(-rows.shape[1] * pixel // word) * word
    found = np.zeros((rows.shape[0], length), np.uint8)
    for r, row in enumerate(rows):
        for c, element in enumerate(row):
            found[r, c * pixel : c * pixel + payload] = np.ascontiguousarray(element).view(np.uint8)
    return found.reshape(-1, word)


def ports(built: AnyProgram) -> tuple[tuple[ProgramPort, ...], tuple[ProgramPort, ...]]:
    return program_ports(built)  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", WORDS)
@pytest.mark.parametrize("dtype", slow_except(["int8", "float16"], DTYPES))
@pytest.mark.feature("PRG-03", "PRG-04", "PRG-05", "PRG-07")
def test_raw_equals_normal(dtype: str, machine: str, tmp_path: Path) -> None:
    channels = {"int8": 3, "int16": 5, "float16": 1, "bfloat16": 33, "float32": 65}[dtype]
    built, arrays = program(dtype, machine, channels), feed(3, channels)
    normal, raw = tmp_path / "normal.tpu", tmp_path / "raw.tpu"
    built.save(normal)
    codec = convert_to_raw(normal, raw)
    assert codec.cache_word_length == WORDS[machine]
    assert raw.stat().st_size < normal.stat().st_size
    words = codec.encode(arrays)
    for port, tensor, packed in zip(ports(built)[0], codec.inputs, words.values(), strict=True):
        assert packed.dtype == np.uint8 and packed.shape == (tensor.words, WORDS[machine])
        np.testing.assert_array_equal(packed, padded(port.encode(arrays[port.name]), WORDS[machine]))
        assert not packed[~tensor.mask].any()
    with Device.open(machine) as device:
        with device.load(raw) as loaded, loaded.inference() as inference:
            given_back = inference.sync(words)
        with device.load(normal) as loaded, loaded.inference() as inference:
            expected = inference.sync(arrays)
    decoded = codec.decode(given_back)
    simulated = simulate(built, arrays).outputs
    assert list(decoded) == list(expected) == list(simulated)
    for name, array in decoded.items():
        assert array.tobytes() == expected[name].tobytes() == simulated[name].tobytes()


@pytest.mark.feature("PRG-06")
def test_padding_says_nothing(tmp_path: Path) -> None:
    program().save(tmp_path / "small.tpu")
    codec = convert_to_raw(tmp_path / "small.tpu", tmp_path / "raw.tpu")
    generator = np.random.default_rng(1)
    words = {
        f"output{n}": generator.integers(0, 256, (tensor.words, 128), np.uint8)
        for n, tensor in enumerate(codec.outputs)
    }
    other = {
        name: np.where(tensor.mask, array, array + 1)
        for (name, array), tensor in zip(words.items(), codec.outputs, strict=True)
    }
    one, two = codec.decode(words), codec.decode(other)
    for name, array in one.items():
        assert array.tobytes() == two[name].tobytes()


def test_a_codec_lives_without_its_program(tmp_path: Path) -> None:
    program().save(tmp_path / "small.tpu")
    codec = convert_to_raw(tmp_path / "small.tpu", tmp_path / "raw.tpu")
    codec.save(tmp_path / "codec.json")
    loaded = Codec.load(tmp_path / "codec.json")
    for name, words in codec.encode(feed(2)).items():
        np.testing.assert_array_equal(loaded.encode(feed(2))[name], words)
    (tmp_path / "codec.json").write_text("{")
    with pytest.raises(FileError, match=r"codec\.json: not a codec"):
        Codec.load(tmp_path / "codec.json")


@pytest.mark.feature("PRG-03")
def test_a_raw_program_refuses_floats_and_a_second_conversion(tmp_path: Path) -> None:
    program().save(tmp_path / "small.tpu")
    codec = convert_to_raw(tmp_path / "small.tpu", tmp_path / "raw.tpu")
    with pytest.raises(ProgramError, match="is raw already"):
        convert_to_raw(tmp_path / "raw.tpu", tmp_path / "again.tpu")
    metadata = load_program(tmp_path / "raw.tpu").metadata()  # type: ignore[union-attr]
    assert all(word not in metadata for word in ("image", "vector", "scale"))
    words = codec.encode(feed(1))
    with (
        Device.open() as device,
        device.load(tmp_path / "raw.tpu") as loaded,
        loaded.inference() as inference,
    ):
        with pytest.raises(SampleError, match="the program is raw and takes words of uint8"):
            inference.sync({"input0": feed(1)["image"], "input1": words["input1"]})
        with pytest.raises(SampleError, match="shape"):
            inference.sync({"input0": words["input0"][1:], "input1": words["input1"]})
    with pytest.raises(SampleError, match="output1"):
        codec.decode({"output0": words["input0"]})


SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@st.composite
def described(draw: st.DrawFn) -> tuple[dict[str, Any], NDArray[Any]]:
    """A port of any shape, axis order and type, and an array for it."""
    shape = draw(SHAPES)
    if draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from([31, 64, 130]))
    permutation = draw(st.permutations(range(len(shape))))
    stored = [shape[axis] for axis in permutation]
    if draw(st.booleans()):  # a stored tensor may show the same elements in another shape
        cut = draw(st.integers(0, len(stored) - 1))
        stored = [*stored[:cut], int(np.prod(stored[cut:]))] if draw(st.booleans()) else [1, *stored]
    user, code = draw(
        st.sampled_from(
            [(u, c) for u in ("float32", "float64", "int8", "uint8", "int16") for c in ("int8", "int16")]
            + [("float32", "float16"), ("float32", "float32"), ("int64", "int32"), ("float32", "bfloat16")]
        )
    )
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    array = generator.normal(0, 60, shape) if user.startswith("float") else generator.integers(0, 100, shape)
    quant = None
    if code in ("int8", "int16"):
        scale = draw(st.sampled_from([1.0, 0.37, 2.5]))
        quant = {"scale": [scale], "zero_point": draw(st.sampled_from([0, -7, 100]))}
        if user.startswith("float") and draw(st.booleans()):  # halfway between two codes, or next to it
            array = (np.rint(array) + 0.5) * float(np.float32(scale))
            array = np.where(generator.random(shape) < 0.5, array, np.nextafter(array.astype(user), np.inf))
    source = {"name": "x", "shape": shape, "permutation": permutation, "dtype": user}
    port = {"name": "x", "shape": stored, "dtype": code, "quant": quant, "source": source}
    return port, array.astype(user)


@given(described(), st.sampled_from([32, 128, 256]))
@settings(max_examples=150)
@pytest.mark.feature("PRG-04")
def test_packing_and_unpacking_equal_numpy(case: tuple[dict[str, Any], NDArray[Any]], word: int) -> None:
    content, array = case
    port = ProgramPort.parse(content)
    codec = codec_of(content, word)
    packed = codec.encode({"x": array})["input0"]
    codes = port.encode(array)
    np.testing.assert_array_equal(packed, padded(codes, word))
    back = codec.decode({"output0": packed})["x"]
    wanted = port.decode(codes)
    assert back.dtype == wanted.dtype and back.tobytes() == wanted.tobytes()


def codec_of(port: dict[str, Any], word: int) -> Codec:
    """A codec of one port as input and output."""
    import json  # noqa: PLC0415

    machine = {32: "32x32_fpga", 128: "128x128_asic", 256: "256x256_dc"}[word]
    metadata = json.loads(program("int8", machine).metadata())  # type: ignore[union-attr]
    shape = (1,) * max(0, 2 - len(port["shape"])) + tuple(port["shape"])
    size = np.dtype(port["dtype"]).itemsize
    payload = shape[-1] * size
    rows = int(np.prod(shape[:-2]))
    view = metadata["inputs"][0]["view"] | {
        "dtype": port["dtype"], "rows": rows, "height": shape[-3] if len(shape) > 2 else 1,
        "width": shape[-2],
        "channels": shape[-1], "channel_offset": 0, "first_row": 0, "stored_rows": rows,
        "pixel_bytes": -(-payload // word) * word if payload >= word else 1 << (payload - 1).bit_length(),
    }  # fmt: skip
    metadata["inputs"] = metadata["outputs"] = [port | {"view": view}]
    return Codec(json.dumps(metadata))


@pytest.mark.feature("LOW-10")
def test_numbers_become_codes_of_eight_bits() -> None:
    """Scaled, rounded to the even neighbour at ties, saturated; NaN is zero."""
    port = ProgramPort("x", (1, 8), np.dtype(np.float32), (1, 8), np.dtype(np.int8), (0.5,), 3, (0, 1))
    numbers = np.array([[0.25, 0.75, 1.25, -0.25, 61.9, 1e30, -1e30, np.nan]], np.float32)
    assert port.encode(numbers).tobytes().hex(" ") == "03 05 05 03 7f 7f 80 03"
    back = port.decode(port.encode(numbers))
    assert back.dtype == np.float32
    assert back.tolist() == [[0.0, 1.0, 1.0, 0.0, 62.0, 62.0, -65.5, 0.0]]


@pytest.mark.feature("LOW-10")
def test_numbers_become_half_precision() -> None:
    """Rounded to the even neighbour at ties, from subnormal numbers up to infinity."""
    port = ProgramPort("x", (1, 9), np.dtype(np.float32), (1, 9), np.dtype(np.float16), (), 0, (0, 1))
    numbers = [[1.0, 2049.0, 2051.0, 65519.0, 65520.0, -0.0, 2.0**-25, 1.5 * 2.0**-24, 1 / 3]]
    codes = port.encode(np.array(numbers, np.float32))
    assert codes.view("<u2").tolist() == [
        [0x3C00, 0x6800, 0x6802, 0x7BFF, 0x7C00, 0x8000, 0x0000, 0x0002, 0x3555]
    ]
    back = port.decode(codes)
    assert back.dtype == np.float32
    assert back[0, :4].tolist() == [1.0, 2048.0, 2052.0, 65504.0] and np.isinf(back[0, 4])


@pytest.mark.parametrize(("dtype", "high", "low"), [("int8", "7f", "80"), ("float16", "007c", "00fc")])
@pytest.mark.feature("LOW-10")
def test_packing_casts_to_the_type_of_the_program(dtype: str, high: str, low: str, tmp_path: Path) -> None:
    built = program(dtype, "128x128_asic", 3)
    path = tmp_path / "n.tpu"
    built.save(path)
    codec = convert_to_raw(path, tmp_path / "r.tpu")
    arrays = feed(3, 3)
    for value, byte in ((1e9, high), (-1e9, low)):
        packed = codec.encode({name: np.full_like(array, value) for name, array in arrays.items()})
        for tensor, words in zip(codec.inputs, packed.values(), strict=True):
            elements = words[tensor.mask].tobytes()
            assert elements == bytes.fromhex(byte) * (2 * len(elements) // len(byte))
            assert elements


def test_an_array_of_another_shape_is_named_with_both() -> None:
    port = ProgramPort("x", (1, 8), np.dtype(np.float32), (1, 8), np.dtype(np.int8), (0.5,), 3, (0, 1))
    for shape in ([8], [1, 4], [1, 1, 8]):
        with pytest.raises(SampleError, match=rf'"x" has the shape \{shape!s}, the program takes \[1, 8\]'):
            port.encode(np.zeros(shape, np.float32))
