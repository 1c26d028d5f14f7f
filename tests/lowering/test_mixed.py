"""Exceptions by name, and what lowering refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from lowering.quantized import extrema, lowered, normal
from models.builder import Builder
from tpuflow.calibration import Range, Ranges
from tpuflow.config import Config, ConfigError
from tpuflow.errors import UnsupportedModelError
from tpuflow.frontend import load
from tpuflow.lowering import QuantizeError, lower


def chain() -> onnx.ModelProto:
    """conv_0, maxpool_1, conv_2, tanh_3, a sum and a flattened product."""
    b = Builder("chain")
    x = b.input("x", [1, 3, 12, 12])
    y = b.node("MaxPool", b.conv(x, 8), kernel_shape=[2, 2], strides=[2, 2])
    z = b.node("Tanh", b.conv(y, 8, pads=(1, 1, 1, 1)))
    b.output(b.gemm(b.node("Add", y, z), 4))
    return b.model()


def dtypes(config: dict[str, Any]) -> dict[str, str]:
    """Element type of every layer's output; that of the network follows the layers."""
    proto = chain()
    feeds = normal(proto)
    config = config | {"quantize": {"output_dtype": "int8"} | config.get("quantize", {})}
    made = lowered(proto, feeds, config)
    for found in made.compare(feeds[0]).values():
        assert found.sqnr > 25
    made.equals_reference(feeds[1])
    tensors = made.graph.tensors
    return {layer.name: tensors[layer.output].dtype for layer in made.graph.layers}


def test_one_layer_of_another_type() -> None:
    found = dtypes({"layers": [{"match": "conv_0", "dtype": "int16"}]})
    # What only passes codes on follows; the next layer reads 16 bits and writes 8.
    assert found == {"/conv_0": "int16", "/maxpool_1": "int16", "/tanh_3": "int8", "/add_4": "int8"} | {
        name: "int8" for name in found if name not in {"/conv_0", "/maxpool_1"}
    }


def test_all_but_one_layer() -> None:
    found = dtypes({"quantize": {"dtype": "int16"}, "layers": [{"match": "*tanh*", "dtype": "int8"}]})
    assert {name for name, dtype in found.items() if dtype == "int8"} == {"/tanh_3"}


def test_a_border_where_codes_only_pass() -> None:
    found = dtypes({"layers": [{"match": "/maxpool_1", "dtype": "int16"}]})
    assert found["/conv_0"] == found["/maxpool_1"] == "int8"
    assert found["maxpool_1/int16"] == "int16"
    assert found["/add_4"] == "int8"


def test_wide_activations_with_narrow_weights() -> None:
    proto = chain()
    made = lowered(proto, normal(proto), {"quantize": {"dtype": "int16", "weight_bits": 8}})
    constants = [t for t in made.graph.tensors if t.is_constant and t.scale is not None]
    assert {t.dtype for t in constants} == {"int8"}
    assert any(t.is_constant and t.dtype == "int64" for t in made.graph.tensors)


def test_what_a_network_returns_has_sixteen_bits() -> None:
    b = Builder("ends")
    x = b.conv(b.input("x", [1, 3, 8, 8]), 4)
    left, right = b.node("Relu", b.conv(x, 2)), b.node("Sigmoid", b.conv(x, 3))
    b.output(b.node("Reshape", b.node("Concat", left, right, axis=1), b.integers(1, 80)), x)
    made = lowered(b.model(), normal(b))
    found = {layer.name: made.graph.tensors[layer.output].dtype for layer in made.graph.layers}
    # The first convolution is returned too, but others read it.
    assert found.pop("/conv_0") == "int8"
    assert set(found.values()) == {"int16"}
    concat = next(json.loads(layer.op_json) for layer in made.graph.layers if layer.op == "concat")
    assert concat["requants"] == [None, None]


@pytest.mark.parametrize(("scaled", "dtype"), [(True, "int16"), (False, "int8")])
def test_what_only_a_softmax_reads_has_sixteen_bits(scaled: bool, dtype: str) -> None:  # noqa: FBT001 - parametrised
    b = Builder("scores")
    x = b.linear(b.input("x", [1, 5, 12]), 9)
    y = (
        b.node("Mul", x, b.constant(np.array(0.25, np.float32)))
        if scaled
        else b.node("Tanh", b.node("Erf", x))
    )
    b.output(b.gemm(b.node("Softmax", y, axis=-1), 3))
    made = lowered(b.model(), normal(b))
    assert made.graph.tensors[made.graph.layers[0].output].dtype == dtype


