"""Reads a model from wherever it is and makes sure it is whole: format, data, opset, numbers.

Everything that can be wrong with a file is found here, in one sentence each; behind this door a model is a
valid `onnx_ir.Model` with all its weights in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.external_data_helper
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx_ir.passes import common

from tpuflow.errors import ModelError
from tpuflow.frontend.rewrites.opset import NEWEST, OLDEST

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Source", "read"]

Source = str | Path | onnx.ModelProto | ir.Model
"""What a model can be loaded from."""

TOLERATED = ("No Op registered", "No opset import", "Op registered for")
"""Objections of the checker that stop nothing: unknown and deprecated operators are replaced, or listed later
with all others that are not supported."""

WEIGHTED = {
    "BatchNormalization", "Conv", "ConvTranspose", "Gather", "Gemm", "GroupNormalization",
    "InstanceNormalization", "LayerNormalization", "MatMul", "Mul", "PRelu",
}  # fmt: skip
"""Operators in whose constants infinity makes no sense; elsewhere it may be a mask or a missing bound."""


def read(source: Source) -> tuple[ir.Model, str]:
    """Reads and checks a model.

    Args:
        source: A file, or a model in memory, which is not changed.

    Returns:
        The model as it is, but for initialisers no longer being listed as inputs, and what to call it in
        messages.

    Raises:
        ModelError: If the file is missing, not ONNX, truncated or inconsistent; if its data lies outside its
            folder; if its opset is not supported; if a weight is NaN or infinite.
    """
    if isinstance(source, ir.Model):
        model, label = source.clone(), "model"
    else:
        if isinstance(source, onnx.ModelProto):
            proto, label = source, "model"
            _reject_external_data(proto)
        else:
            path = Path(source)
            proto, label = _parsed(path), str(path)
            _load_external_data(proto, path)
        _check_structure(proto, label)
        try:
            model = ir.from_proto(proto)
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(f"{label}: not a valid ONNX model: {_first_line(error)}") from error
    _check_opset(model, label)
    common.RemoveInitializersFromInputsPass()(model)
    _check_numbers(model, label)
    return model, label


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _parsed(path: Path) -> onnx.ModelProto:
    if not path.exists():
        raise ModelError(f"{path}: no such file")
    if not path.is_file():
        raise ModelError(f"{path}: not a file")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise ModelError(f"{path}: not an ONNX model, or a truncated one") from error
    if not proto.ir_version or not proto.opset_import or not proto.HasField("graph"):
        raise ModelError(f"{path}: not an ONNX model, or a truncated one")
    return proto


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in a model."""
    yield from onnx.external_data_helper._get_all_tensors(proto)  # noqa: SLF001 - there is no public way


def _reject_external_data(proto: onnx.ModelProto) -> None:
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(
                f'model: initialiser "{tensor.name}" is stored outside it; load the model from its file'
            )


def _load_external_data(proto: onnx.ModelProto, path: Path) -> None:
    """Loads tensors stored beside the model, from files in its folder (or below) only."""
    folder = path.resolve().parent
    outside = [t for t in _tensors(proto) if t.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in outside:
        info = {entry.key: entry.value for entry in tensor.external_data}
        location = info.get("location", "")
        file = (folder / location).resolve()
        what = f'{path}: external data of initialiser "{tensor.name}"'
        if Path(location).is_absolute() or not file.is_relative_to(folder):
            raise ModelError(f'{what} lies outside the folder of the model: "{location}"')
        if not file.is_file():
            raise ModelError(f'{what} is missing: "{location}"')
        end = int(info.get("offset", 0)) + int(info.get("length", 0))
        if file.stat().st_size < end:
            raise ModelError(
                f'{what} is truncated: "{location}" has {file.stat().st_size} bytes, {end} are needed'
            )
    if outside:
        onnx.load_external_data_for_model(proto, str(folder))


def _check_structure(proto: onnx.ModelProto, label: str) -> None:
    for tensor in proto.graph.initializer:
        size = ir.DataType(tensor.data_type).itemsize if tensor.data_type else 0
        needed = int(np.ceil(np.prod(tensor.dims, dtype=np.float64) * size))
        if tensor.HasField("raw_data") and len(tensor.raw_data) != needed:
            raise ModelError(
                f'{label}: initialiser "{tensor.name}" is truncated: '
                f"{len(tensor.raw_data)} bytes of data for shape {list(tensor.dims)}, {needed} are needed"
            )
    _check_values(proto, label)
    if any(not output.type.tensor_type.HasField("shape") for output in proto.graph.output):
        # The checker insists on shapes that runtimes, and this package, infer anyway.
        complete = onnx.ModelProto()
        complete.CopyFrom(proto)
        for output in complete.graph.output:
            output.type.tensor_type.shape.SetInParent()
        proto = complete
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        message = _first_line(error)
        if not message.startswith(TOLERATED):
            raise ModelError(f"{label}: not a valid ONNX model: {message}") from error


def _check_values(proto: onnx.ModelProto, label: str) -> None:
    """Makes sure that every value is computed before it is read, in words a person understands."""
    graph = proto.graph
    known = {"", *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
    known.update(tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        for name in node.input:
            if name not in known:
                which = f'node "{node.name or ", ".join(node.output)}" ({node.op_type})'
                raise ModelError(f'{label}: {which} reads "{name}", which nothing before it computes')
        known.update(node.output)


def _check_opset(model: ir.Model, label: str) -> None:
    version = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx"))
    if version is None:
        raise ModelError(f"{label}: declares no opset of ONNX's own domain")
    if not OLDEST <= version <= NEWEST:
        raise ModelError(f"{label}: opset {version} is not supported ({OLDEST} to {NEWEST})")


def _constants(model: ir.Model) -> Iterator[tuple[str, ir.Value, ir.TensorProtocol]]:
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            yield name, value, value.const_value
    for node in model.graph:
        if node.op_type == "Constant" and not node.domain:
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
            if tensor is not None:
                yield node.outputs[0].name or "", node.outputs[0], tensor


def _check_numbers(model: ir.Model, label: str) -> None:
    for name, value, tensor in _constants(model):
        if not tensor.dtype.is_floating_point() or tensor.dtype.bitwidth < 16:
            continue
        array = tensor.numpy()
        if np.isfinite(array).all():
            continue
        if np.isnan(array).any():
            raise ModelError(f'{label}: initialiser "{name}" holds NaN')
        if any(use.node.op_type in WEIGHTED for use in value.uses()):
            raise ModelError(f'{label}: initialiser "{name}" holds infinite values')
