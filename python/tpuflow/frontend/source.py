"""Reads a model from wherever it is and makes sure it is whole: format, data, opset, numbers.

Files that are not ONNX are converted by `importers`.

Everything that can be wrong with a file is found here, in one sentence each; behind it a model is a
valid `onnx_ir.Model` with all its weights in memory.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx_ir.passes import common

from tpuflow.errors import ModelError
from tpuflow.frontend.external import (
    array_of_file,
    byte_size,
    load_external_data,
    outside_files,
    reject_external_data,
)
from tpuflow.frontend.hazards import all_nodes, reject_hazards
from tpuflow.frontend.rewrites.opset import NEWEST, OLDEST
from tpuflow.frontend.structure import check_references
from tpuflow.frontend.values import all_bodies
from tpuflow.importers import SUFFIXES, open_foreign
from tpuflow.io.journal import content_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableSequence

__all__ = ["Source", "is_model_file", "model_digest", "read"]

Source = str | Path | onnx.ModelProto | ir.Model
"""The sources of a model."""

UNKNOWN = "unknown"
"""Domain for operators that the checker does not know."""
DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"})
"""Domains of which the checker knows all operators."""
NEWEST_OF_ANY = 1 << 20
"""Above the version of any domain."""

DATA_FIELDS = (
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data",
)  # fmt: skip

WEIGHTED = {
    "BatchNormalization", "Conv", "ConvTranspose", "Gather", "Gemm", "GroupNormalization",
    "InstanceNormalization", "LayerNormalization", "MatMul", "Mul", "PRelu",
}  # fmt: skip
"""Operators in whose constants infinity makes no sense; elsewhere it may be a mask or a missing bound."""


def is_model_file(path: Path) -> bool:
    """Whether a path looks like a model: ONNX, or of a kind that is converted."""
    return path.suffix in (".onnx", *SUFFIXES) or path.is_dir()


def model_digest(path: str | Path) -> str:
    """A hash of a model's files: its own, or all of its folder, and those that hold tensors for it.

    Raises:
        FileError: A file cannot be read.
    """
    path = Path(path)
    digests = [content_digest(path)]
    if path.suffix == ".onnx":
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(path.read_bytes())
        except (OSError, DecodeError):
            return digests[0]  # whoever reads it says what is wrong
        digests += [content_digest(file) for file in outside_files(proto, path)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def read(source: Source) -> tuple[ir.Model, str]:
    """Reads and checks a model.

    Args:
        source: A file (ONNX, or what `tpuflow.importers` converts), or a model in memory, which is not
            changed.

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
            reject_external_data(proto)
        else:
            path = Path(source)
            foreign, label = open_foreign(path), str(path)
            proto = _parse(path) if foreign is None else foreign
            if foreign is None:
                load_external_data(proto, path)
        check_references(proto, label)
        reject_hazards(proto, label)
        _check_structure(proto, label)
        try:
            model = ir.from_proto(proto)
        except (ValueError, TypeError, KeyError, ir.serde.SerdeError) as error:
            raise ModelError(f"{label}: not a valid ONNX model: {_first_line(_cause(error))}") from error
    _check_opset(model, label)
    common.RemoveInitializersFromInputsPass()(model)
    _decode_constants(model, label)
    return model, label


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _parse(path: Path) -> onnx.ModelProto:
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


def _check_structure(proto: onnx.ModelProto, label: str) -> None:
    for tensor in proto.graph.initializer:
        outside = tensor.data_location == onnx.TensorProto.EXTERNAL
        if not outside and 0 not in tensor.dims and not any(_holds(tensor, field) for field in DATA_FIELDS):
            raise ModelError(f'{label}: initialiser "{tensor.name}" holds no data')
    try:
        onnx.checker.check_model(_checkable(proto))
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{label}: not a valid ONNX model: a name or word in it is not UTF-8 text"
        ) from error
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{label}: not a valid ONNX model: {_first_line(error)}") from error


def _holds(tensor: onnx.TensorProto, field: str) -> bool:
    return tensor.HasField(field) if field == "raw_data" else bool(getattr(tensor, field))


