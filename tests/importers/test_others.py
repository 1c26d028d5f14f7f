"""SavedModel, TFLite, PyTorch: one sentence where the extra is absent, the same numbers where it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpuflow.errors import ModelError
from tpuflow.evaluation.import_check import verify_import
from tpuflow.frontend import load, run_float
from tpuflow.importers import from_torch


def absent(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Makes packages seem not to be installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in names else find(name, *rest)
    )


@pytest.mark.feature("IMP-38")
def test_without_the_extra_one_sentence_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "tensorflow", "tf2onnx", "torch")
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    lite = tmp_path / "net.tflite"
    lite.write_bytes(b"\x1c\0\0\0TFL3")
    for path in (tmp_path, tmp_path / "saved_model.pb", lite):
        with pytest.raises(ModelError) as raised:
            load(path)
        assert str(raised.value).endswith(
            'tensorflow and tf2onnx not installed, which reads such models: pip install "tpuflow[tf]"'
        )
    with pytest.raises(ModelError, match=r'PyTorch is not installed.*pip install "tpuflow\[torch\]"'):
        from_torch(None, None)


@pytest.mark.feature("IMP-38")
def test_a_torch_module() -> None:
    torch: Any = pytest.importorskip("torch", reason="the extra torch is absent")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 5),
    )
    x = torch.randn(1, 3, 16, 16)
    proto = from_torch(module, x, input_names=["image"], output_names=["scores"], dynamic_batch=True)
    assert module.training
    model = load(proto, batch=2)
    assert [(port.name, port.shape) for port in model.inputs] == [("image", (2, 3, 16, 16))]
    verify_import(model)
    both = torch.cat([x, -x])
    expected = module.eval()(both).detach().numpy()
    found = run_float(model.model, {"image": both.numpy()})["scores"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match=r"torch\.onnx cannot export Linear"):
        from_torch(torch.nn.Linear(3, 3), torch.randn(1, 4))


@pytest.mark.parametrize("kind", ["saved", "lite"])
@pytest.mark.feature("IMP-38")
def test_a_tensorflow_model(tmp_path: Path, kind: str) -> None:
    tensorflow: Any = pytest.importorskip("tensorflow", reason="the extra tf is absent")
    pytest.importorskip("tf2onnx", reason="the extra tf is absent")
    tensorflow.random.set_seed(0)
    weights = tensorflow.Variable(tensorflow.random.normal([3, 3, 3, 8]))

    def compute(image: Any) -> Any:
        y = tensorflow.nn.conv2d(image, weights, 2, "SAME")
        return tensorflow.nn.softmax(tensorflow.reduce_mean(tensorflow.nn.relu(y), [1, 2]))

    signature = [tensorflow.TensorSpec([1, 9, 9, 3], tensorflow.float32)]
    network = tensorflow.Module()
    network.weights = weights
    network.compute = tensorflow.function(compute, input_signature=signature)
    path = tmp_path / "saved"
    tensorflow.saved_model.save(network, str(path), signatures=network.compute)
    if kind == "lite":
        lite = tensorflow.lite.TFLiteConverter.from_saved_model(str(path)).convert()
        path = tmp_path / "network.tflite"
        path.write_bytes(lite)
    model = load(path)
    x = np.random.default_rng(0).normal(size=(1, 9, 9, 3)).astype(np.float32)
    found = run_float(model.model, {model.inputs[0].name: x})[model.outputs[0].name]
    np.testing.assert_allclose(found, network.compute(x).numpy(), rtol=1e-4, atol=1e-5)
