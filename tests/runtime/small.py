"""A small network with two inputs and two outputs, built for any element type and machine."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

import tpuflow
from models.builder import Builder, samples
from tpuflow.config import Config
from tpuflow.partitioning.storage import AnyProgram

Arrays = dict[str, NDArray[np.float32]]


@cache
def program(
    dtype: str = "int8", machine: str = "128x128_asic", channels: int = 3, *, stated_codes: bool = False
) -> AnyProgram:
    """An image of odd size and any number of channels, a vector, a convolution, a product."""
    b = Builder("small")
    x = b.node("Relu", b.conv(b.input("image", [1, channels, 5, 7]), 9, pads=(1, 1, 1, 1)))
    y = b.gemm(b.input("vector", [1, 13]), 9)
    b.output(x, b.node("Add", b.node("GlobalAveragePool", x), b.node("Reshape", y, b.integers(1, 9, 1, 1))))
    model = tpuflow.load(b.model())
    config = Config.parse(
        {"quantize": {"dtype": dtype, "quant_input": stated_codes, "quant_output": stated_codes}}
    )
    ranges = tpuflow.calibrate(model, samples(b.model(), 2), config) if config.needs_ranges else None
    return tpuflow.compile(tpuflow.quantize(model, ranges, config), machine, 5)


def feed(seed: int, channels: int = 3) -> Arrays:
    """One feed of it."""
    generator = np.random.default_rng(seed)
    return {
        "image": generator.normal(0, 2, (1, channels, 5, 7)).astype(np.float32),
        "vector": generator.normal(0, 1, (1, 13)).astype(np.float32),
    }