def _checkable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs in place of initialisers, so that checking it does not copy its weights.

    Unknown and deprecated operators, at which the checker would stop, pass: they are replaced, or listed
    later with all others that are not supported. Outputs get the shape the checker insists on, and runtimes,
    like this package, infer anyway.
    """
    light = onnx.ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    for function in light.functions:
        _let_unknown_pass(function.node, function.opset_import)
    graph = light.graph
    graph.name = proto.graph.name or "graph"
    graph.node.extend(proto.graph.node)
    _let_unknown_pass(graph.node, light.opset_import)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    for output in graph.output:
        if output.type.WhichOneof("value") not in {None, "tensor_type"}:
            continue
        if not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.SetInParent()
    listed = {value.name for value in graph.input}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in proto.graph.initializer
        if tensor.name not in listed
    )
    return light


def _let_unknown_pass(
    nodes: Iterable[onnx.NodeProto], imports: MutableSequence[onnx.OperatorSetIdProto]
) -> None:
    """Moves operators that the checker does not know to a domain in which it asks for no schema."""
    versions = {_domain(each): min(each.version, NEWEST_OF_ANY) for each in imports}
    imports.append(onnx.helper.make_opsetid(UNKNOWN, 1))
    for node in all_nodes(nodes):
        node.domain = _domain(node)
        if not _has_schema(node.op_type, node.domain, versions.get(node.domain)):
            node.domain = UNKNOWN


def _domain(named: onnx.NodeProto | onnx.OperatorSetIdProto) -> str:
    return "" if named.domain == "ai.onnx" else named.domain


@cache
def _has_schema(operator: str, domain: str, version: int | None) -> bool:
    """Whether the checker has what it needs to look at an operator."""
    if version is None:
        return False
    if domain not in DOMAINS:
        return True
    try:
        schema: Any = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return False
    return not schema.deprecated


def _check_opset(model: ir.Model, label: str) -> None:
    version = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx"))
    if version is None:
        raise ModelError(f"{label}: declares no opset of ONNX's own domain")
    if not OLDEST <= version <= NEWEST:
        raise ModelError(f"{label}: opset {version} is not supported ({OLDEST} to {NEWEST})")


def _decode_constants(model: ir.Model, label: str) -> None:
    """Turns every constant into an array, once, and makes sure that it is whole and finite."""
    graphs = [model.graph, *all_bodies(model.graph)]
    for name, value in (each for graph in graphs for each in graph.initializers.items()):
        value.const_value = _check_decoded(value, value.const_value, f'{label}: initialiser "{name}"')
    functions = [node for function in model.functions.values() for node in function.all_nodes()]
    for node in (*(node for graph in graphs for node in graph), *functions):
        if node.op_type != "Constant" or node.domain:
            _decode_attributes(node, label)
        if node.op_type == "Constant" and not node.domain:
            output = node.outputs[0]
            if len(node.attributes) != 1:
                raise ModelError(
                    f'{label}: constant "{output.name}" has {len(node.attributes)} attributes, not one value'
                )
            try:
                tensor = ir.convenience.get_const_tensor(output)
            except (ValueError, TypeError) as error:
                raise ModelError(f'{label}: constant "{output.name}": {_first_line(error)}') from error
            _check_decoded(output, tensor, f'{label}: constant "{output.name}"')


def _decode_attributes(node: ir.Node, label: str) -> None:
    """Makes sure that the tensors among the attributes of a node are whole."""
    for attribute in node.attributes.values():
        what = f'{label}: node "{node.name or node.outputs[0].name}" ({node.op_type}, {attribute.name})'
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            _check_decoded(node.outputs[0], attribute.as_tensor(), what)
        elif attribute.type == ir.AttributeType.TENSORS:
            for tensor in attribute.as_tensors():
                _check_decoded(node.outputs[0], tensor, what)


def _check_decoded(value: ir.Value, tensor: ir.TensorProtocol | None, what: str) -> ir.TensorProtocol | None:
    if tensor is None:
        return tensor
    try:
        if not _is_complete(tensor):
            raise ValueError(what)
        array = array_of_file(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor.numpy()
    except OSError as error:
        raise ModelError(f"{what} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, TypeError, AssertionError) as error:  # asserted: data in the field of another type
        raise ModelError(f"{what} is truncated: its data does not fill shape {list(tensor.shape)}") from error
    if tensor.dtype == ir.DataType.STRING:
        return tensor
    if tensor.dtype.is_floating_point() and not np.isfinite(array).all():
        if np.isnan(array).any():
            raise ModelError(f"{what} holds NaN")
        if any(use.node.op_type in WEIGHTED for use in value.uses()):
            raise ModelError(f"{what} holds infinite values")
    return ir.Tensor(array, dtype=tensor.dtype, name=value.name)


def _is_complete(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor of a file holds as many bytes as its shape needs.

    Elements of 2 and 4 bits are unpacked without that look: what lacks became zeros.
    """
    proto = tensor.raw if isinstance(tensor, ir.serde.TensorProtoTensor) else None
    if not isinstance(proto, onnx.TensorProto):
        return True
    if min(proto.dims, default=0) < 0:
        return False
    if proto.HasField("raw_data"):
        return byte_size(proto) in {None, len(proto.raw_data)}
    return tensor.dtype.bitwidth not in {2, 4} or byte_size(proto) == len(proto.int32_data)
