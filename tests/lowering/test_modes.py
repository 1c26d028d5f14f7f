"""Modes that are a matter of configuration and lowering: what each changes, and that results stay right."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowering.quantized import Array, Quantized, lowered, normal
from models.builder import Builder
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, ConfigError
from tpuflow.config.registry import registry
from tpuflow.execution.levels import graph_level, program_level
from tpuflow.frontend import load
from tpuflow.lowering import scheme
from tpuflow.lowering.fixed_point import FactorError, Requant, approximate
from tpuflow.lowering.sums import high_bits
from tpuflow.lowering.weight_reach import weight_reach


def network() -> onnx.ModelProto:
    """A convolution with a function, one with a clamp, and a product."""
    b = Builder("modes")
    x = b.input("x", [1, 3, 8, 8])
    y = b.node("Sigmoid", b.conv(x, 8))
    z = b.node("Relu", b.conv(y, 8))
    b.output(b.gemm(z, 5))
    return b.model()


def made(sqnr: float = 25, **quantize: Any) -> Quantized:
    """The network under some settings, its integers equal to the reference, its outputs near float."""
    proto = network()
    feeds = normal(proto)
    layers = quantize.pop("layers", [])
    found = lowered(proto, feeds, {"quantize": quantize, "layers": layers})
    for each in found.compare(feeds[0]).values():
        assert each.sqnr > sqnr
    found.equals_reference(feeds[1])
    return found


def requants(found: Quantized) -> list[dict[str, Any]]:
    ops = [json.loads(layer.op_json) for layer in found.graph.layers]
    return [op["epilogue"]["requant"] for op in ops if "epilogue" in op]


def biases(found: Quantized) -> list[Array]:
    every = [index for index, tensor in enumerate(found.graph.tensors) if tensor.name.endswith("/bias")]
    assert every
    return [found.graph.constant(index) for index in every]


@pytest.mark.parametrize("mode", ["asymmetric", "symmetric_full", "symmetric_restricted"])
@pytest.mark.feature("QMO-20")
def test_scales_that_are_powers_of_two(mode: str) -> None:
    found = made(18, power_of_two=True, activation_mode=mode)
    for requant in requants(found):
        assert set(requant["multiplier"]) == {1}
    scales = [scale for tensor in found.graph.tensors for scale in tensor.scale or ()]
    assert scales and all(math.frexp(scale)[0] == 0.5 for scale in scales)


@given(st.floats(1e-6, 1e6))
@pytest.mark.feature("QMO-20")
def test_the_next_power_of_two_and_no_other(magnitude: float) -> None:
    plain = scheme.symmetric(magnitude, scheme.Format("int8")).scale
    scale = scheme.symmetric(magnitude, scheme.Format("int8", power_of_two=True)).scale
    assert plain <= scale < 2 * plain
    assert scheme.symmetric(0.0, scheme.Format("int8", power_of_two=True)).scale == 1.0


@pytest.mark.parametrize("bits", range(8, 17))
@pytest.mark.feature("QMO-10")
def test_every_width_of_activations(bits: int) -> None:
    found = made(20, activation_bits=bits, output_dtype="int8" if bits == 8 else "int16")
    half = 1 << (bits - 1)
    feed = normal(network(), 5)[4]
    stored = found.graph.run(found.inputs(feed), all_tensors=True)
    relu = [t for t in found.graph.tensors if t.name in stored and t.source_json and "relu" in t.name]
    assert relu and relu[0].dtype == ("int8" if bits == 8 else "int16")
    for tensor in relu:
        assert -half <= stored[tensor.name].min() and stored[tensor.name].max() <= half - 1


@pytest.mark.parametrize("bits", [7, 17])
@pytest.mark.feature("QMO-10")
def test_other_widths_of_activations_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="activation_bits"):
        Config.parse({"quantize": {"activation_bits": bits}})


@pytest.mark.parametrize("bits", [16, 20, 32, 48])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.feature("QMO-11")
def test_every_width_of_biases(bits: int, dtype: str) -> None:
    # Sums of 16-bit products have steps so small that a narrow bias costs the weights their bits.
    found = made(20 if dtype == "int8" or bits > 20 else -10, bias_bits=bits, dtype=dtype)
    limit = 1 << (min(bits, 32 if dtype == "int8" else 48) - 1)
    for codes in biases(found):
        assert codes.dtype == ("int32" if dtype == "int8" else "int64")
        assert np.abs(codes.astype(np.int64)).max() <= limit


@pytest.mark.parametrize("bits", [15, 49])
@pytest.mark.feature("QMO-11")
def test_other_widths_of_biases_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="bias_bits"):
        Config.parse({"quantize": {"bias_bits": bits}})


@pytest.mark.feature("CFG-17")
def test_a_bias_too_wide_for_its_layer_is_an_error() -> None:
    entry = {"match": "/conv_0", "bias_bits": 48}
    with pytest.raises(
        ConfigError, match='"/conv_0" has 8-bit operands: its bias holds at most 32 bits, not 48'
    ):
        made(layers=[entry])
    made(layers=[entry], lenient=True)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("resize_degrade_to_nearest", True, "to resize"),
        ("weight_bits", 8, "weights"),
        ("table_bits", 9, "a table of a 16-bit operand"),
        ("bias_effective_bits", 20, "biases"),
        ("bias_correction", False, "biases"),
        ("activation_mode", "symmetric_full", "a grid of its own"),
        ("activation_bits", 8, "a grid of its own"),
        ("unsigned", True, "a grid of its own"),
        ("force_dtype_int", True, "a grid of its own"),
        ("power_of_two", True, "a scale of its own"),
        ("strategy", "kld", "a calibrated range in use"),
        ("percentile", 99.0, "a calibrated range in use"),
        ("momentum", 0.5, "a calibrated range in use"),
        ("trim_infinity", "clip(-1,1)", "a calibrated range in use"),
        ("z_threshold", 3.0, "a calibrated range in use"),
        ("bins", 1024, "a calibrated range in use"),
        ("clip_weight", 2.0, "a calibrated range in use"),
        ("multiplier_bits", 9, "a requantisation"),
        ("unify_shifts", True, "a requantisation"),
        ("force_shift_positive", True, "a requantisation"),
        ("remain_shift", 9, "sums of 16-bit operands"),
        ("weight_mode", "symmetric_full", "weights"),
        ("weight_strategy", "mse", "weights"),
        ("per_channel", False, "weights"),
        ("bias_bits", 24, "biases"),
    ],
)
@pytest.mark.feature("CFG-17")
def test_a_key_no_layer_can_honor_is_an_error_or_a_warning(
    key: str, value: Any, match: str, caplog: pytest.LogCaptureFixture
) -> None:
    b = Builder("plain")
    b.output(b.node("MaxPool", b.input("x", [1, 3, 8, 8]), kernel_shape=[2, 2]))
    layers = {"layers": [{"operators": ["MaxPool"], key: value}]}
    with pytest.raises(ConfigError, match=f"sets {key}, but no layer it matches has {match}"):
        lowered(b.model(), normal(b), layers)
    lowered(b.model(), normal(b), layers | {"quantize": {"lenient": True}})
    assert f"sets {key}" in caplog.text


def every_key() -> dict[str, Any]:
    """Every key in which layers may differ, but those that say how floats are computed."""
    values: dict[str, Any] = {
        "weight_mode": "symmetric_full", "weight_strategy": "mse", "activation_mode": "symmetric_full",
        "strategy": "kld", "trim_infinity": "clip(-1,1)", "bins": 1024, "bias_bits": 24, "percentile": 99.0,
        "bias_effective_bits": 24, "momentum": 0.5, "remain_shift": 12, "table_bits": 9, "multiplier_bits": 9,
        "weight_clusters": 16,
    }  # fmt: skip
    under_floats = {"weight_only", "per_block", "weight_block_size"}
    keys = [entry.name for entry in registry() if entry.per_layer]
    found = {
        key: values.get(key, 8 if key.endswith("_bits") else 2.0 if key == "clip_weight" else True)
        for key in keys
    }
    return {
        key: value
        for key, value in found.items()
        if key not in {"dtype", "fallback", "activation_bits", "with_winograd", *under_floats}
    }


@pytest.mark.parametrize("key", every_key())
@pytest.mark.feature("CFG-17")
def test_what_floats_have_none_of_is_an_error(key: str) -> None:
    """A layer computed in floats honours no key about codes; an earlier entry it overrides may have one."""
    floats, coded = {"match": "/conv_0", "dtype": "float16"}, {"match": "/conv_0", key: every_key()[key]}
    proto = network()
    feeds = normal(proto)
    with pytest.raises(ConfigError, match=f"sets {key}, but no layer it matches has "):
        lowered(proto, feeds, {"layers": [floats, coded]})
    if key != "resize_degrade_to_nearest":
        lowered(proto, feeds, {"layers": [coded, floats]})


@pytest.mark.feature("NUM-10")
def test_high_bits_of_biases_only() -> None:
    codes = np.array([0x12345678, -0x12345678, 5, 0], np.int64)
    # 0x12345678 needs 30 bits with its sign, so 14 low ones go.
    assert high_bits(codes, 16).tolist() == [0x12344000, -0x12348000, 0, 0]
    assert high_bits(codes, 32).tolist() == codes.tolist()
    assert high_bits(np.array([100, -3]), 16).tolist() == [100, -3]


@given(st.lists(st.integers(-(1 << 47), (1 << 47) - 1), min_size=1, max_size=8), st.integers(16, 48))
@pytest.mark.feature("NUM-10")
def test_no_more_bits_are_cut_than_must_be(biases: list[int], bits: int) -> None:
    codes = np.array(biases, np.int64)
    found = high_bits(codes, bits)
    cut = 0
    while max(*biases, 1) > ((1 << (bits - 1)) - 1) << cut or min(*biases, -1) < -(1 << (bits - 1)) << cut:
        cut += 1
    assert found.tolist() == [bias // (1 << cut) * (1 << cut) for bias in biases]


@pytest.mark.feature("NUM-10")
def test_biases_of_a_network_keep_their_high_bits() -> None:
    found = made(20, bias_effective_bits=16, dtype="int16")
    assert max(int(np.abs(codes).max()) for codes in biases(found)) > 1 << 15
    for codes in biases(found):
        assert np.array_equal(codes, high_bits(codes, 16))


@pytest.mark.feature("NUM-06")
def test_no_left_shifts() -> None:
    assert approximate(1e6, 15)[1] < 0
    for factor, pair in (
        (1e6, (32767, 0)),
        (1e9, (32767, 0)),
        (40000.0, (32767, 0)),
        (3.0, approximate(3.0)),
    ):
        found = Requant.of([factor], 0, -128, 127, positive=True)
        assert (found.multiplier[0], found.shift[0]) == pair
    with pytest.raises(FactorError):
        Requant.of([math.inf], 0, -128, 127, positive=True)
    made(force_shift_positive=True)


@given(st.lists(st.floats(1e-4, 1e-1), min_size=1, max_size=12), st.integers(8, 15))
@pytest.mark.feature("NUM-13")
def test_one_shift_for_all_channels(factors: list[float], bits: int) -> None:
    try:
        found = Requant.of(factors, 0, -128, 127, bits, 31, one_shift=True)
    except FactorError:
        assert max(factors) / min(factors) > 1 << (bits - 2)
        return
    assert len(set(found.shift)) == 1
    step = math.ldexp(0.5, -found.shift[0])
    for factor, multiplier in zip(factors, found.multiplier, strict=True):
        assert 0 < multiplier < 1 << bits
        assert (
            abs(math.ldexp(multiplier, -found.shift[0]) - factor) <= step * (1 + 1e-9)
            or multiplier == (1 << bits) - 1
        )


@pytest.mark.feature("NUM-13")
def test_shifts_of_a_network_are_unified_on_request() -> None:
    assert any(len(set(requant["shift"])) > 1 for requant in requants(made()))
    assert all(len(set(requant["shift"])) == 1 for requant in requants(made(unify_shifts=True)))


@pytest.mark.parametrize("remain", [0, 12, 20, 32])
@pytest.mark.feature("NUM-12")
def test_shifts_before_and_after_the_bias(remain: int) -> None:
    """Reference, kernels and programs agree, and so does what the layer was made of."""
    once = made(20, dtype="int16", unify_shifts=True)
    # Few bits left for after the bias are coarse, and sums that lose none of theirs exceed 32 bits.
    least = 20 if 12 <= remain <= 20 else -10
    found = made(least, dtype="int16", unify_shifts=True, remain_shift=remain)
    first = []
    for before, after in zip(once.graph.layers, found.graph.layers, strict=True):
        a, b = json.loads(before.op_json), json.loads(after.op_json)
        if "epilogue" not in a:
            continue
        (shift,) = set(a["epilogue"]["requant"]["shift"])
        first.append(max(0, shift - remain))
        assert b["epilogue"]["first_shift"] == first[-1]
        assert set(b["epilogue"]["requant"]["shift"]) == {min(shift, remain)}
        assert np.array_equal(found.graph.constant(b["bias"]), once.graph.constant(a["bias"]) >> first[-1])
    assert len(first) == 3 and (remain == 32 or max(first) > 0)
    feed = normal(network(), 5)[4]
    for machine in ("128x128_asic", "32x32_fpga"):
        program = compile_graph(found.graph, machine)
        ours, theirs = (
            level.compute(feed).codes for level in (graph_level(found.graph), program_level(program))
        )
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.feature("NUM-12")
def test_what_remain_shift_needs() -> None:
    with pytest.raises(ConfigError, match='"/conv_0": remain_shift needs one shift for all channels'):
        made(dtype="int16", remain_shift=12)
    with pytest.raises(ConfigError, match="sets remain_shift, but no layer it matches has sums of 16-bit"):
        made(layers=[{"match": "/conv_0", "remain_shift": 12}])
    with pytest.raises(ConfigError, match="remain_shift"):
        Config.parse({"quantize": {"remain_shift": 33}})
    # Layers of 8-bit operands have one rounding, whatever holds for the network.
    plain, same = made(), made(remain_shift=12)
    assert [layer.op_json for layer in plain.graph.layers] == [layer.op_json for layer in same.graph.layers]


@pytest.mark.parametrize("bits", [8, 10, 16])
@pytest.mark.feature("NUM-21")
def test_size_of_tables(bits: int) -> None:
    found = made(table_bits=bits)
    tables = [t for t in found.graph.tensors if t.name.endswith("/table")]
    assert [t.shape for t in tables] == [[(1 << bits) + 1]]
    own = made(layers=[{"match": "*sigmoid*", "table_bits": bits}])
    assert [t.shape for t in own.graph.tensors if t.name.endswith("/table")] == [[(1 << bits) + 1]]


@pytest.mark.parametrize("bits", [7, 17])
@pytest.mark.feature("NUM-21")
def test_other_sizes_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="table_bits"):
        Config.parse({"quantize": {"lut_items_in_bits": bits}})


@pytest.mark.feature("NUM-32")
def test_resizing_takes_the_nearest() -> None:
    b = Builder("resized")
    x = b.input("x", [1, 3, 5, 5])
    sizes = b.integers(1, 3, 9, 7)
    b.output(b.node("Resize", x, "", "", sizes, mode="linear"))
    feeds = normal(b)
    plain = lowered(b.model(), feeds)
    degraded = lowered(b.model(), feeds, {"quantize": {"resize_degrade_to_nearest": True}})
    own = lowered(
        b.model(), feeds, {"layers": [{"operators": ["Resize"], "resize_degrade_to_nearest": True}]}
    )
    assert plain.operators == ["resize_linear"]
    assert set(degraded.operators) == set(own.operators) == {"gather"}
    b = Builder("nearest")
    b.output(b.node("Resize", b.input("x", [1, 3, 5, 5]), "", "", b.integers(1, 3, 9, 7), mode="nearest"))
    nearest = lowered(b.model(), feeds)
    assert [op for op in nearest.operators if op != "rearrange"] == degraded.operators
    (ours,), (theirs,) = degraded.run(feeds[0]).values(), nearest.run(feeds[0]).values()
    assert np.array_equal(ours, theirs)


def joined(threshold: float | None, depth: int = 20, factor: float = 1.04) -> list[str]:
    """Operators of a network whose concatenation reads what others read too, behind some operators."""
    b = Builder("joined")
    x = b.input("x", [1, 4, 6, 6])
    left = b.node("Relu", b.conv(x, 4))
    right = b.node("Mul", left, b.constant(np.float32(factor)))
    right = b.node("Add", right, b.constant(np.zeros((1, 4, 1, 1), np.float32) + np.float32(1e-4)))
    moved = b.node("MaxPool", right, kernel_shape=[1, 1])
    whole = b.node("Concat", left, moved, axis=1)
    b.output(whole, b.node("Sigmoid", left), b.node("Sigmoid", moved))
    settings: dict[str, Any] = {"output_dtype": "int8", "activation_mode": "symmetric_full"}
    if threshold is not None:
        settings |= {
            "unify_scales_for_concat": True,
            "unify_scales_for_concat_threshold": threshold,
            "unify_scales_for_concat_max_depth": depth,
        }
    feeds = normal(b)
    found = lowered(b.model(), feeds, {"quantize": settings})
    found.equals_reference(feeds[0])
    for each in found.compare(feeds[1]).values():
        assert each.sqnr > 25
    (concat,) = (json.loads(layer.op_json) for layer in found.graph.layers if layer.op == "concat")
    return ["rescaled" if requant else "copied" for requant in concat["requants"]]


@pytest.mark.feature("NUM-23", "QMO-35")
def test_scales_of_concatenated_tensors_are_unified_where_close() -> None:
    assert joined(None).count("copied") < 2
    assert joined(1.05) == ["copied", "copied"]
    assert joined(1.01).count("copied") < 2
    assert joined(1.05, factor=1.5).count("copied") < 2
    assert joined(2.0, factor=1.5) == ["copied", "copied"]


@pytest.mark.feature("NUM-23")
def test_nothing_beyond_the_depth_is_unified() -> None:
    # Behind one more operator than the depth allows there is another value, whose codes are not ours.
    assert joined(1.05, depth=1) == ["copied", "copied"]


@pytest.mark.parametrize("named", [0, "y"])
@pytest.mark.feature("QMO-19")
def test_inputs_that_are_their_own_codes(named: int | str) -> None:
    b = Builder("raw")
    b.input("x", [1, 3, 6, 6])
    b.input("y", [1, 3, 6, 6])
    b.output(b.node("Add", "x", "y"))
    feeds = [
        {name: np.rint(array * 20).astype(np.float32) for name, array in feed.items()} for feed in normal(b)
    ]
    found = lowered(b.model(), feeds, {"quantize": {"qinvariant": [named]}})
    inputs = {t.name: t for t in (found.graph.tensors[i] for i in found.graph.inputs)}
    own = inputs["x" if named == 0 else "y"]
    other = inputs["y" if named == 0 else "x"]
    assert (own.scale, own.zero_point) == ([1.0], 0)
    assert other.scale != [1.0]
    codes = found.inputs(feeds[0])[own.name]
    assert np.array_equal(np.sort(codes.ravel()), np.sort(feeds[0][own.name].ravel()))


@pytest.mark.feature("QMO-19")
def test_inputs_there_are_not() -> None:
    with pytest.raises(ConfigError, match=r'unknown input 3 \(inputs: 0 "x"'):
        made(qinvariant=[3])


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.feature("QMO-04")
def test_positive_codes_only_after_relu(force: bool) -> None:  # noqa: FBT001 - parametrised
    found = made(20, activation_mode="symmetric_restricted", unsigned=True, force_dtype_int=force)
    relu = next(t for t in found.graph.tensors if t.name == "relu_3")
    assert relu.zero_point == (0 if force else -128)
    assert relu.scale is not None
    plain = next(
        t
        for t in made(20, activation_mode="symmetric_restricted", force_dtype_int=True).graph.tensors
        if t.name == "relu_3"
    )
    assert plain.scale is not None
    # All 255 steps above zero, or 127 of them.
    assert plain.scale[0] / relu.scale[0] == pytest.approx(1 if force else 255 / 127, rel=0.05)
    assert all(found.graph.tensors[number].zero_point == 0 for number in found.graph.inputs)


@pytest.mark.parametrize(
    ("strategy", "axis", "expected"),
    [
        ("0.5percentile", 0, lambda rows: 0.5 * np.abs(rows).max(1)),
        (
            "2std",
            0,
            lambda rows: np.minimum(np.abs(rows.mean(1)) + 2 * rows.std(1, ddof=1), np.abs(rows).max(1)),
        ),
        ("mean", None, lambda rows: np.abs(rows).max(1)),
    ],
)
def test_strategies_of_weights(strategy: str, axis: int | None, expected: Any) -> None:
    array = np.random.default_rng(4).normal(size=(3, 40, 2)).astype(np.float32)
    config = Config.parse({"quantize": {"weight_strategy": strategy}}).quantize
    rows = array.reshape(3, -1) if axis == 0 else array.reshape(1, -1)
    found = weight_reach(array, axis, config)
    assert found is not None
    assert found == pytest.approx(expected(rows.astype(np.float64)), rel=1e-3)


def test_weights_clipped_by_their_strategy_saturate() -> None:
    plain, clipped = made(weight_bits=4, sqnr=0), made(weight_bits=4, sqnr=0, weight_strategy="0.5percentile")
    scales = [
        [tensor.scale for tensor in found.graph.tensors if tensor.name.startswith("constant")]
        for found in (plain, clipped)
    ]
    for wide, narrow in zip(*scales, strict=True):
        assert narrow == pytest.approx([scale / 2 for scale in wide or ()], rel=1e-6)
    own = made(layers=[{"match": "/conv_0", "weight_strategy": "mse"}])
    assert own.graph.tensors[1].scale != made().graph.tensors[1].scale


def test_layers_have_their_own_bins_and_trims() -> None:
    model = load(network())
    samples = {"x": np.stack([feed["x"][0] for feed in normal(network(), 6)])}
    names = [value.name or "" for node in model.model.graph for value in node.outputs]

    def ranges(**content: Any) -> Any:
        return calibrate(model, samples, Config.parse(content)).tensors

    base = {"calibrate": {"strategy": "extrema"}}
    plain = ranges(**base)
    entry = {"names": [names[0]], "trim_infinity_before_statistic": "clip(-0.25,0.25)"}
    cut = ranges(**base, layers=[entry])
    assert (cut[names[0]].min, cut[names[0]].max) == (-0.25, 0.25)
    assert {name: cut[name] for name in cut if name != names[0]} == {
        name: plain[name] for name in plain if name != names[0]
    }
    few, many = (
        ranges(calibrate={"strategy": "kld"}, layers=[{"names": [names[0]], "histc_bins": bins}])
        for bins in (128, 8192)
    )
    everywhere = ranges(calibrate={"strategy": "kld", "bins": 8192})
    assert many[names[0]] == everywhere[names[0]] != few[names[0]]


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("operator", ["Silu", "HardSwish"])
@pytest.mark.feature("LOW-11")
def test_a_product_is_near_the_function(operator: str, dtype: str) -> None:
    b = Builder("gated")
    x = b.conv(b.input("x", [1, 3, 8, 8]), 6)
    b.output(b.silu(x) if operator == "Silu" else b.node("HardSwish", x))
    proto = b.model()
    layers = {}
    for mode in ("function", "product"):
        made = lowered(proto, normal(proto), {"quantize": {"swish_layer_mode": mode, "dtype": dtype}})
        layers[mode] = made.operators
        for feed in normal(proto, 2, seed=5):
            made.equals_reference(feed)
            (alike,) = made.compare(feed).values()
            assert alike.sqnr > (20 if dtype == "int8" else 55)
    assert layers == {"function": ["conv"], "product": ["conv", "unary", "mul"]}
