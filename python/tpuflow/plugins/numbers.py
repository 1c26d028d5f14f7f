"""Types, grids and rounding as operator plugins call them; the reciprocal convention of `nodes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.plugins.logs import OPT_FATAL

if TYPE_CHECKING:
    from tpuflow.plugins.nodes import PyTensor

__all__ = [
    "Dtype",
    "bits2dtype",
    "dtype2bits",
    "dtype2nptype",
    "dtype2range",
    "get_linear_quant_params_from_tensor",
    "is_float",
    "is_signed",
    "linear_dequantize",
    "linear_quantize_clip",
]

SMALLEST_SPAN = float(np.finfo(np.float32).eps)


class Dtype:
    """Types of elements, by the names plugins use."""

    FP64, FP32, FP16 = "float64", "float32", "float16"
    INT8, INT16, INT32, INT64 = "int8", "int16", "int32", "int64"
    UINT8, UINT16, UINT32, UINT64 = "uint8", "uint16", "uint32", "uint64"
    BOOL = "bool"


def is_float(dtype: str) -> bool:
    """Whether elements are floats."""
    return str(dtype).startswith("float")


def is_signed(dtype: str) -> bool:
    """Whether elements may be negative."""
    return not str(dtype).startswith(("uint", "bool"))


def dtype2bits(dtype: str) -> int:
    """Width of an element."""
    return np.dtype(dtype).itemsize * 8


def dtype2nptype(dtype: str) -> Any:
    """The NumPy type."""
    return np.dtype(dtype).type


def dtype2range(dtype: str) -> tuple[int, int]:
    """Smallest and largest integer of a type."""
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def bits2dtype(bits: int, is_signed: bool) -> str:  # noqa: FBT001 - as plugins call it
    """The smallest integer type that holds so many bits."""
    width = next((each for each in (8, 16, 32, 64) if bits <= each), None)
    if width is None:
        OPT_FATAL(f"no type holds {bits} bits")
    return f"{'int' if is_signed else 'uint'}{width}"


def get_linear_quant_params_from_tensor(
    tensor: PyTensor,
    mode: str,
    bits: int,
    is_signed: bool = True,  # noqa: FBT001, FBT002
) -> tuple[float, int, int, int, str]:
    """Scale, zero point, smallest and largest code, and type, from what was seen of a tensor."""
    low, high = min(tensor.min, 0.0), max(tensor.max, 0.0)
    steps = 2**bits - 1
    signed = is_signed or "asymmetric" in mode
    qmin, qmax = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, steps)
    if "asymmetric" in mode:
        span = high - low
        scale = steps / span if span > SMALLEST_SPAN else 1.0
        return scale, int(np.rint(low * scale)) - qmin, qmin, qmax, bits2dtype(bits, is_signed=True)
    magnitude = max(-low, high)
    if not signed:
        scale = steps / high if high > SMALLEST_SPAN else 1.0
    elif "restricted" in mode:
        qmin, scale = -qmax, qmax / magnitude if magnitude > SMALLEST_SPAN else 1.0
    else:
        scale = steps / 2 / magnitude if magnitude > SMALLEST_SPAN else 1.0
    return scale, 0, qmin, qmax, bits2dtype(bits, is_signed=signed)


def linear_quantize_clip(values: Any, scale: Any, zerop: Any, qmin: Any, qmax: Any) -> Any:
    """`clamp(round(x * scale - zerop), qmin, qmax)`, half to even."""
    product = values * scale - zerop
    rounded = product.round() if hasattr(product, "detach") else np.rint(product)
    return rounded.clip(qmin, qmax)


def linear_dequantize(codes: Any, scale: Any, zerop: Any) -> Any:
    """`(q + zerop) / scale`."""
    return (codes + zerop) / scale
