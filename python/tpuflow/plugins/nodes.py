"""Nodes and tensors as operator plugins see them, and one operator run by itself.

Plugins of this kind use the reciprocal convention, `q = round(x * scale - zerop)`, `x = (q + zerop) / scale`;
`onnx_form` turns a tensor's scale and zero point into those of every other file and API here. Values
(`betensor`) are torch tensors where torch is there, else NumPy arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.plugins.logs import OPT_FATAL, OPT_WARN
from tpuflow.plugins.numbers import get_linear_quant_params_from_tensor, linear_quantize_clip

if TYPE_CHECKING:
    from tpuflow.plugins.registry import Registry

__all__ = ["PyNode", "PyTensor", "backend", "numpy_of", "onnx_form", "run_operator"]

MODE = "per_tensor_symmetric_full_range"


def backend(array: Any) -> Any:
    """An array as plugins take it."""
    torch = sys.modules.get("torch")
    if torch is None or isinstance(array, torch.Tensor):
        return array
    return torch.from_numpy(np.ascontiguousarray(array))


def numpy_of(values: Any) -> Any:
    """An array or tensor of a plugin as a NumPy array."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


class PyTensor:
    """A tensor: its values, what was seen of them, and how they are quantised.

    Attributes:
        name: Its name.
        betensor: Its values.
        scale: Codes per unit; None until quantised.
        zerop: Subtracted from the scaled value.
        qbits: Width of codes.
        dtype: Type of codes, or of the values.
        qmin: Smallest code.
        qmax: Largest code.
        qinvariant: Whether values are their own codes.
        min: Smallest value seen.
        max: Largest value seen.
        key_axis: Axis along which scales differ; None where there is one.
    """

    def __init__(self, name: str, values: Any = None) -> None:
        self.name = str(name)
        self.betensor = None if values is None else backend(values)
        self.scale: Any = None
        self.zerop: Any = None
        self.qbits: int | None = None
        self.qmin: int | None = None
        self.qmax: int | None = None
        self.dtype: Any = None if values is None else str(numpy_of(values).dtype)
        self.qinvariant: bool | None = None
        self.key_axis: int | None = None
        self.min = self.max = 0.0
        if values is not None and numpy_of(values).size:
            self.observe()

    def observe(self) -> None:
        """Widens `min` and `max` to the values there are."""
        values = numpy_of(self.betensor)
        if values.size:
            self.min, self.max = min(self.min, float(values.min())), max(self.max, float(values.max()))

    @property
    def ir_shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return tuple(numpy_of(self.betensor).shape)

    def clone_qinfo(self, other: PyTensor) -> None:
        """Takes over how another tensor is quantised."""
        for key in ("scale", "zerop", "qbits", "qmin", "qmax", "dtype", "qinvariant", "key_axis"):
            setattr(self, key, getattr(other, key))


class PyNode:
    """A layer: tensors in and out, constants, parameters that are stored and attributes that are not."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = str(name)
        self.type = str(kind)
        self.inputs: list[PyTensor] = []
        self.outputs: list[PyTensor] = []
        self.constants: dict[str, PyTensor] = {}
        self.params: dict[str, Any] = {}
        self.attrs: dict[str, Any] = {
            "q_bits_activation": 8,
            "q_bits_weight": 8,
            "q_bits_bias": 32,
            "q_mode_activation": MODE,
            "q_mode_weight": "per_tensor_symmetric_restricted_range",
            "lut_items_in_bits": 8,
            "layer_id": "0",
            "multiplier_bits": 8,
        }
        self.placeholders: list[PyTensor] = []
        self.quantized = False
        self.current_batch_size = 1
        self.force_dtype_int = False
        self.force_shift_positive = False

    def _get(self, kind: str, key: str, default: Any, *, optional: bool) -> Any:
        found: Mapping[str, Any] = getattr(self, kind)
        if key in found:
            return found[key]
        if not optional:
            OPT_WARN(f'layer "{self.name}" ({self.type}) has no "{key}" among its {kind}')
        return default

    def get_param(self, key: str, *, optional: bool = False, default_value: Any = None) -> Any:
        """A parameter; without one the default, which is warned about unless `optional`."""
        return self._get("params", key, default_value, optional=optional)

    def get_attrs(self, key: str, *, optional: bool = False, default_value: Any = None) -> Any:
        """An attribute; see `get_param`."""
        return self._get("attrs", key, default_value, optional=optional)

    get_attr = get_attrs

    def get_constant(self, key: str) -> Any:
        """A constant; without it the run ends."""
        if key not in self.constants:
            OPT_FATAL(f'layer "{self.name}" ({self.type}) has no "{key}" among its constants')
        return self.constants[key]


def onnx_form(tensor: PyTensor) -> tuple[float, int]:
    """Scale and zero point by `x = scale * (q - zero_point)`."""
    scale = float(numpy_of(tensor.scale))
    if not scale > 0:
        OPT_FATAL(f'tensor "{tensor.name}": scale {scale} is not positive')
    return 1.0 / scale, -int(numpy_of(tensor.zerop))


def run_operator(
    registry: Registry, node: PyNode, feeds: Sequence[Any], codes: Sequence[PyTensor] = ()
) -> list[Any]:
    """Runs an operator by itself: forward in floats, then quantise, then forward on codes.

    Forward has run once before quantise is called, so that what it leaves behind is there.

    Args:
        registry: Where its functions are registered.
        node: The layer, with its outputs, constants and parameters.
        feeds: Values of its inputs.
        codes: How its inputs are quantised; 8 bits over their range, if left out.

    Returns:
        The outputs of the forward on codes, as arrays.

    Raises:
        PluginError: A function is missing, gave up, or left an output unquantised.
    """
    forward, quantize = registry.get("forward", node.type), registry.get("quantise", node.type)
    node.inputs = [PyTensor(f"{node.name}/input{i}", np.asarray(feed)) for i, feed in enumerate(feeds)]
    node.current_batch_size = len(feeds[0]) if feeds and np.ndim(feeds[0]) else 1
    node.quantized = False
    where = f'layer "{node.name}" ({node.type})'
    forward(node)
    for output in node.outputs:
        if output.betensor is None:
            OPT_FATAL(f'{where}: forward leaves output "{output.name}" without values')
        output.observe()
    for i, tensor in enumerate(node.inputs):
        if i < len(codes):
            tensor.clone_qinfo(codes[i])
            continue
        bits = node.attrs["q_bits_activation"]
        tensor.qinvariant, tensor.qbits = False, bits
        tensor.scale, tensor.zerop, tensor.qmin, tensor.qmax, tensor.dtype = (
            get_linear_quant_params_from_tensor(tensor, node.attrs["q_mode_activation"], bits, is_signed=True)
        )
    quantize(node)
    for output in node.outputs:
        missing = [
            key for key in ("scale", "zerop", "qbits", "dtype", "qinvariant") if getattr(output, key) is None
        ]
        if missing:
            OPT_FATAL(f'{where}: quantise leaves {missing[0]} of "{output.name}" unset')
    for tensor, feed in zip(node.inputs, feeds, strict=True):
        codes_of = linear_quantize_clip(
            np.asarray(feed), tensor.scale, tensor.zerop, tensor.qmin, tensor.qmax
        )
        tensor.betensor = backend(codes_of)
    node.quantized = True
    forward(node)
    return [numpy_of(output.betensor) for output in node.outputs]
