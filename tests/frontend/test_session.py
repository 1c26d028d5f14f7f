"""Sessions whose weights are inputs: what they compute, and what they say."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from models.builder import Builder
from tpuflow.errors import SampleError
from tpuflow.frontend import FloatSession, load


def network() -> onnx.ModelProto:
    """Large weights of a convolution and a product, one of them read twice."""
    b = Builder("weights", seed=3)
    x = b.input("x", [2, 16, 8, 8])
    c = b.node("Relu", b.conv(x, 32))
    b.output(b.gemm(b.node("Flatten", b.node("Add", c, b.conv(x, 32))), 10))
    return b.model()


@pytest.mark.parametrize("outputs", [None, "all"])
@pytest.mark.parametrize("form", ["proto", "model"])
def test_weights_as_inputs(monkeypatch: pytest.MonkeyPatch, outputs: None, form: str) -> None:
    """More of them than are copied: the same numbers, the same inputs, also into memory that is given."""
    proto = network()
    model = proto if form == "proto" else load(proto).model
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 16, 8, 8)).astype(np.float32)}
    expected = FloatSession(model, outputs).run(feeds)
    monkeypatch.setattr("tpuflow.frontend.session.COPIED_BYTES", 0)
    session = FloatSession(model, outputs)
    found = session.run(feeds)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)
    memory = {name: np.zeros_like(array) for name, array in found.items()}
    session.run(feeds, memory)
    for name, array in found.items():
        np.testing.assert_array_equal(memory[name], array)
    with pytest.raises(SampleError, match=r'no input is called "w" \(inputs: x\)'):
        session.run({"w": feeds["x"]})
