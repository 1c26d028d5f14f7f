"""Floor, Ceil and Round: whole numbers and halves are codes of what they read, in 16 bits they are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

from frontend.graphs import Node, graph
from lowering.quantized import lowered
from tpuflow.lowering import scheme

CONSTANTS = {"half": np.float32(0.5), "c255": np.float32(255), "three": np.float32(3)}
NODES: Mapping[str, Sequence[Node]] = {
    "itself": [("F", "x", "z")],
    "sign": [("Sign", "x", "y"), ("F", "y", "z")],
    "clamp": [("Relu", "x", "y"), ("F", "y", "z")],
    "twice": [("Floor", "x", "y"), ("F", "y", "z")],
    "sum": [("Add", "x y", "w"), ("F", "w", "z")],
    "difference": [("Sub", "x y", "w"), ("Relu", "w", "v"), ("F", "v", "z")],
    "half": [("Mul", "x half", "w"), ("F", "w", "z")],
    "third": [("Mul", "x three", "w"), ("Div", "w three", "v"), ("F", "v", "z")],
    "image": [("Div", "x c255", "w"), ("Mul", "w c255", "v"), ("F", "v", "z")],
    "shape": [("Transpose", "x", "w", {"perm": [1, 0]}), ("F", "w", "z")],
}


def network(nodes: Sequence[Node], function: str, shape: list[int]) -> onnx.ModelProto:
    made = [(function if operator == "F" else operator, *rest) for operator, *rest in nodes]
    read = {name for _, names, *_ in made for name in names.split()}
    constants = {name: number for name, number in CONSTANTS.items() if name in read}
    return graph(made, {name: shape for name in ("x", "y") if name in read - {made[0][2]}}, ["z"], constants)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("function", ["Floor", "Ceil", "Round"])
@pytest.mark.parametrize("name", NODES)
def test_whole_numbers_stay_what_they_are(name: str, function: str, dtype: str) -> None:
    """A number just below a whole one would become the next lower one: 3 dB behind a sign."""
    generator = np.random.default_rng(0)
    feeds = [
        {"x": np.rint(generator.uniform(-12, 12, (4, 32))), "y": np.rint(generator.uniform(-9, 9, (4, 32)))}
        for _ in range(4)
    ]
    model = network(NODES[name], function, [4, 32])
    given = {value.name for value in model.graph.input}
    feeds = [{k: v.astype(np.float32) for k, v in feed.items() if k in given} for feed in feeds]
    found = lowered(model, feeds, {"quantize": {"dtype": dtype}})
    assert found.compare(feeds[0])["z"].sqnr > 60
    found.equals_reference(feeds[0])


@pytest.mark.parametrize("lowest", [-1, 0])
@pytest.mark.parametrize("reach", [1e-3, 0.4, 3.0, 100.0, 5e3])
@pytest.mark.parametrize(("function", "exact"), [("Floor", np.floor), ("Ceil", np.ceil), ("Round", np.rint)])
def test_of_16_bits_every_code_is_rounded_exactly(
    function: str, exact: np.ufunc, reach: float, lowest: int
) -> None:
    """Where a table has too few words for all jumps."""
    x = np.linspace(lowest * reach, reach, 4096).astype(np.float32).reshape(4, 1024)
    found = lowered(
        network(NODES["itself"], function, [4, 1024]), [{"x": x}], {"quantize": {"dtype": "int16"}}
    )
    grid = found.graph.tensors[found.graph.inputs[0]]
    (code,) = found.inputs({"x": x}).values()
    assert grid.scale is not None
    real = (code.astype(np.float64) - grid.zero_point) * grid.scale[0]
    np.testing.assert_allclose(found.run({"x": x})["z"], exact(real), atol=1e-4 * max(reach, 1))
    found.equals_reference({"x": x})


def test_steps_are_widened_to_parts_of_a_number() -> None:
    narrow = scheme.activation(-3.0, 5.0, scheme.Format("int8", "asymmetric"))
    for number in (1.0, 0.5, 1 / 3):
        grid = scheme.dividing(narrow, [number])
        assert scheme.on_steps(np.array([number]), grid, 0.0) == grid
        assert narrow.scale <= grid.scale < 1.25 * narrow.scale
        assert (grid.lo - grid.zero_point) * grid.scale <= -3.0 + grid.scale / 2
    coarse = scheme.activation(-300.0, 500.0, scheme.Format("int8", "asymmetric"))
    assert scheme.dividing(coarse, [1.0]) == coarse
    wide = scheme.symmetric(300.0, scheme.Format("int16"))
    assert scheme.dividing(wide, [0.5, 1.0]).scale == 2.0**-6
    assert scheme.dividing(wide, []) == wide
