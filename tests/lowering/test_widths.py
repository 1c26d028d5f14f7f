"""Grids of every kind and width: golden values, and that networks keep to them."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from lowering.quantized import Quantized, lowered, normal
from models.builder import Builder
from tpuflow.config import Config, ConfigError
from tpuflow.lowering import scheme

WIDTHS = [(4, "int8"), (8, "int8"), (16, "int16")]


@pytest.mark.parametrize(("bits", "dtype"), WIDTHS)
@pytest.mark.feature("QMO-01")
def test_symmetric_grids_over_all_codes(bits: int, dtype: Any) -> None:
    quant = scheme.symmetric(3.3, scheme.Format(dtype, "symmetric_full", bits))
    assert (quant.lo, quant.hi, quant.zero_point) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0)
    assert 1 / quant.scale == pytest.approx((2**bits - 1) / 2 / 3.3, rel=1e-6)
    assert (quant.code(-3.3), quant.code(3.3)) == (quant.lo, quant.hi)


@pytest.mark.parametrize(("bits", "dtype"), WIDTHS)
@pytest.mark.feature("QMO-02")
def test_symmetric_grids_without_the_lowest_code(bits: int, dtype: Any) -> None:
    quant = scheme.symmetric(3.3, scheme.Format(dtype, "symmetric_restricted", bits))
    assert (quant.lo, quant.hi, quant.zero_point) == (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1, 0)
    assert 1 / quant.scale == pytest.approx((2 ** (bits - 1) - 1) / 3.3, rel=1e-6)
    assert (quant.code(-3.3), quant.code(3.3)) == (quant.lo, quant.hi)


@pytest.mark.parametrize(("low", "high"), [(-1.1, 3.3), (0.0, 7.0), (-5.0, 0.0), (-0.2, 9.9)])
@pytest.mark.feature("QMO-03")
def test_asymmetric_grids_cover_their_range(low: float, high: float) -> None:
    quant = scheme.activation(low, high, scheme.Format("int8", "asymmetric"))
    assert quant.scale == pytest.approx((high - low) / 255, rel=1e-6)
    assert quant.zero_point == round(-low / quant.scale) - 128
    values = np.linspace(low, high, 4001)
    back = quant.scale * (quant.codes(values).astype(np.float64) - quant.zero_point)
    # The zero point is whole, so that the ends move by up to half a step.
    inside = (values >= (-128 - quant.zero_point) * quant.scale) & (
        values <= (127 - quant.zero_point) * quant.scale
    )
    assert np.abs(back - values)[inside].max() <= 0.5 * quant.scale * (1 + 1e-9)
    assert np.abs(back - values).max() <= 1.01 * quant.scale


def network() -> Builder:
    """Channels of very different weights, and indices that pick rows."""
    b = Builder("widths")
    x = b.input("x", [1, 3, 8, 8])
    weights = b.rng.standard_normal((6, 3, 3, 3)) * np.geomspace(1, 1e-3, 6).reshape(6, 1, 1, 1)
    y = b.node("Conv", x, b.constant(weights.astype(np.float32), "w"), b.spread(6))
    b.output(b.gemm(b.node("Relu", y), 4))
    return b


def made(**quantize: Any) -> Quantized:
    b = network()
    found = lowered(b.model(), normal(b), {"quantize": quantize})
    found.equals_reference(normal(b, 1, 9)[0])
    return found


def weights(found: Quantized) -> list[tuple[Any, Any]]:
    tensors = found.graph.tensors
    return [
        (tensors[layer.operands[1]], found.graph.constant(layer.operands[1]))
        for layer in found.graph.layers
        if layer.op in {"conv", "mat_mul"}
    ]


@pytest.mark.parametrize("bits", [4, 5, 6, 7, 8, 9, 12, 15, 16])
@pytest.mark.feature("QMO-09")
def test_weights_of_every_width(bits: int) -> None:
    half = 1 << (bits - 1)
    for tensor, codes in weights(made(weight_bits=bits)):
        assert tensor.dtype == ("int8" if bits <= 8 else "int16")
        assert np.abs(codes.astype(np.int64)).max() == half - 1


@pytest.mark.parametrize("bits", [3, 17])
@pytest.mark.feature("QMO-09")
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="weight_bits"):
        Config.parse({"quantize": {"weight_bits": bits}})


@pytest.mark.feature("QMO-05", "QMO-06")
def test_one_scale_per_tensor_or_per_channel() -> None:
    b = network()
    feed = normal(b, 1, 5)[0]
    by_channel, by_tensor = made(per_channel=True), made(per_channel=False)
    assert [len(tensor.scale) for tensor, _ in weights(by_channel)] == [6, 4]
    assert [len(tensor.scale) for tensor, _ in weights(by_tensor)] == [1, 1]
    (fine,), (coarse,) = (found.compare(feed).values() for found in (by_channel, by_tensor))
    assert fine.sqnr >= coarse.sqnr
    # Tensors that have no axis of channels have one scale in either case.
    activations = [t for t in by_channel.graph.tensors if not t.is_constant and t.scale is not None]
    assert activations and all(len(t.scale or ()) == 1 for t in activations)


@pytest.mark.feature("QMO-13")
def test_nothing_is_measured_at_run_time() -> None:
    b = Builder("batch")
    b.output(b.gemm(b.node("Relu", b.conv(b.input("x", [2, 3, 8, 8]), 6)), 4))
    feeds = normal(b)
    found = lowered(b.model(), feeds)
    small, large = feeds[0]["x"][:1], 50 * feeds[1]["x"][:1]
    rows = [found.run({"x": np.concatenate([small, other])}) for other in (small, large)]
    for name, array in rows[0].items():
        assert np.array_equal(array[0], rows[1][name][0])


@pytest.mark.feature("QMO-18")
def test_indices_are_never_rescaled() -> None:
    b = Builder("indices")
    index = b.input("index", [1, 5], TensorProto.INT32)
    table = b.constant(b.rng.standard_normal((20, 8)).astype(np.float32), "table")
    b.output(b.node("Relu", b.node("Gather", table, index, axis=0)))
    feeds = normal(b)
    found = lowered(b.model(), feeds)
    (tensor,) = (found.graph.tensors[i] for i in found.graph.inputs)
    assert (tensor.scale, tensor.dtype) == (None, "int32")
    stored = found.graph.run(found.inputs(feeds[0]), all_tensors=True)
    assert np.array_equal(stored[tensor.name].ravel(), feeds[0]["index"].ravel())


def nearest(mantissa: int, smallest: int, largest: float, value: float) -> float:
    """A number rounded half to even to a float format, by exact arithmetic on its exponent."""
    if value == 0:
        return 0.0
    step = math.ldexp(1.0, max(math.frexp(abs(value))[1] - 1, smallest) - mantissa)
    quotient = abs(value) / step
    whole = math.floor(quotient)
    rest = quotient - whole
    whole += rest > 0.5 or (rest == 0.5 and whole % 2 == 1)
    found = whole * step
    return math.copysign(math.inf if found > largest else found, value)


@pytest.mark.parametrize(
    ("dtype", "mantissa", "smallest", "largest"),
    [("float16", 10, -14, 65504.0), ("bfloat16", 7, -126, math.ldexp(2 - 2.0**-7, 127))],
)
@pytest.mark.feature("QMO-23")
def test_half_precision_is_rounded_to_the_nearest_even(
    dtype: Any, mantissa: int, smallest: int, largest: float
) -> None:
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    with np.errstate(invalid="ignore"):
        codes = np.arange(1 << 16, dtype=np.uint16).view(kind).astype(np.float64)
    codes = np.unique(codes[np.isfinite(codes)])
    # All numbers there are come back, and so does the even one of every two neighbours from their middle.
    assert np.array_equal(scheme.round_to(codes, dtype).astype(np.float64), codes)
    middles = (codes[:-1] + codes[1:]) / 2
    found = scheme.round_to(middles, dtype).astype(np.float64)
    even = np.array([nearest(mantissa, smallest, largest, each) for each in middles[::37]])
    assert np.array_equal(found[::37], even)
    for factor in (1 - 2.0**-30, 1 + 2.0**-30):
        apart = scheme.round_to(middles * factor, dtype).astype(np.float64)
        pick = np.abs(codes[1:] - middles * factor) < np.abs(codes[:-1] - middles * factor)
        wanted = np.where(pick, codes[1:], codes[:-1])
        normal_ = np.abs(middles) > 1e-30
        assert np.array_equal(apart[normal_], wanted[normal_])
