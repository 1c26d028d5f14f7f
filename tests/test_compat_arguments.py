"""What users of the published framework hand to it: open sizes, lists, file names, other kinds of things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.builder import Builder, samples, small_classifier
from tpu_framework import O1, Network, QuantizedModel, RegularModel, compile_, get_hw_params
from tpuflow.errors import FileError, ModelError, RangesError

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def model() -> RegularModel:
    return RegularModel(small_classifier().model(), {"image": (None, 3, 6, None)}, None)


@pytest.fixture(scope="module")
def data() -> Arrays:
    return dict(samples(small_classifier().model(), 4))


def test_open_sizes_are_the_models_own_or_one_sample(model: RegularModel) -> None:
    assert model.model.inputs[0].shape == (1, 3, 6, 5)
    assert RegularModel(small_classifier().model(), [(None, 3, 6, 5)], None).model.inputs[0].shape[0] == 1
    b = Builder("open")
    b.output(b.node("Relu", b.input("x", ["batch", 4, "length"])))
    assert RegularModel(b.model(), {"x": (None, 4, 7)}, None).model.inputs[0].shape == (1, 4, 7)
    with pytest.raises(ModelError, match='input "x": axis 2 is open in the model, too: give its size'):
        RegularModel(b.model(), {"x": (None, 4, None)}, None)


def test_samples_may_be_lists_and_of_double_precision(model: RegularModel, data: Arrays) -> None:
    expected = model.calibrate(data)
    assert model.calibrate({"image": data["image"].astype(np.float64)}) == expected
    assert model.calibrate({"image": list(data["image"])}) == expected  # type: ignore[arg-type]
    feeds = [{"image": data["image"][at : at + 1].tolist()} for at in range(4)]
    assert model.calibrate(feeds) == expected


@pytest.mark.parametrize("name", ["network.pb", "network.tpuq", None])
def test_a_saved_model_is_found_by_the_name_it_was_given(
    name: str | None, model: RegularModel, data: Arrays, tmp_path: Path
) -> None:
    quantized = model.quantize(model.calibrate(data))
    written = quantized.save(tmp_path, name)
    for path in (written, tmp_path / (name or written.name), tmp_path):
        loaded = QuantizedModel.load(path)
        np.testing.assert_array_equal(loaded.rescale(data)["image"], quantized.rescale(data)["image"])
    quantized.save(tmp_path, "other")
    with pytest.raises(FileError, match="has 2 models"):
        QuantizedModel.load(tmp_path)
    with pytest.raises(FileError, match="no such file"):
        QuantizedModel.load(tmp_path / "networks")


def test_arguments_of_another_kind_are_named(model: RegularModel, data: Arrays) -> None:
    thresholds = model.calibrate(data)
    with pytest.raises(RangesError, match="a pair of numbers per tensor"):
        model.quantize({**thresholds, "image": 1.0})  # type: ignore[dict-item]
    network, _ = Network.from_quantized_model(model.quantize(thresholds))
    with pytest.raises(TypeError, match=r'hardware_parameters is .*get_hw_params\("128x128_asic"\)'):
        compile_("128x128_asic", network, O1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="parameters is 5: give CompileParameters, such as O1 or O5"):
        compile_(get_hw_params("128x128_asic"), network, 5)  # type: ignore[arg-type]
