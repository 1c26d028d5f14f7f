"""Names of operators in lists: ONNX's, those of the normalised model, and those of the text form's manual.

Case does not count. A name stands for all types of the normalised model that an operator of that name may
have become.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx

__all__ = ["types_of"]

OWN = ("Silu", "RMSNormalization")
"""Types of the normalised model that ONNX has not at that opset."""

FOREIGN: Mapping[str, tuple[str, ...]] = {
    "activation": (
        "Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Gelu", "Silu",
    ),
    "argminmax": ("ArgMax", "ArgMin"),
    "batchnorm": ("BatchNormalization", "Conv", "Mul", "Add"),
    "convolution": ("Conv",),
    "convolution3d": ("Conv",),
    "convtranspose3d": ("ConvTranspose",),
    "crop": ("Slice",),
    "deconvolution": ("ConvTranspose",),
    "depthwiseconv": ("Conv",),
    "eltwise": ("Add", "Sub", "Mul", "Max", "Min"),
    "fullyconnected": ("MatMul", "Gemm"),
    "groupnorm": ("GroupNormalization",),
    "instancenorm": ("InstanceNormalization",),
    "interp": ("Resize",),
    "layernorm": ("LayerNormalization",),
    "logical": ("And", "Or", "Xor", "Not", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"),
    "pooling": ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    "pooling3d": ("MaxPool", "AveragePool"),
    "reduce": ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    "rmsnorm": ("RMSNormalization",),
    "swish": ("Silu",),
}  # fmt: skip
"""By a foreign name in small letters."""

BECOMES: Mapping[str, tuple[str, ...]] = {"Gemm": ("MatMul",), "Swish": ("Silu",)}
"""Operators that nodes of ONNX are normalised to, beside their own type."""


@cache
def _known_operators() -> Mapping[str, frozenset[str]]:
    schemas = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    found = {name.lower(): frozenset((name, *BECOMES.get(name, ()))) for name in (*schemas, *OWN)}
    for name, types in FOREIGN.items():
        found[name] = found.get(name, frozenset()) | frozenset(types)
    return found


def types_of(name: str) -> frozenset[str]:
    """The types of the normalised model that a name stands for; none if it is no operator."""
    return _known_operators().get(name.lower(), frozenset())