def test_later_entries_win() -> None:
    entries = [{"match": "*", "dtype": "int16"}, {"match": "*conv*", "dtype": "int8"}]
    found = dtypes({"layers": entries})
    assert found["/conv_0"] == "int8"
    assert found["/add_4"] == "int16"


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("mode", ["asymmetric", "symmetric_full", "symmetric_restricted"])
@pytest.mark.parametrize("unsigned", [True, False])
def test_grids(mode: str, per_channel: bool, unsigned: bool) -> None:  # noqa: FBT001 - parametrised
    dtypes({"quantize": {"activation_mode": mode, "per_channel": per_channel, "unsigned": unsigned}})


def test_fewer_bits_where_the_machine_has_fewer() -> None:
    dtypes({"quantize": {"multiplier_bits": 8, "bias_bits": 16, "table_bits": 8}})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"match": "nothing*", "dtype": "int8"}, '"nothing*" matches no node and no tensor'),
        ({"match": "*maxpool*", "weight_bits": 8}, '"*maxpool*" sets weight_bits, but no layer it matches'),
    ],
)
def test_entries_without_effect(entry: dict[str, Any], message: str) -> None:
    proto = chain()
    with pytest.raises(ConfigError) as caught:
        lowered(proto, normal(proto), {"layers": [entry]})
    assert message in str(caught.value)


def test_a_missing_range_names_the_tensor() -> None:
    model = load(chain())
    ranges = extrema(model, normal(chain()))
    kept = {name: found for name, found in ranges.tensors.items() if not name.startswith("conv_0")}
    with pytest.raises(QuantizeError, match=r'tensor "conv_0" has no range: calibrate this model again'):
        lower(model.model, Ranges(kept))


def test_ranges_per_channel_are_one_range() -> None:
    model = load(chain())
    ranges = dict(extrema(model, normal(chain())).tensors)
    ranges["conv_0"] = Range((-1.0,) * 7 + (-3.0,), (2.0,) * 8, 1)
    graph = lower(
        model.model, Ranges(ranges), Config.parse({"quantize": {"activation_mode": "symmetric_restricted"}})
    )
    found = next(t for t in graph.tensors if t.name == "conv_0")
    assert found.scale == [float(np.float32(3.0) / np.float32(127))]


def test_every_node_that_cannot_be_lowered_is_listed() -> None:
    b = Builder("refused")
    x = b.input("x", [1, 4, 6, 6])
    first = b.node("Cast", b.node("Relu", x), to=TensorProto.INT64)
    second = b.node("Cast", b.node("Tanh", x), to=TensorProto.INT64)
    b.output(first, second)
    model = load(b.model())
    with pytest.raises(UnsupportedModelError) as caught:
        lower(model.model, extrema(model, normal(b)))
    found = {(finding.operator, finding.attribute) for finding in caught.value.findings}
    assert found == {("Cast", "to")}
    assert len(caught.value.findings) == 2


@pytest.mark.feature("QMO-26")
def test_presets_of_layers_need_not_matter_in_every_field() -> None:
    """A preset says how wide tables and biases would be; a layer without them has it all the same."""
    found = dtypes({"layers": [{"match": "*maxpool*", "quant_type": "w8a16"}]})
    assert "int16" in found.values()
    with pytest.raises(ConfigError, match="sets table_bits, but no layer"):
        dtypes({"layers": [{"match": "*maxpool*", "dtype": "int16", "table_bits": 12}]})


@pytest.mark.parametrize("key", ["weight_bits", "bias_bits"])
@pytest.mark.feature("CFG-17")
def test_codes_asked_of_floats_are_an_error(key: str) -> None:
    """Unless a later entry made the layer floats: then the earlier one has been replaced."""
    wish, floats = {"match": "/conv_0", key: 16}, {"match": "/conv_0", "dtype": "float16"}
    with pytest.raises(ConfigError, match=f'"/conv_0" sets {key}, but no layer it matches has .* in codes'):
        dtypes({"layers": [floats, wish]})
    with pytest.raises(ConfigError, match="in codes"):
        dtypes({"layers": [{**wish, **floats}]})
    assert dtypes({"layers": [wish, floats]})["/conv_0"] == "float16"
