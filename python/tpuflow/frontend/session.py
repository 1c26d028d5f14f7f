"""Runs a float model in onnxruntime: the reference everything quantised is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotComputed

from tpuflow.errors import ModelError, NoKernelError, SampleError
from tpuflow.frontend.outside import OUTSIDE, StagedSession
from tpuflow.frontend.precision import to_float32
from tpuflow.io.threads import stated_threads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

UNSUPPORTED = "not supported"
"""Words with which kernels refuse options they have no code for."""

__all__ = ["FloatSession", "run_float", "split_large_weights"]

WRONG_OPTIMIZERS = ["Pad_Fusion"]
"""Graph optimisers of onnxruntime that change results: this one moves pads of zeros into pools."""

NO_ARRAYS = (
    "tensor(bfloat16)",
    "tensor(float8",
    "tensor(float4",
    "tensor(int4",
    "tensor(uint4",
    "tensor(int2",
    "tensor(uint2",
)
"""Types NumPy lacks, and which onnxruntime therefore neither takes nor gives."""

LARGE_BYTES = 4096
"""Weights from this size on are handed to onnxruntime beside the model."""
COPIED_BYTES = 1 << 30
"""Weights up to this size in all are copied into the form that kernels read quickest; more are inputs."""

Array = npt.NDArray[Any]


class FloatSession:
    """A float model prepared once, to be run on any number of samples.

    Attributes:
        outputs: Names of the tensors `run` returns, in order.
        kinds: Their types as onnxruntime writes them, such as `tensor(float)`.
        shapes: Their shapes as onnxruntime infers them; empty of what has no axes, and of what is unknown.
    """

    outputs: tuple[str, ...]
    kinds: dict[str, str]
    shapes: dict[str, list[int | str | None]]

    def __init__(
        self,
        model: ir.Model | onnx.ModelProto,
        outputs: Sequence[str] | Literal["all"] | None = None,
        threads: int | None = None,
        *,
        once: bool = False,
        arena: bool = True,
        apart: Mapping[str, Array] | None = None,
    ) -> None:
        """Prepares `model` (up to 2 GiB, static or dynamic; it is not changed).

        Args:
            model: The model.
            outputs: Tensors to return, intermediate ones included; the model's own outputs when None, every
                tensor a node of the main graph computes when "all".
            threads: Threads to run on; when None as many as the environment states, or all processors.
            once: Whether there are few runs to come: weights then stay as they are, which is slower by the
                run, but takes neither the time nor the memory of another copy. So do those of more than
                `COPIED_BYTES` in all, which onnxruntime would copy even then: to it they are inputs.
            arena: Whether the memory that a run takes is kept for the next one.
            apart: Weights a protocol buffer lists by name alone, see `split_large_weights`.

        Raises:
            ModelError: If a tensor does not exist, or onnxruntime does not take the model.
        """
        try:
            proto, apart = (
                _without_large_weights(model) if isinstance(model, ir.Model) else (model, dict(apart or {}))
            )
        except ir.serde.SerdeError as error:  # a node of text where its operator has numbers
            raise ModelError("the model has a constant or an attribute that cannot be written") from error
        graph = proto.graph
        own = dict.fromkeys(value.name for value in graph.output)
        made = {name: None for node in graph.node for name in node.output if name}
        if outputs == "all":
            self.outputs = tuple(dict.fromkeys([*made, *own]))
        else:
            self.outputs = tuple(own if outputs is None else outputs)
        for name in self.outputs:
            if name not in made and name not in own:
                raise ModelError(f'model computes no tensor called "{name}"')
        self._staged: StagedSession | None = None
        if any(node.domain == OUTSIDE for node in graph.node):
            self._in_stages(proto, threads, once=once, arena=arena, apart=apart)
            return
        extra = [name for name in self.outputs if name not in own]
        if extra:
            if not isinstance(model, ir.Model):
                proto = onnx.ModelProto()
                proto.CopyFrom(model)
            proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        listed, options = {each.name for each in graph.initializer}, _options(threads or stated_threads())
        given = {name: array for name, array in apart.items() if name in listed}
        self._weights: dict[str, Array] = {}
        if once or sum(array.nbytes for array in given.values()) > COPIED_BYTES:
            options.add_session_config_entry("session.disable_prepacking", "1")
            self._weights = given
            proto = _with_inputs(proto, given)
        else:
            held = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in given.values()]
            options.add_external_initializers(list(given), held)
        options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
        if once:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._apart = given  # the session reads these arrays where they are
            self._session = _session(proto, options)
        except NotComputed as error:
            # It has few operators for doubles; what it has stays as it is, so this is the second try.
            narrow = _in_float32(model) if isinstance(model, ir.Model) else None
            if narrow is None:
                raise NoKernelError(f"onnxruntime does not run the model: {_first_line(error)}") from error
            self.__init__(narrow, outputs, threads, once=once, arena=arena)  # type: ignore[misc]
            return
        except Exception as error:
            raise ModelError(f"onnxruntime does not run the model: {_first_line(error)}") from error
        self.kinds = {value.name: value.type for value in self._session.get_outputs()}
        self.shapes = {value.name: list(value.shape or []) for value in self._session.get_outputs()}
        inputs = [value for value in self._session.get_inputs() if value.name not in self._weights]
        for value in (*inputs, *self._session.get_outputs()):
            if value.type.startswith(NO_ARRAYS):
                kind = value.type.removeprefix("tensor(").removesuffix(")")
                raise ModelError(
                    f'onnxruntime takes and gives no arrays of {kind}, the type of "{value.name}"'
                )
        self._types = {value.name: _dtype(value.type) for value in inputs}
        self._shapes = {value.name: value.shape for value in inputs}
        self._ranked = {value.name for value in graph.input if value.type.tensor_type.HasField("shape")}

    def _in_stages(
        self,
        proto: onnx.ModelProto,
        threads: int | None,
        *,
        once: bool,
        arena: bool,
        apart: Mapping[str, Array],
    ) -> None:
        """Prepares a model with operators from outside; types and shapes are left to it."""

        def part(model: onnx.ModelProto, outputs: Sequence[str]) -> FloatSession:
            listed = {each.name for each in model.graph.initializer}
            own = {name: value for name, value in apart.items() if name in listed}
            return FloatSession(model, outputs, threads, once=once, arena=arena, apart=own)

        self.kinds, self.shapes = {}, {}
        self._staged = StagedSession(proto, self.outputs, part, apart)

    def run(
        self, feeds: Mapping[str, npt.ArrayLike], into: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Runs the model once.

        Args:
            feeds: One array per input, by name, of the input's shape and type (float64 is narrowed).
            into: What an earlier run of the same shapes returned, to be written over: large results then cost
                neither fresh memory nor a copy. Models that take text or sequences cannot.

        Returns:
            The tensors named by `outputs`; `into` itself where it is written over.

        Raises:
            SampleError: If an array is missing, or has a wrong name, shape or type.
        """
        if self._staged is not None:
            return self._staged.run(feeds)
        arrays = {name: self._check_input(name, array) for name, array in feeds.items()}
        for name in self._types:
            if name not in arrays:
                raise SampleError(f'no array for input "{name}"')
        if into is not None and all(kind is not None and kind.kind != "O" for kind in self._types.values()):
            return self._run_into(arrays, dict(into))
        try:
            results = self._session.run(list(self.outputs), {**self._weights, **arrays})
        except Exception as error:
            kind = NoKernelError if UNSUPPORTED in str(error) else ModelError
            raise kind(f"onnxruntime fails at the model: {_first_line(error)}") from error
        return dict(zip(self.outputs, results, strict=True))

    def _run_into(self, arrays: Mapping[str, Array], into: dict[str, Array]) -> dict[str, Array]:
        binding = self._session.io_binding()
        for name, array in {**self._weights, **arrays}.items():
            binding.bind_cpu_input(name, array)
        for name in self.outputs:
            buffer = into[name]
            binding.bind_output(name, "cpu", 0, buffer.dtype, buffer.shape, buffer.ctypes.data)
        self._session.run_with_iobinding(binding)
        return into

    def _check_input(self, name: str, given: npt.ArrayLike) -> Array:
        if name not in self._types:
            raise SampleError(f'no input is called "{name}" (inputs: {", ".join(self._types)})')
        wanted = self._types[name]
        if wanted is None:
            return cast("Array", given)  # a sequence, which another session gave
        array = np.asarray(given)
        shape = self._shapes[name]
        fits = name not in self._ranked or (
            len(shape) == array.ndim
            and all(
                not isinstance(size, int) or size == extent
                for size, extent in zip(shape, array.shape, strict=True)
            )
        )
        if not fits:
            raise SampleError(
                f'input "{name}" has shape {list(shape)}, the array given has {list(array.shape)}'
            )
        if wanted.kind == "O" and array.dtype.kind in "OU":
            return array.astype(object)
        if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "same_kind"):
            raise SampleError(f'input "{name}" takes {wanted}, the array given has {array.dtype}')
        return np.ascontiguousarray(array, wanted).reshape(array.shape)


