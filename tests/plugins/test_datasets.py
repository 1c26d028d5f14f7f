"""Datasets that are there without a plugin."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tpuflow.plugins import PluginError, Registry, dataset_samples
from tpuflow.plugins.datasets import DATASETS

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Port:
    """An input of a network that does not matter otherwise."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    static: bool = True
    finite: bool = True


def read(text: str, *ports: Port) -> tuple[list[dict[str, NDArray[Any]]], Any]:
    samples, labels = dataset_samples(Registry(), text, ports)
    return list(samples.rows()), labels


IMAGES = np.arange(5 * 3 * 4 * 6, dtype=np.float32).reshape(5, 3, 4, 6)
FIRST, LAST = Port("x", (1, 3, 4, 6)), Port("x", (1, 4, 6, 3))


@pytest.mark.parametrize(
    ("name", "stored", "port"),
    [
        ("NumpyDataset", IMAGES, FIRST),
        ("NumpyNHWC2NCHWDataset", IMAGES.transpose(0, 2, 3, 1), FIRST),
        ("NumpyNCHW2NHWCDataset", IMAGES, LAST),
    ],
)
@pytest.mark.feature("PLG-08")
def test_arrays_with_labels(tmp_path: Path, name: str, stored: NDArray[Any], port: Port) -> None:
    np.save(tmp_path / "data.npy", stored)
    np.save(tmp_path / "labels.npy", np.arange(5))
    rows, labels = read(f"{name}({tmp_path / 'data.npy'},{tmp_path / 'labels.npy'})", port)
    wanted = IMAGES if port is FIRST else IMAGES.transpose(0, 2, 3, 1)
    assert np.array_equal(np.stack([row["x"] for row in rows]), wanted)
    assert labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.feature("PLG-08")
def test_several_inputs_and_one_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", first=IMAGES, second=IMAGES[:, 0, 0])
    ports = Port("a", (1, 3, 4, 6)), Port("b", (1, 6))
    rows, labels = read(f"NumpyMultiInputDataset({tmp_path / 'two.npz'})", *ports)
    assert labels is None
    assert all(np.array_equal(row["a"], IMAGES[at]) for at, row in enumerate(rows))
    assert all(np.array_equal(row["b"], IMAGES[at, 0, 0]) for at, row in enumerate(rows))
    np.save(tmp_path / "one.npy", IMAGES[2])
    (row,), _ = read(f"NumpyWithoutBatchDimDataset({tmp_path / 'one.npy'})", FIRST)
    assert np.array_equal(row["x"], IMAGES[2])


@pytest.mark.feature("PLG-08")
def test_lines_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("1 2 3\n\n4, 5,6\n")
    rows, _ = read(f"TextDataset({tmp_path / 't.txt'})", Port("x", (1, 3)))
    assert [row["x"].tolist() for row in rows] == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("name", ["ImageListDataset", "ImageListNCHWDataset"])
@pytest.mark.feature("PLG-08")
def test_images_named_in_a_list(tmp_path: Path, name: str) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 3)).astype(np.uint8)
    for at in range(2):
        image.fromarray(pixels[at]).save(tmp_path / f"{at}.png")
    (tmp_path / "list.txt").write_text("1.png 7\n0.png 3\n")
    port = LAST if name == "ImageListDataset" else FIRST
    rows, labels = read(f"{name}({tmp_path / 'list.txt'})", port)
    found = np.stack([row["x"] for row in rows])
    assert np.array_equal(found if port is LAST else found.transpose(0, 2, 3, 1), pixels[::-1])
    assert labels.tolist() == [7, 3]


@pytest.mark.feature("PLG-08")
def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    np.save(tmp_path / "five.npy", IMAGES)
    np.save(tmp_path / "four.npy", np.arange(4))
    np.save(tmp_path / "flat.npy", np.arange(4.0))
    (tmp_path / "t.txt").write_text("1 2\n3\n")
    for text, message in (
        (f"NumpyDataset({tmp_path / 'five.npy'},{tmp_path / 'four.npy'})", "differ in their number"),
        (f"NumpyMultiInputDataset({tmp_path / 'five.npy'})", "not a .npz file"),
        (f"NumpyNCHW2NHWCDataset({tmp_path / 'flat.npy'})", "4 axes; this one has 1"),
        (f"TextDataset({tmp_path / 't.txt'})", "lines differ"),
        (f"NumpyDataset({tmp_path / 'absent.npy'})", "absent.npy: cannot be read: no such file"),
    ):
        with pytest.raises(PluginError, match=message):
            read(text, FIRST)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("TextDataset", "", "list.txt: there are no samples in it"),
        ("TextDataset", "\n \n", "list.txt: there are no samples in it"),
        ("ImageListDataset", "\n", "list.txt: there are no samples in it"),
        ("ImageListDataset", "a.png 1\n\nb.png\n", "list.txt: line 3 has no label"),
        ("ImageListNCHWDataset", "a.png\nb.png 2\n", "list.txt: line 2 has a label"),
        (
            "ImageListDataset",
            "a.png 1\nb.png cat\n",
            "list.txt: line 2: the label is a whole number, not 'cat'",
        ),
        ("ImageListDataset", "\nabsent.png\n", "list.txt: line 2: absent.png: no such file or directory"),
        ("ImageListDataset", "n" * 5000, r"list.txt: line 1: n{77}\.\.\.: file name too long"),
        ("ImageListDataset", "list.txt\n", "list.txt: line 1: list.txt: is no image"),
    ],
)
@pytest.mark.feature("PLG-08")
def test_lists_with_lines_that_are_no_samples_are_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / "list.txt").write_text(text, encoding="utf-8")
    with pytest.raises(PluginError, match=message) as caught:
        read(f"{name}({tmp_path / 'list.txt'})", FIRST)
    assert "\n" not in str(caught.value)


def test_images_of_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (64, 64)).save(tmp_path / "wide.png")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 1000)
    (tmp_path / "list.txt").write_text("wide.png\n")
    with pytest.raises(PluginError, match=r"list.txt: line 1: wide.png: image size \(4096"):
        read(f"ImageListDataset({tmp_path / 'list.txt'})", LAST)


@pytest.mark.feature("PLG-08")
def test_a_plugin_of_the_same_name_counts_before() -> None:
    registry = Registry()

    class Own:
        def __init__(self, data_file: str) -> None:
            self.file = data_file

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return [[np.ones((3, 4, 6), np.float32)], float("-inf")]

    registry.add("dataset", "NumpyDataset", Own, "1.0")
    samples, _ = dataset_samples(registry, "NumpyDataset(anything)", [FIRST])
    assert [row["x"].min() for row in samples.rows()] == [1]
    assert "NumpyDataset" in DATASETS
