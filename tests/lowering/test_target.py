"""Target files: what they may say, and that quantisation keeps to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frontend.graphs import array, graph
from tpuflow.calibration import calibrate
from tpuflow.config import Config, ConfigError
from tpuflow.frontend import load
from tpuflow.lowering import Graph, lower


def lowered(**values: Any) -> Graph:
    """A convolution and a product in front of a softmax, whose operand is stored with 16 bits by itself."""
    proto = graph(
        [
            ("Conv", "x w", "c"),
            ("Relu", "c", "r"),
            ("Flatten", "r", "f"),
            ("MatMul", "f m", "p"),
            ("Softmax", "p", "z"),
        ],
        {"x": [1, 3, 4, 4]},
        ["z"],
        {"w": array(5, 3, 3, 3), "m": array(20, 6)},
    )
    model = load(proto)
    settings = Config.parse({"quantize": values, "calibrate": {"strategy": "extrema"}})
    return lower(model, calibrate(model, {"x": array(4, 3, 4, 4)}, settings), settings)


def types(found: Graph) -> set[str]:
    return {found.tensors[layer.output].dtype for layer in found.layers}


@pytest.mark.parametrize("form", ["name", "toml", "json"])
@pytest.mark.feature("QMO-33", "LOW-09")
def test_a_target_without_16_bits_is_obeyed(tmp_path: Path, form: str) -> None:
    assert "int16" in types(lowered())
    target = "int8"
    if form == "toml":
        target = str(tmp_path / "mine.toml")
        Path(target).write_text('name = "mine"\n[default]\nactivations = ["int8"]\nweight_bits = [8]\n')
    elif form == "json":
        target = str(tmp_path / "mine.json")
        Path(target).write_text(json.dumps({"name": "mine", "default": {"activations": ["int8"]}}))
    assert types(lowered(target=target)) == {"int8"}


@pytest.mark.feature("QMO-33")
def test_limits_by_operator_and_scales_per_channel(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[[operators]]\nmatch = ["Softmax"]\nactivations = ["int8"]\n')
    found = lowered(target=str(path))
    outputs = [found.tensors[layer.output].dtype for layer in found.layers]
    assert outputs == ["int8", "int16", "int8"], [layer.op for layer in found.layers]
    scales = [len(tensor.scale or ()) for tensor in lowered(target="int8_per_tensor").tensors]
    assert max(scales) == 1
    assert max(len(tensor.scale or ()) for tensor in lowered(target="int8").tensors) > 1


@pytest.mark.feature("NUM-36")
@pytest.mark.parametrize("casts", [["Conv"], ["*"], True])
def test_listed_operators_are_cast_to_what_a_target_has(tmp_path: Path, casts: object) -> None:
    path = tmp_path / "narrow.toml"
    path.write_text('name = "narrow"\n[[operators]]\nmatch = ["Conv", "Relu"]\nactivations = ["int8"]\n')
    wish = {"target": str(path), "dtype": "int16", "output_dtype": "int16"}
    with pytest.raises(ConfigError, match="does not allow int16 outputs of Conv"):
        lowered(**wish)
    found = lowered(**wish, cast_dtypes=["Conv", "Relu"] if casts == ["Conv"] else casts)
    linear = [layer for layer in found.layers if layer.op in {"conv", "mat_mul"}]
    assert [found.tensors[layer.output].dtype for layer in linear] == ["int8", "int16"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"target": "int8", "dtype": "int16"}, 'target "int8" does not allow int16 outputs of Conv'),
        ({"target": "int8", "weight_bits": 16}, 'target "int8" does not allow 16-bit weights of Conv'),
        ({"target": "int8_per_tensor", "per_channel": True}, "does not allow per_channel = true"),
        ({"target": "symmetric", "activation_mode": "asymmetric"}, "does not allow asymmetric activations"),
        ({"target": "int9"}, 'no target is called "int9": known are any, int8, int8_per_tensor, symmetric'),
    ],
)
@pytest.mark.feature("QMO-33", "CFG-15", "LOW-09")
def test_what_a_target_forbids_is_an_error(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        lowered(**values)
    assert words in str(raised.value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.feature("LOW-08")
def test_a_preferred_type_falls_back_and_one_that_is_forced_is_an_error(dtype: str) -> None:
    for kind in ("preferred", "act_int_wht"):
        assert types(lowered(trigger_float_op=f"{dtype}_{kind}")) == {dtype}
        assert types(lowered(target="int8", trigger_float_op=f"{dtype}_{kind}")) == {"int8"}
        with pytest.raises(ConfigError, match=f'target "int8" does not allow {dtype} outputs of Conv'):
            lowered(target="int8", trigger_float_op=f"{dtype}_{kind}!")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "m"\nactivation = 1\n', "activation: extra inputs"),
        ('name = "m"\n[default]\nweight_bits = [4]\n', "default.weight_bits.0"),
        ("name = \n", "not a TOML file"),
    ],
)
@pytest.mark.feature("QMO-33")
def test_files_are_checked(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        lowered(target=str(path))
    assert str(path) in str(raised.value)
