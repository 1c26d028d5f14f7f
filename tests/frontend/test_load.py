"""Loading whole models: trained networks and exported graphs, where they are at hand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
import pytest

from tpuflow.evaluation.import_check import verify_import
from tpuflow.frontend import FloatModel, generate_samples, load
from tpuflow.frontend.normalize import normalize

if TYPE_CHECKING:
    from pathlib import Path

TRAINED = [
    "fastestdet",
    "kws_dscnn",
    "lenet5_mnist",
    "mnist_cntk",
    "mobilenetv2_cifar10",
    "resnet8_cifar10",
    "squeezenet1_1",
    "ultraface_rfb320",
    "vit_mnist",
]
EXPORTED = ["lenet5", "mobilenet_v2_unfused", "squeezenet"]


def check(model: FloatModel, tolerance: float = 1e-5) -> None:
    """The normalised model is valid, computes the same, and normalising it again changes nothing."""
    onnx.checker.check_model(ir.to_proto(model.model), full_check=True)
    for name, result in verify_import(model):
        assert result.cosine > 1 - tolerance, name
        assert result.euclid > 1 - tolerance * 100, name
    before = [str(node) for node in model.model.graph]
    again = normalize(model.model.clone())
    assert [str(node) for node in again.graph] == before
    assert [value.name for value in model.model.graph.inputs] == [port.name for port in model.inputs]


@pytest.mark.parametrize("name", TRAINED)
def test_trained_networks(shared: Path, name: str) -> None:
    check(load(shared / "data" / name / "model.onnx"))


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_graphs(shared: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(shared / "zoo"))
    sys.modules.pop("materialize", None)
    materialize = __import__("materialize")
    model = load(materialize.load(name))
    check(model)
    assert generate_samples(model, 1)[0].keys() == materialize.sample_inputs(name).keys()