def _options(threads: int | None) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, not logged
    # Threads that wait for work by spinning take the processors from whoever works between two runs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = threads
        options.use_deterministic_compute = True
    return options


def _with_inputs(proto: onnx.ModelProto, weights: Collection[str]) -> onnx.ModelProto:
    """A copy of a model whose weights of these names are inputs."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    graph = changed.graph
    kept = [each for each in graph.initializer if each.name not in weights]
    known = {value.name for value in graph.input}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in graph.initializer
        if each.name in weights and each.name not in known
    )
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return changed


def _session(proto: onnx.ModelProto, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    # What the model says, in floats between its quantizers: fused kernels saturate sums of two products of
    # uint8 and int8 at 16 bits on processors without VNNI.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    names = [node.name for node in proto.graph.node if node.name]
    if len(set(names)) < len(names):  # which ONNX allows, and onnxruntime does not
        named, proto = proto, onnx.ModelProto()
        proto.CopyFrom(named)
        for node in proto.graph.node:
            node.name = ""
    return onnxruntime.InferenceSession(
        proto.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=WRONG_OPTIMIZERS,
    )


def _in_float32(model: ir.Model) -> ir.Model | None:
    """A copy that computes in float32 between inputs and outputs as they are; None where it did already."""
    narrow = model.clone()
    for value in narrow.graph.initializers.values():
        if value.const_value is not None:
            value.dtype = value.const_value.dtype
    if not to_float32(narrow):
        return None
    for node in narrow.graph:
        for value in node.outputs:
            value.shape = value.shape if value.type is not None else None
    return narrow


def _without_large_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model as a protocol buffer without its larger weights, and these."""
    light = model.clone()
    listed, apart = split_large_weights(
        {
            name: value.const_value
            for name, value in light.graph.initializers.items()
            if value.const_value is not None
        }
    )
    for name, tensor in listed.items():
        light.graph.initializers[name].const_value = tensor
    return ir.serde.serialize_model(light), apart


