"""Samples: shapes accepted, batches, and every error in one line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpuflow
from frontend.graphs import graph
from tpuflow.config import Config
from tpuflow.errors import SampleError
from tpuflow.execution.levels import graph_level, run_samples
from tpuflow.frontend import Port, run_float
from tpuflow.io.samples import Samples, joined_samples, load_labeled, load_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

FLOAT = np.dtype(np.float32)
IMAGE = Port("image", (1, 2, 3), FLOAT)
IDS = Port("ids", (1, 4), np.dtype(np.int64))


def ramp(*shape: int) -> NDArray[np.float32]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def ports_of(batch: int) -> tuple[Port, Port]:
    return Port("image", (batch, 2, 3), FLOAT), Port("ids", (batch, 4), np.dtype(np.int64))


@given(st.integers(1, 9), st.integers(1, 4))
def test_batches_hold_every_sample_once_and_repeat_only_the_last(count: int, batch: int) -> None:
    image, ids = ramp(count, 2, 3), np.arange(count * 4).reshape(count, 4)
    data = Samples.of({"ids": ids, "image": image}, ports_of(batch))
    feeds = list(data.batches())
    assert (data.count, data.batch) == (count, batch)
    assert [feed.count for feed in feeds] == [batch] * (count // batch) + [count % batch] * (
        count % batch > 0
    )
    for name, array in (("image", image), ("ids", ids)):
        joined = np.concatenate([feed.arrays[name] for feed in feeds])
        assert joined.dtype == array.dtype
        assert np.array_equal(joined[:count], array)
        assert all(np.array_equal(row, array[-1]) for row in joined[count:])


def test_whole_inputs_lead_with_the_samples() -> None:
    table = Port("table", (5, 2), FLOAT)
    factor = Port("factor", (), FLOAT)
    data = Samples.of(
        {"table": ramp(3, 5, 2), "factor": ramp(3), "image": ramp(3, 2, 3)}, (table, factor, IMAGE)
    )
    feeds = list(data.batches())
    assert [feed.count for feed in feeds] == [1, 1, 1]
    assert np.array_equal(feeds[1].arrays["table"], ramp(3, 5, 2)[1])
    assert feeds[1].arrays["factor"].shape == ()
    assert feeds[2].arrays["image"].shape == (1, 2, 3)


def test_directory_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", image=ramp(2, 2, 3) + 100)
    np.save(tmp_path / "a.npy", ramp(2, 3))
    np.save(tmp_path / "c.npy", ramp(1, 2, 3) + 200)
    (tmp_path / "notes.txt").write_text("ignored")
    data = load_samples(tmp_path, [IMAGE])
    assert data.count == 4
    assert [float(row["image"].flat[0]) for row in data.rows()] == [0, 100, 106, 200]
    # Batches run across files.
    data = load_samples(tmp_path, [Port("image", (3, 2, 3), FLOAT)])
    assert [feed.count for feed in data.batches()] == [3, 1]


@given(st.integers(1, 12), st.integers(1, 3), st.data())
def test_some_samples_are_these_and_stay_where_they_are(count: int, batch: int, data: st.DataObject) -> None:
    image, ids = ramp(count, 2, 3), np.arange(count * 4).reshape(count, 4)
    given_samples = Samples.of({"ids": ids, "image": image}, ports_of(batch))
    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True))
    rows = list(given_samples.rows())
    some = given_samples.of_rows([rows[at] for at in chosen])
    assert (some.count, some.batch) == (len(chosen), batch)
    assert [row["image"].tolist() for row in some.rows()] == image[chosen].tolist()
    assert next(some.spread(2).rows())["ids"].tolist() == ids[chosen[0]].tolist()
    assert all(np.shares_memory(row["image"], image) for row in some.rows())
    parts = some.shards(2)
    assert [row["image"].tolist() for part in parts for row in part.rows()] == image[chosen].tolist()
    assert sum(part.count for part in parts) == some.count
    assert all(part.count % batch == 0 for part in parts[:-1])


def test_some_samples_of_files_let_go_of_the_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=ramp(50, 2, 3))
    (row,) = load_samples(tmp_path, [IMAGE]).first(1).rows()
    base = row["image"].base
    assert base is not None
    assert base.nbytes == row["image"].nbytes


def test_npz_round_trip_and_labels(tmp_path: Path) -> None:
    path = tmp_path / "eval.npz"
    np.savez_compressed(path, image=ramp(4, 2, 3), labels=np.arange(4))
    data, labels = load_labeled(path, [IMAGE])
    assert data.count == 4
    assert labels.tolist() == [0, 1, 2, 3]
    with pytest.raises(SampleError, match=r'unknown input "labels" \(inputs: "image"'):
        load_samples(path, [IMAGE])
    np.savez(path, image=ramp(4, 2, 3))
    with pytest.raises(SampleError, match=r'eval\.npz: array "labels" is missing, it has "image"'):
        load_labeled(path, [IMAGE])
    np.savez(path, image=ramp(4, 2, 3), labels=np.arange(3))
    with pytest.raises(SampleError, match=r'array "labels" has shape \(3,\) for 4 samples'):
        load_labeled(path, [IMAGE])


def with_nan() -> NDArray[np.float32]:
    array = ramp(3, 2, 3)
    array[2, 1, 0] = np.nan
    return array


IDS_OK = np.zeros((3, 4), np.int64)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, 's: input "image" is missing, there is none'),
        ({"image": ramp(3, 2, 3)}, 's: input "ids" is missing, there is "image"'),
        ({"x": ramp(1)}, 's: unknown input "x" (inputs: "image", "ids"): leave it out'),
        ({"image": ramp(3, 2, 4)}, 's: input "image": shape (3, 2, 4), the network wants (samples, 2, 3)'),
        ({"image": ramp(2, 3)}, 's: input "image": shape (2, 3), the network wants (samples, 2, 3)'),
        (
            {"image": ramp(3, 2, 2, 3)},
            's: input "image": shape (3, 2, 2, 3), the network wants (samples, 2, 3)',
        ),
        ({"image": np.float32(1)}, 's: input "image": shape (), the network wants (samples, 2, 3)'),
        ({"image": ramp(0, 2, 3)}, 's: input "image": there are no samples'),
        ({"image": with_nan()}, 's: input "image": NaN or infinite values, first in sample 2'),
        (
            {"image": ramp(3, 2, 3).astype(np.float64)},
            's: input "image": dtype float64, the network wants float32 (convert with .astype)',
        ),
        (
            {"image": ramp(3, 2, 3), "ids": IDS_OK.astype(np.int32)},
            's: input "ids": dtype int32, the network wants int64 (convert with .astype)',
        ),
        (
            {"image": ramp(2, 2, 3), "ids": IDS_OK},
            's: inputs differ in the number of samples: "image" 2, "ids" 3',
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(SampleError) as caught:
        Samples.of({name: np.asarray(array) for name, array in arrays.items()}, (IMAGE, IDS), "s")
    assert str(caught.value) == message


def test_batched_and_whole_inputs_do_not_mix() -> None:
    first, second = Port("a", (2, 3), FLOAT), Port("b", (2, 3), FLOAT)
    with pytest.raises(SampleError, match='differ in the number of samples in a feed: "a" 2, "b" 1'):
        Samples.of({"a": ramp(4, 3), "b": ramp(4, 2, 3)}, (first, second))


def test_inputs_without_a_common_batch_are_asked_for_whole() -> None:
    ports = (Port("sequence", (6, 1, 5), FLOAT), Port("state", (2, 1, 4), FLOAT))
    told = 'give whole inputs: "sequence" (samples, 6, 1, 5), "state" (samples, 2, 1, 4)'
    with pytest.raises(SampleError, match=re.escape(told)):
        Samples.of({"sequence": ramp(12, 1, 5), "state": ramp(4, 1, 4)}, ports)
    assert Samples.of({"sequence": ramp(3, 6, 1, 5), "state": ramp(3, 2, 1, 4)}, ports).count == 3


@pytest.mark.parametrize(
    "shapes", [{"a": (6, 1, 5), "b": (2, 1, 4)}, {"a": (3, 4), "b": ()}, {"a": ()}, {"a": (3, 4), "b": (3,)}]
)
def test_arrays_of_the_inputs_own_shapes_are_one_feed(shapes: dict[str, tuple[int, ...]]) -> None:
    ports = [Port(name, shape, FLOAT) for name, shape in shapes.items()]
    arrays = {name: ramp(*shape) for name, shape in shapes.items()}
    samples = Samples.of(arrays, ports)
    (feed,) = samples.batches()
    assert feed.arrays.keys() == arrays.keys()
    assert all(np.array_equal(feed.arrays[name], array) for name, array in arrays.items())
    table = ramp(9, 3)
    assert joined_samples({"out": [table]}, samples)["out"] is table
    doubled = {name: np.stack([array, array]) for name, array in arrays.items()}
    assert joined_samples({"out": [table] * 2}, Samples.of(doubled, ports))["out"].shape == (2, 9, 3)


def test_a_single_sample_keeps_its_axis() -> None:
    samples = Samples.of({"image": ramp(1, 2, 3)}, [IMAGE])
    assert joined_samples({"out": [ramp(9)]}, samples)["out"].shape == (1, 9)


ODD = {"x": np.array([[1, np.nan, np.inf, -np.inf, 0, 2]], np.float32)}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_programs_in_floats_take_numbers_that_are_not_finite(dtype: str) -> None:
    proto = graph([("IsNaN", "x", "n"), ("IsInf", "x", "i"), ("Or", "n i", "y")], {"x": [1, 6]}, ["y"])
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    model, settings = tpuflow.load(proto), Config.model_validate({"quantize": {"dtype": dtype}})
    quantized = tpuflow.quantize(model, tpuflow.calibrate(model, {"x": ramp(4, 6)}, settings), settings)
    expected = run_float(proto, ODD)["y"]
    assert np.array_equal(tpuflow.simulate(tpuflow.compile(quantized), ODD).outputs["y"], expected)
    level = graph_level(quantized)
    assert np.array_equal(run_samples(level, Samples.of(ODD, level.ports))["y"], expected)


def test_programs_of_codes_and_calibration_take_finite_numbers_alone() -> None:
    model = tpuflow.load(graph([("Relu", "x", "y")], {"x": [1, 6]}, ["y"]))
    program = tpuflow.compile(tpuflow.quantize(model, tpuflow.calibrate(model, {"x": ramp(4, 6)})))
    with pytest.raises(SampleError, match="NaN or infinite values, first in sample 0"):
        tpuflow.simulate(program, ODD)
    with pytest.raises(SampleError, match="NaN or infinite values, first in sample 0"):
        tpuflow.calibrate(model, ODD)


def missing(path: Path) -> None:
    del path


def text(path: Path) -> None:
    path.write_text("no arrays")


def truncated(path: Path) -> None:
    np.savez(path, image=ramp(2, 2, 3))
    path.write_bytes(path.read_bytes()[:-40])


def damaged(path: Path) -> None:
    np.savez_compressed(path, image=ramp(40, 2, 3))
    content = bytearray(path.read_bytes())
    content[150:170] = bytes(20)
    path.write_bytes(content)


def objects(path: Path) -> None:
    np.savez(path, image=np.array([{}], dtype=object))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def empty_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (missing, "cannot be read: no such file or directory"),
        (text, "not a complete NumPy file"),
        (truncated, "not a complete NumPy file"),
        (damaged, "not a complete NumPy file"),
        (objects, 'member "image": holds Python objects'),
        (empty, "not a complete NumPy file"),
        (empty_directory, "the directory holds no .npz or .npy file"),
    ],
)
def test_files_that_are_no_samples(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    path = tmp_path / "calib.npz"
    make(path)
    with pytest.raises(SampleError) as caught:
        load_samples(path, [IMAGE])
    assert str(caught.value).lower().startswith(f"{path}: {message}".lower())
    assert "\n" not in str(caught.value)


def test_directories_that_do_not_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ramp(2, 2, 3))
    with pytest.raises(SampleError, match=r"a\.npy: a \.npy file has no names, the network has 2 inputs"):
        load_samples(tmp_path, [IMAGE, IDS])
    np.save(tmp_path / "b.npy", ramp(2, 2, 4))
    with pytest.raises(SampleError, match=r'b\.npy: input "image": shape \(2, 2, 4\)'):
        load_samples(tmp_path, [IMAGE])
    np.save(tmp_path / "b.npy", ramp(2, 3, 2, 3))
    with pytest.raises(SampleError, match=r"b\.npy: its samples are whole inputs, those of .*a\.npy are not"):
        load_samples(tmp_path, [Port("image", (3, 2, 3), FLOAT)])


def test_samples_from_whole_feeds() -> None:
    feeds = [{"image": ramp(1, 2, 3) + index, "ids": np.full((1, 4), index)} for index in range(3)]
    data = Samples.of_feeds(feeds, (IMAGE, IDS))
    assert (data.count, data.batch) == (3, 1)
    for feed, batch in zip(feeds, data.batches(), strict=True):
        assert all(np.array_equal(batch.arrays[name], feed[name]) for name in ("image", "ids"))
    with pytest.raises(SampleError, match="samples: there are none"):
        Samples.of_feeds([], (IMAGE, IDS))


@pytest.mark.feature("VIS-01")
def test_a_representative_dataset_is_samples() -> None:
    """Feeds in the inputs' order or by name, of one sample or several, in a list, a generator, a function."""
    float32 = np.dtype(np.float32)
    ports = [Port("x", (1, 3, 4), float32), Port("y", (1, 2), float32)]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3, 4)).astype(np.float32), rng.normal(size=(6, 2)).astype(np.float32)
    expected = list(Samples.of({"x": x, "y": y}, ports).rows())

    def feeds(size: int) -> Iterator[list[NDArray[Any]]]:
        for at in range(0, 6, size):
            yield [x[at : at + size], y[at : at + size]]

    named = [{"y": y[at : at + 1], "x": x[at : at + 1]} for at in range(6)]
    for dataset in (lambda: feeds(1), lambda: feeds(3), feeds(2), list(feeds(1)), named):
        for ours, theirs in zip(Samples.of(dataset, ports).rows(), expected, strict=True):
            assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    wrong: list[tuple[Any, str]] = [
        ([], "there are none"),
        ([[x[:1]]], "a feed has 1 arrays, the network 2 inputs"),
        ([[x[:1], y[:1]], {"x": x[:1]}], "feeds have different inputs"),
        ([[x[:1], y[:1]], [x[:1, :2], y[:1]]], "feeds of different shapes"),
    ]
    for dataset, words in wrong:
        with pytest.raises(SampleError, match=words):
            Samples.of(dataset, ports)
