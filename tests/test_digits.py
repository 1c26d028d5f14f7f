"""The trained network and samples that ship with the repository, and the training code that made them."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from conftest import REPOSITORY

if TYPE_CHECKING:
    from types import ModuleType

DIGITS = REPOSITORY / "examples" / "digits"


@pytest.fixture(scope="module")
def train() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_train", DIGITS / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_committed_network_recognizes_digits_it_never_saw() -> None:
    onnx.checker.check_model(onnx.load(DIGITS / "digits.onnx"), full_check=True)
    assert (DIGITS / "digits.onnx").stat().st_size < 500_000
    with np.load(DIGITS / "digits.npz") as samples, np.load(DIGITS / "calibration.npz") as calibration:
        images, labels = samples["image"], samples["labels"]
        seen = {image.tobytes() for image in calibration["image"]}
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1
    assert not any(image.tobytes() in seen for image in images)
    assert np.bincount(labels, minlength=10).min() >= 20

    (logits,) = ort.InferenceSession(DIGITS / "digits.onnx").run(None, {"image": images})
    right = int((np.asarray(logits).argmax(1) == labels).sum())
    assert right >= 0.97 * len(labels)


def test_gradients_are_those_of_finite_differences(train: Any) -> None:
    rng = np.random.default_rng(1)
    net = train.network(rng)
    for parameter in net.parameters().values():
        # No bias is zero, no step is large: nothing stands on a kink or crosses one.
        parameter.value = parameter.value + 0.1 * rng.standard_normal(parameter.value.shape)
    images, weights = rng.random((3, 1, 8, 8)), rng.standard_normal((3, 10))

    def loss() -> float:
        return float((net.forward(images) * weights).sum())

    loss()
    net.backward(weights)
    gradients = {name: parameter.gradient for name, parameter in net.parameters().items()}
    for name, parameter in net.parameters().items():
        start, direction = parameter.value, rng.standard_normal(parameter.value.shape)
        parameter.value = start + 1e-7 * direction
        above = loss()
        parameter.value = start - 1e-7 * direction
        below = loss()
        parameter.value = start
        assert (above - below) / 2e-7 == pytest.approx((gradients[name] * direction).sum(), rel=1e-5), name


def test_export_computes_what_the_layers_compute(train: Any) -> None:
    rng = np.random.default_rng(2)
    net = train.network(rng)
    images = rng.random((4, 1, 8, 8), dtype=np.float32)
    session = ort.InferenceSession(train.export(net).SerializeToString())
    (logits,) = session.run(None, {"image": images})
    np.testing.assert_allclose(logits, net.forward(images), rtol=1e-4, atol=1e-5)