def split_large_weights(
    tensors: Mapping[str, ir.TensorProtocol],
) -> tuple[dict[str, ir.TensorProtocol], dict[str, Array]]:
    """Weights as a model is to list them, larger ones by name alone; and these, neither written nor copied.

    The second is what `FloatSession` takes beside a model that lists the first.
    """
    listed: dict[str, ir.TensorProtocol] = dict(tensors)
    apart: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if tensor.dtype != ir.DataType.FLOAT or tensor.nbytes < LARGE_BYTES:
            continue
        apart[name] = np.ascontiguousarray(tensor.numpy())
        shape = ir.Shape(tensor.shape.numpy())
        listed[name] = ir.ExternalTensor("apart", 0, tensor.nbytes, tensor.dtype, shape=shape, name=name)
    return listed, apart


_NAMES = {"float": "float32", "double": "float64", "string": "object"}


def _dtype(runtime_type: str) -> np.dtype[Any] | None:
    """The element type of what onnxruntime calls "tensor(float)" and the like; None for a sequence."""
    if not runtime_type.startswith("tensor("):
        return None
    name = runtime_type.removeprefix("tensor(").removesuffix(")")
    return np.dtype(_NAMES.get(name, name))


def run_float(
    model: ir.Model | onnx.ModelProto,
    feeds: Mapping[str, npt.ArrayLike],
    outputs: Sequence[str] | Literal["all"] | None = None,
) -> dict[str, Array]:
    """Runs a model once; `FloatSession` says what the arguments mean."""
    return FloatSession(model, outputs).run(feeds)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
