"""Reference implementation of `docs/arithmetic.md` in plain NumPy.

Nothing here is optimised, and no code is shared with the Rust kernels, which tests compare with it. Values
are Python integers in object arrays wherever a product could leave 64 bits. One function per operator, in
files by concept; `run` walks a whole graph.

Example:
    >>> import numpy as np
    >>> requantize(np.array([1, 3, 5, -3]), multiplier=[1], shift=[1], zero_point=0, lo=-128, hi=127).tolist()
    [0, 2, 2, -2]
"""

from __future__ import annotations

from tpuflow.reference.activation import lookup, p_relu, rescale, softmax, unary
from tpuflow.reference.elementwise import binary, select
from tpuflow.reference.graph import run
from tpuflow.reference.linear import conv, mat_mul
from tpuflow.reference.movement import (
    concat,
    embedding,
    gather,
    insert_zeros,
    pad,
    rearrange,
    resize_linear,
)
from tpuflow.reference.normalization import arg_max, layer_norm, reduce
from tpuflow.reference.packed import expand
from tpuflow.reference.pooling import average_pool, max_pool
from tpuflow.reference.rounding import approximate, requantize, round_divide, round_shift

__all__ = [
    "approximate",
    "arg_max",
    "average_pool",
    "binary",
    "concat",
    "conv",
    "embedding",
    "expand",
    "gather",
    "insert_zeros",
    "layer_norm",
    "lookup",
    "mat_mul",
    "max_pool",
    "p_relu",
    "pad",
    "rearrange",
    "reduce",
    "requantize",
    "rescale",
    "resize_linear",
    "round_divide",
    "round_shift",
    "run",
    "select",
    "softmax",
    "unary",
]
