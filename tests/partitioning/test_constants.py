"""What depends on constants alone is evaluated at import, whoever knows its operators."""

from __future__ import annotations

import numpy as np
import pytest

import tpuflow
from partitioning.networks import written
from tpuflow.frontend import FloatSession, generate_samples

TEXTS = {
    "operators of onnxruntime's own": """
        a (float[1,3,4,4] x) => (float[1,3,4,4] y) { g = com.microsoft.Gelu (w)  y = Add (x, g) }""",
    "operators for the host": """
        b (float[1,3,4,4] x) => (float[1,3,4,4] y) <int64[1] k = {4}> {
          v, i = TopK <axis = 2> (w, k)  g = GatherElements <axis = 2> (w, i)  y = Mul (x, g)
        }""",
    "what several of them compute": """
        c (float[1,3,4,4] x) => (float[1,3,4,4] y) {
          g = com.microsoft.Gelu (w)  h = com.microsoft.QuickGelu (g)  y = Add (x, h)
        }""",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_constant_subgraph_is_folded(text: str) -> None:
    source = written(text, w=(3, 4, 4))
    model = tpuflow.load(source)
    assert [node.op_type for node in model.model.graph] == [text.rpartition("y = ")[2].split()[0]]
    (feed,) = generate_samples(model, 1)
    expected = FloatSession(source).run(feed)["y"]
    np.testing.assert_allclose(FloatSession(model.model).run(feed)["y"], expected, rtol=1e-5, atol=1e-6)


def test_numbers_drawn_at_random_are_no_constants() -> None:
    text = "d (float[1,3,4,4] x) => (float[1,3,4,4] y) { r = RandomNormal <shape = [4]> ()  y = Mul (x, r) }"
    parts = tpuflow.partition(tpuflow.load(written(text), host=True))
    assert [node for part in parts.host for node in part.nodes] == ["/r"]
