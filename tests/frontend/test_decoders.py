"""Operators onnxruntime writes for decoders become those of the closed set, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from frontend.graphs import array, graph, integers, normalized, operators
from tpuflow import load
from tpuflow.frontend import FloatSession, check_model

MS = "com.microsoft"


def _codes(seed: int, *shape: int, high: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.uint8)


def _tables(positions: int, half: int) -> dict[str, Any]:
    angles = np.arange(positions)[:, None] / 100.0 ** (np.arange(half) / half)
    return {"cos": np.cos(angles).astype("f"), "sin": np.sin(angles).astype("f")}


@pytest.mark.parametrize(
    ("bits", "zeros"), [(4, "none"), (4, "codes"), (4, "floats"), (8, "none"), (8, "codes")]
)
@pytest.mark.parametrize(("k", "n", "block"), [(64, 5, 32), (72, 6, 16), (96, 3, 64)])
def test_products_of_codes(bits: int, zeros: str, k: int, n: int, block: int) -> None:
    blocks = -(-k // block)
    constants: dict[str, Any] = {
        "w": _codes(1, n, blocks, block * bits // 8),
        "s": (np.abs(array(n * blocks, seed=2)) * 0.02 + 0.01).astype("f"),
    }
    names = "x w s"
    if zeros == "codes":
        constants["z"] = _codes(3, n * (-(-blocks * bits // 8)))
        names += " z"
    elif zeros == "floats":
        constants["z"] = (array(n, blocks, seed=4) + 8).astype("f")
        names += " z"
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    model = graph(
        [(f"{MS}:MatMulNBits", names, "y", attributes)], {"x": [2, 3, k]}, ["y"], constants, domains=[MS]
    )
    assert operators(normalized(model, 1e-4)) == {"MatMul": 1}


@pytest.mark.parametrize(("k", "n", "block"), [(64, 5, 32), (72, 6, 16), (96, 3, 64)])
def test_products_of_8_bit_codes_with_float_zero_points(k: int, n: int, block: int) -> None:
    """Beside NumPy: onnxruntime has no kernel for them."""
    blocks = -(-k // block)
    codes, zeros = _codes(1, n, blocks, block), array(n, blocks, seed=4) + np.float32(128)
    scales = (np.abs(array(n * blocks, seed=2)) * 0.02 + 0.01).astype("f")
    attributes = {"K": k, "N": n, "bits": 8, "block_size": block}
    node = (f"{MS}:MatMulNBits", "x w s z", "y", attributes)
    constants = {"w": codes, "s": scales, "z": zeros}
    model = load(graph([node], {"x": [2, 3, k]}, ["y"], constants, domains=[MS]))
    assert operators(model) == {"MatMul": 1}
    weights = (codes - zeros[..., None]) * scales.reshape(n, blocks, 1)
    x = array(2, 3, k, seed=5)
    found = FloatSession(model.model).run({"x": x})["y"]
    np.testing.assert_allclose(found, x @ weights.reshape(n, -1)[:, :k].T, rtol=1e-4, atol=1e-4)


def test_a_product_of_codes_adds_its_bias() -> None:
    constants = {"w": _codes(1, 4, 2, 16), "s": array(8, seed=2, scale=0.02), "b": array(4, seed=3)}
    attributes = {"K": 64, "N": 4, "bits": 4, "block_size": 32}
    node = (f"{MS}:MatMulNBits", "x w s _ _ b", "y", attributes)
    model = graph([node], {"x": [3, 64]}, ["y"], constants, domains=[MS])
    assert "MatMulNBits" not in operators(normalized(model, 1e-4))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_codes(bits: int, zeros: bool) -> None:  # noqa: FBT001 - a parameter of the test
    per = 8 // bits
    constants: dict[str, Any] = {
        "t": _codes(1, 10, 64 // per),
        "s": (np.abs(array(10, 2, seed=2)) + 0.1).astype("f"),
    }
    if zeros:
        constants["z"] = _codes(3, 10, 2 // per)
    node = (
        f"{MS}:GatherBlockQuantized",
        "t i s" + (" z" if zeros else ""),
        "y",
        {"block_size": 32, "bits": bits, "gather_axis": 0, "quantize_axis": 1},
    )
    model = graph(
        [node], {"i": [2, 3]}, ["y"], constants, opset=21, types={"i": TensorProto.INT64}, domains=[MS]
    )
    assert operators(normalized(model)) == {"Gather": 1}


def test_simplified_normalization() -> None:
    node = ("SimplifiedLayerNormalization", "x w", "y", {"axis": -1, "epsilon": 1e-6, "stash_type": 1})
    model = graph([node], {"x": [2, 3, 8]}, ["y"], {"w": array(8, seed=1)}, domains=[MS])
    assert operators(normalized(model)) == {"RMSNormalization": 1}


@pytest.mark.parametrize("simple", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("summed", [True, False])
def test_skip_normalization(*, simple: bool, biased: bool, summed: bool) -> None:
    names = "x s w" + ("" if simple else " v") + (" b" if biased else "")
    operator = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    constants = {"w": array(8, seed=1), "v": array(8, seed=2), "b": array(8, seed=3)}
    node = (f"{MS}:{operator}", names, "y m i t" if summed else "y", {"epsilon": 1e-5})
    nodes = [node, ("Relu", "t", "u")] if summed else [node]
    model = graph(
        nodes, {"x": [2, 3, 8], "s": [2, 3, 8]}, ["y", "u"] if summed else ["y"],
        {name: constants[name] for name in names.split()[2:]}, domains=[MS],
    )  # fmt: skip
    kind = "RMSNormalization" if simple else "LayerNormalization"
    assert operators(normalized(model))[kind] == 1


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("turned", [0, 4])
def test_rotary_positions(interleaved: int, turned: int, *, heads_first: bool) -> None:
    attributes = {"interleaved": interleaved}
    if turned:
        attributes |= {"rotary_embedding_dim": turned, "num_heads": 3}
    node = (f"{MS}:RotaryEmbedding", "x p cos sin", "y", attributes)
    shape = [1, 3, 5, 8] if heads_first else [1, 5, 24]
    constants = _tables(12, (turned or 8) // 2) | {"p": integers(4, 5, 6, 7, 8)[None]}
    model = graph([node], {"x": shape}, ["y"], constants, domains=[MS])
    assert "RotaryEmbedding" not in operators(normalized(model))


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize(("sequence", "before"), [(1, 5), (4, 0), (3, 6)])
@pytest.mark.parametrize("form", ["plain", "packed", "windowed", "capped", "biased", "sinks", "smooth"])
def test_grouped_queries(form: str, sequence: int, before: int, rotary: int) -> None:
    heads, shared, width = 4, 2, 16
    total = sequence + before
    constants: dict[str, Any] = _tables(total, width // 2) if rotary else {}
    constants |= {"n": np.array([total - 1], np.int32), "t": np.array(total, np.int32)}
    inputs: dict[str, list[int]] = {"q": [1, sequence, heads * width]}
    names = ["q", "k", "v", "pk", "pv", "n", "t", "cos" if rotary else "_", "sin" if rotary else "_"]
    if form == "packed":
        inputs["q"] = [1, sequence, (heads + 2 * shared) * width]
        names[1:3] = ["_", "_"]
    else:
        inputs |= {"k": [1, sequence, shared * width], "v": [1, sequence, shared * width]}
    if before:
        inputs |= {"pk": [1, shared, before, width], "pv": [1, shared, before, width]}
    else:
        names[3:5] = ["_", "_"]
    attributes: dict[str, Any] = {
        "num_heads": heads,
        "kv_num_heads": shared,
        "do_rotary": rotary,
        "scale": 0.3,
    }
    if form == "windowed":
        attributes["local_window_size"] = 3
    if form == "capped":
        attributes["softcap"] = 2.0
    if form == "biased":
        names += ["_", "bias"]
        constants["bias"] = array(1, 1, sequence, total, seed=7)
    if form == "smooth":
        attributes["smooth_softmax"] = 1
    names += ["_"] * (16 - len(names))
    if form == "sinks":
        names[11] = "sinks"
        constants["sinks"] = array(heads, seed=8)
    while names[-1] == "_":
        names.pop()
    node = (f"{MS}:GroupQueryAttention", " ".join(names), "y a b", attributes)
    model = graph([node], inputs, ["y", "a", "b"], constants, domains=[MS])
    found = operators(normalized(model, 1e-4))
    assert "GroupQueryAttention" not in found
    assert found["MatMul"] == 2


def test_queries_and_keys_have_norms_by_head() -> None:
    """Beside norms of their own: onnxruntime has no kernel for norms within on a processor."""
    width, scale = 16, {"qn": array(16, seed=9) + 2, "kn": array(16, seed=10) + 2}
    constants = {"n": np.array([8], np.int32), "t": np.array(9, np.int32), **_tables(9, width // 2), **scale}
    inputs = {"q": [1, 3, 64], "k": [1, 3, 32], "v": [1, 3, 32], "pk": [1, 2, 6, 16], "pv": [1, 2, 6, 16]}
    heads = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    within = (f"{MS}:GroupQueryAttention", "q k v pk pv n t cos sin _ _ _ _ _ qn kn", "y a b",
              heads | {"qk_norm_epsilon": 1e-5})  # fmt: skip
    apart: list[Any] = []
    for name in "qk":
        apart += [
            ("Reshape", f"{name} by_head", f"{name}1"),
            ("SimplifiedLayerNormalization", f"{name}1 {name}n", f"{name}2", {"epsilon": 1e-5}),
            ("Reshape", f"{name}2 joined", f"{name}3"),
        ]
    apart.append((f"{MS}:GroupQueryAttention", "q3 k3 v pk pv n t cos sin", "y a b", heads))
    shapes = {"by_head": integers(1, 3, -1, 16), "joined": integers(1, 3, -1)}
    models = [
        load(graph(nodes, inputs, ["y", "a", "b"], kept, domains=[MS])).model
        for nodes, kept in (([within], constants), (apart, constants | shapes))
    ]
    feed = {name: array(*shape, seed=at) for at, (name, shape) in enumerate(inputs.items())}
    found, expected = (FloatSession(model).run(feed) for model in models)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)


OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("GroupQueryAttention", "q k v _ _ n t", {"causal": 0}),
    ("GroupQueryAttention", "q k v _ _ n t", {"kv_cache_bit_width": 8}),
    ("GroupQueryAttention", "q k v _ _ n t", {"k_quant_type": "PER_TENSOR"}),
    ("GroupQueryAttention", "q k v _ _ n t", {"sliding_window_cache": 1, "local_window_size": 2}),
    ("GroupQueryAttention", "q k v _ _ n t _ _ _ _ _ s s", {}),
    ("MatMulNBits", "q w s", {"weight_prepacked": 1}),
    ("QMoE", "x r w s _ w s", {"quant_type": "fp4"}),
    ("QMoE", "x r w s _ w s", {"weights_prepacked": 1}),
    ("QMoE", "x r w s _ w s _ _ _ _ _ _ _ r", {}),
]


@pytest.mark.parametrize(("operator", "names", "options"), OPTIONS)
def test_options_that_are_not_known_are_not_passed_over(
    operator: str, names: str, options: dict[str, Any]
) -> None:
    """Caches in codes, weights in a device's own order, attention to later keys are named."""
    attributes = {
        "GroupQueryAttention": {"num_heads": 2, "kv_num_heads": 2},
        "MatMulNBits": {"K": 32, "N": 4, "bits": 4, "block_size": 32},
        "QMoE": {"k": 1, "expert_weight_bits": 8},
    }[operator]
    constants: dict[str, Any] = {"n": np.array([4], np.int32), "t": np.array(5, np.int32)}
    inputs: dict[str, list[int]] = {}
    if operator == "QMoE":
        inputs = {"x": [3, 32], "r": [3, 2]}
        constants = {"w": _codes(1, 2, 32, 32), "s": array(2, 32)}
    elif operator == "MatMulNBits":
        constants = {"w": _codes(1, 4, 1, 16), "s": array(4)}
        inputs = {"q": [3, 32]}
    else:
        inputs = {name: [1, 5, 32] for name in "qkv"}
        if names.endswith("s"):
            constants["s"] = array(1)
    node = (f"{MS}:{operator}", names, "y", attributes | options)
    model = graph([node], inputs, ["y"], constants, domains=[MS])
    assert any(finding.operator == f"{MS}.{operator}" for finding in check_model(model))
