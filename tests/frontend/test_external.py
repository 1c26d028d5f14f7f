"""Tensors outside a model's file, and constants whose bytes are not those of their shape."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from frontend.graphs import array, graph
from frontend.test_errors import message
from tpuflow.frontend import generate_samples, load, model_digest, run_float


@pytest.fixture(params=[1 << 20, 1], ids=["read", "mapped"])
def beside(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, onnx.ModelProto]:
    """A model whose weights lie in a file beside it, to be read into memory or mapped."""
    monkeypatch.setattr("tpuflow.frontend.external.MAPPED_BYTES", request.param)
    path = tmp_path / "models" / "m.onnx"
    path.parent.mkdir()
    proto = graph([("MatMul", "x w", "z")], {"x": [3, 4]}, ["z"], {"w": array(4, 64)})
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path, onnx.load(path, load_external_data=False)


def test_external_data(beside: tuple[Path, onnx.ModelProto]) -> None:
    path, proto = beside
    model = load(path)
    feeds = generate_samples(model, 1)[0]
    np.testing.assert_allclose(run_float(model.model, feeds)["z"], feeds["x"] @ array(4, 64), rtol=1e-5)
    where = f'{path}: external data of initialiser "w"'
    weights = path.parent / "w.bin"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert message(path) == f'{where} is truncated: "w.bin" has 1000 bytes, 1024 are needed'
    weights.unlink()
    assert message(path) == f'{where} is missing: "w.bin"'
    assert message(proto) == 'model: initialiser "w" is stored outside it; load the model from its file'


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "link.bin"])
def test_external_data_outside_the_folder(beside: tuple[Path, onnx.ModelProto], location: str) -> None:
    path, proto = beside
    secret = path.parent.parent / "secret.bin"
    secret.write_bytes(bytes(1024))
    (path.parent / "link.bin").symlink_to(secret)
    next(e for e in proto.graph.initializer[0].external_data if e.key == "location").value = location
    path.write_bytes(proto.SerializeToString())
    assert message(path) == (
        f'{path}: external data of initialiser "w" lies outside the folder of the model: "{location}"'
    )


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("loop.bin", "is missing"), ("a\0b", "is missing"), ("n" * 5000, "is missing"),
        ("pipe", "is missing"),
        ("sub", "is missing"), ("w.bin/x", "is missing"), ("", "is missing"), ("/dev/zero", "lies outside"),
    ],
)  # fmt: skip
def test_external_data_that_is_no_file(
    beside: tuple[Path, onnx.ModelProto], location: str, words: str
) -> None:
    path, proto = beside
    (path.parent / "loop.bin").symlink_to("loop.bin")
    (path.parent / "sub").mkdir()
    os.mkfifo(path.parent / "pipe")
    next(e for e in proto.graph.initializer[0].external_data if e.key == "location").value = location
    path.write_bytes(proto.SerializeToString())
    assert words in message(path)
    assert len(message(path)) < 500 + len(str(path))
    assert len(model_digest(path)) == 64


def test_external_data_behind_links(beside: tuple[Path, onnx.ModelProto]) -> None:
    path, proto = beside
    weights = path.parent / "w.bin"
    (path.parent / "hard.bin").hardlink_to(weights)
    (path.parent / "soft.bin").symlink_to("w.bin")
    (path.parent / "folder").symlink_to(".")
    expected = model_digest(path)
    for location in ("w.bin", "hard.bin", "soft.bin", "folder/w.bin", "./folder/./w.bin"):
        next(e for e in proto.graph.initializer[0].external_data if e.key == "location").value = location
        path.write_bytes(proto.SerializeToString())
        load(path)
    weights.write_bytes(bytes(weights.stat().st_size))
    assert model_digest(path) != expected


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("offset", "9" * 5000, "no valid place"), ("length", "9" * 5000, "no valid place"),
        ("offset", "-1", "no valid place"), ("offset", "\N{ARABIC-INDIC DIGIT ONE}", "no valid place"),
        ("length", "", "no valid place"), ("offset", "1", "truncated"), ("length", "1025", "truncated"),
        ("length", "1000", "has 1000 bytes, its shape [4, 64] needs 1024"),
        ("dims", "-4", "no type and shape"), ("dims", "1000000000000", "truncated"),
        ("type", "99", "no type and shape"), ("type", "8", "no type and shape"),
    ],
)  # fmt: skip
def test_external_data_with_claims_that_do_not_fit(
    beside: tuple[Path, onnx.ModelProto], key: str, value: str, words: str
) -> None:
    path, proto = beside
    tensor = proto.graph.initializer[0]
    if key == "dims":
        tensor.dims[0] = int(value)
        del tensor.external_data[1:]
    elif key == "type":
        tensor.data_type = int(value)
    else:
        kept = {e.key: e.value for e in tensor.external_data} | {key: value}
        del tensor.external_data[:]
        for each in kept:
            tensor.external_data.add(key=each, value=kept[each])
    path.write_bytes(proto.SerializeToString())
    assert words in message(path)


def test_external_data_within_the_memory_limit(
    beside: tuple[Path, onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, proto = beside
    tensor = proto.graph.initializer[0]
    tensor.dims[0] = 1 << 30
    del tensor.external_data[1:]
    path.write_bytes(proto.SerializeToString())
    with (path.parent / "w.bin").open("r+b") as sparse:
        sparse.truncate(1 << 38)
    monkeypatch.setenv("TPUFLOW_MEMORY_LIMIT", str(1 << 30))
    assert "takes 256.00 GiB; the limit is 1.00 GiB" in message(path)


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "UINT2", "FLOAT4E2M1"])
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("dims", [[3, 8], [1 << 20, 1 << 20], [-1, 8], [2, 2]])
def test_packed_constants_are_whole(kind: str, dims: list[int], *, raw: bool) -> None:
    proto = graph([("Add", "x w", "z")], {"x": [5]}, ["z"], {"w": array(5)})
    held = onnx.TensorProto(name="w", data_type=onnx.TensorProto.DataType.Value(kind), dims=dims)
    if raw:
        held.raw_data = bytes(8)
    else:
        held.int32_data.extend([0] * 8)
    proto.graph.initializer[0].CopyFrom(held)
    assert 'initialiser "w" is truncated' in message(proto)
