"""Models before and after quantisation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from tpu_framework.graphs import GraphDef, TfGraph, model_of
from tpu_framework.missing import NotAvailableError
from tpuflow.calibration import Artifacts, Means, Range, Ranges, save_artifacts
from tpuflow.config import Config, DType
from tpuflow.errors import FileError, ModelError, RangesError, SampleError
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import ProgramPort
from tpuflow.export import integer_onnx
from tpuflow.frontend import FloatModel, load
from tpuflow.io.files import make_folder, parse_json, read_text, write_json
from tpuflow.io.samples import Samples
from tpuflow.lowering import Graph
from tpuflow.partitioning import Partitioned
from tpuflow.partitioning.storage import load_graph
from tpuflow.ptq import CalibratedModel, CalibrationData, Recipe
from tpuflow.ptq.fine_tuning import fine_tune

if TYPE_CHECKING:
    from tpuflow.frontend.source import Source

__all__ = ["InMemoryQuantizedModel", "QuantizedModel", "RegularModel", "TpuDtype"]

Array = NDArray[Any]
Thresholds = dict[str, tuple[float, float]]
"""Least and largest value of every tensor."""
Ports = Mapping[str, tuple[ProgramPort, ...]]
"""`inputs` and `outputs`."""


class TpuDtype(Enum):
    """Element types, as directions of `QuantizedModel.rescale`: towards codes, or towards real numbers."""

    INT8 = "int8"
    INT16 = "int16"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


def _ports(graph: Graph) -> Ports:
    level = GraphLevel(graph)
    return {"inputs": level.ports, "outputs": level.results}


class QuantizedModel(ABC):
    """A quantised model."""

    @property
    @abstractmethod
    def graph(self) -> Graph:
        """The native graph."""

    @property
    def ports(self) -> Ports:
        """The graph's `inputs` and `outputs`: names, scales, element types, shapes."""
        return _ports(self.graph)

    def with_batch(self, batch: int) -> Graph:
        """The graph for another batch.

        Raises:
            NotAvailableError: It cannot be made from what is there.
        """
        own = GraphLevel(self.graph).ports[0].shape[:1]
        if own != (batch,):
            raise NotAvailableError(
                f"batch {batch}: a model read from a file has the batch it was quantised for ({own[0]}): "
                "quantise it again from the original"
            )
        return self.graph

    def as_graph(self, batch_size: int | None = None, cache_word_length: int = 128) -> TfGraph:
        """The model as a graph of integers, whose ONNX form any runtime computes to the simulator's bits.

        It takes and gives codes, as `rescale` makes and reads them.

        Args:
            batch_size: Another batch than the model's.
            cache_word_length: Its metadata tell how many cache words of that length inputs and outputs take.

        Raises:
            NotAvailableError: The batch cannot be changed.
            ModelError: Layers compute with floats.
        """
        graph = self.graph if batch_size is None else self.with_batch(batch_size)
        return TfGraph(integer_onnx(graph, cache_word_length))

    def rescale(self, data: Mapping[str, Array], direction: TpuDtype | None = None) -> dict[str, Array]:
        """Real numbers to codes, or codes to real numbers.

        Args:
            data: Inputs or outputs by name, in the model's shapes, or several batches of them.
            direction: An integer type: towards codes; a float: towards real numbers. By default inputs become
                codes and outputs real numbers.

        Raises:
            SampleError: There is no such tensor.
        """
        inputs, outputs = ({port.name: port for port in ports} for ports in self.ports.values())
        found = {}
        for name, array in data.items():
            port = inputs.get(name) or outputs.get(name)
            if port is None:
                known = ", ".join([*inputs, *outputs])
                raise SampleError(f'rescale: "{name}" is neither input nor output, there are {known}')
            encode = name in inputs if direction is None else direction in (TpuDtype.INT8, TpuDtype.INT16)
            found[name] = _by_batch(_codes if encode else _real, port, np.asarray(array))
        return found

    def save(
        self, file_dir: str | Path, file_name: str | None = None, io_params_name: str = "scales.json"
    ) -> Path:
        """Writes the model (`.tpuq`) and the scales of its inputs and outputs beside it.

        Raises:
            FileError: A file cannot be written.
        """
        folder = Path(file_dir)
        make_folder(folder)
        path = folder / (file_name or f"{self.graph.name}.tpuq")
        path = path if path.suffix == ".tpuq" else path.with_name(f"{path.name}.tpuq")
        self.graph.save(path)
        write_json(
            folder / io_params_name,
            {
                way: {
                    port.name: {
                        "scale": list(port.scale),
                        "zero_point": port.zero_point,
                        "dtype": str(port.code),
                        "shape": list(port.shape),
                    }
                    for port in ports
                }
                for way, ports in self.ports.items()
            },
        )
        return path

    @staticmethod
    def load(file_name: str | Path) -> QuantizedModel:
        """A saved model; nothing but its place is kept until its graph is needed.

        Args:
            file_name: As `save` was given it, with or without its suffix, or a folder with one model.

        Raises:
            FileError: There is no such file, or the folder has not one model.
        """
        path = Path(file_name)
        if path.is_dir():
            models = sorted(path.glob("*.tpuq"))
            if len(models) != 1:
                raise FileError(f"{path}: has {len(models)} models (.tpuq): name one of its files")
            return _FileSystemMappedQuantizedModel(models[0])
        for found in (path, path.with_name(f"{path.name}.tpuq")):
            if found.is_file():
                return _FileSystemMappedQuantizedModel(found)
        raise FileError(f"{file_name}: cannot be read: no such file or directory")


class InMemoryQuantizedModel(QuantizedModel):
    """A quantised model with all it was made from."""

    def __init__(
        self, graph: Graph, source: RegularModel, thresholds: Mapping[str, tuple[float, float]]
    ) -> None:
        self._graph = graph
        self._source = source
        self._thresholds = dict(thresholds)

    @property
    def graph(self) -> Graph:
        """See `QuantizedModel`."""
        return self._graph

    def with_batch(self, batch: int) -> Graph:
        """See `QuantizedModel`."""
        return self._source.with_batch(batch).quantize(self._thresholds).graph


class _FileSystemMappedQuantizedModel(QuantizedModel):
    """A quantised model in a file, whose constants take no memory before its graph is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def graph(self) -> Graph:
        """See `QuantizedModel`."""
        return self._load()

    @cached_property
    def ports(self) -> Ports:
        """See `QuantizedModel`; they are kept without the graph they were read with."""
        return _ports(self._load())

    def _load(self) -> Graph:
        found = load_graph(self.path)
        if isinstance(found, Partitioned):
            raise NotAvailableError(f"{self.path}: parts of it run on the host: use the native API")
        return found


def _fields(option: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields an option of a layer stands for: an element type, a preset, or fields themselves."""
    if not isinstance(option, str):
        return option
    if option in get_args(DType):
        return {"dtype": option}
    return {"dtype": "float32"} if option == "float" else {"quant_type": option}


class RegularModel:
    """A float model on its way to integers.

    Args:
        original_graph_def: ONNX model, file, graph of `onnx_to_tf`, or `GraphDef`.
        input_shapes: By input, or in the model's order; None is the model's own size, or 1 for an open batch.
        output_nodes: Tensors that become the outputs; none keeps the model's.
        anchors_mapping: Other names of tensors that may stand in `output_nodes`.
        percentile: Share of values that stay unclipped, in percent; 100 keeps all.
        operation_cfg: What differs for layers, by their names or a pattern of them: an element type
            (`"float"` keeps a layer unquantised), a preset such as `"w8a16"`, or fields of `tpuflow fields`.
        swish_layer_mode: `"function"` (or None) computes x * sigmoid(x) as one function, `"product"` as the
            product it is written as.

    Raises:
        ModelError: The model cannot be used.
        ConfigError: `operation_cfg` or `swish_layer_mode` names what there is not; layers are looked up
            when the model is quantised.
    """

    def __init__(
        self,
        original_graph_def: Source | TfGraph | GraphDef,
        input_shapes: Mapping[str, Sequence[int | None]] | Sequence[Sequence[int | None]] | None,
        output_nodes: Sequence[str] | None,
        anchors_mapping: Mapping[str, str] | None = None,
        percentile: float = 100.0,
        operation_cfg: Mapping[str, str | Mapping[str, Any]] | None = None,
        swish_layer_mode: str | None = None,
    ) -> None:
        self._source = model_of(original_graph_def)
        names = anchors_mapping or {}
        self._outputs = [names.get(name, name) for name in output_nodes or ()]
        self._shapes = _named_shapes(self._source, input_shapes)
        way = (
            {"strategy": "extrema"} if percentile == 100.0 else {"strategy": "pct", "percentile": percentile}
        )
        layers = [{"match": match, **_fields(option)} for match, option in (operation_cfg or {}).items()]
        swish = {} if swish_layer_mode is None else {"swish_layer_mode": swish_layer_mode}
        self._config = Config.parse({"calibrate": way, "layers": layers, "quantize": swish}, "RegularModel")
        self._batch: int | None = None
        self._means: Mapping[str, Means] = {}
        self._margins: Mapping[str, float] = {}
        self.model = self._load()

    def _load(self) -> FloatModel:
        return load(self._source, input_shapes=self._shapes, cut_outputs=self._outputs, batch=self._batch)

    def with_batch(self, batch: int) -> RegularModel:
        """The same model for another batch."""
        other = object.__new__(RegularModel)
        other.__dict__.update(self.__dict__)
        other._batch = batch
        other._shapes = {}
        other.model = other._load()
        return other

    def calibrate(
        self,
        calibration_data: Mapping[str, Array] | Iterable[Mapping[str, Array]],
        save_output_histograms: bool = False,  # noqa: FBT001, FBT002 - the published signature
        debug_sample_number: int = 0,
        save_dir: str | Path = "",
        original_model_statistic_filename: str | Path | None = None,
    ) -> Thresholds:
        """Ranges of all tensors over samples.

        Args:
            calibration_data: Arrays by input, `[samples, ...]`; or one whole feed after another.
            save_output_histograms: Write the histogram of every tensor, and its thresholds, into `save_dir`.
            debug_sample_number: Of how many samples histograms and statistics are; 0 for all.
            save_dir: Where thresholds and all else goes; nothing is written without it.
            original_model_statistic_filename: Write the statistics of every tensor there, in `save_dir`.

        Raises:
            SampleError: The samples do not fit.
            FileError: A file cannot be written.
        """
        samples = self._samples(calibration_data)
        recipe = Recipe(self._config, stages=("calibrate",))
        ranges = recipe.calibrate(self.model, CalibrationData(samples)).ranges
        assert ranges is not None, "the stage makes them"
        self._means = ranges.means
        self._margins = {name: found.margin for name, found in ranges.tensors.items()}
        kept = Artifacts(
            save_dir, save_output_histograms, debug_sample_number, original_model_statistic_filename
        )
        save_artifacts(self.model, samples, ranges, kept)
        return {name: _pair(found) for name, found in ranges.tensors.items()}

    @staticmethod
    def dump_thresholds(file_name: str | Path, thresholds: Mapping[str, tuple[float, float]]) -> None:
        """Writes thresholds as JSON, one pair per tensor.

        Raises:
            FileError: The file cannot be written.
        """
        write_json(file_name, {name: list(pair) for name, pair in thresholds.items()})

    @staticmethod
    def load_thresholds(file_name: str | Path) -> Thresholds:
        """Reads what `dump_thresholds` wrote, or a file written by hand.

        Raises:
            RangesError: The file cannot be read, or a threshold is none.
        """
        try:
            content = parse_json(read_text(file_name, RangesError), file_name, RangesError)
            return {name: _pair(Range(float(low), float(high))) for name, (low, high) in content.items()}
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise RangesError(f"{file_name}: no thresholds, a pair of numbers per tensor: {error}") from None

    def fine_tune(
        self,
        thresholds: Mapping[str, tuple[float, float]],
        fine_tuning_data: Mapping[str, Array] | Iterable[Mapping[str, Array]],
        fine_tuning_epochs: int = 10,
        working_dir: str | Path = "",
    ) -> Thresholds:
        """Thresholds trained on samples, those of least loss; see `tpuflow.ptq.fine_tuning`.

        Args:
            thresholds: Where training begins.
            fine_tuning_data: As `calibrate` takes it.
            fine_tuning_epochs: How often all of it is gone through.
            working_dir: Where TensorBoard's curves (`logs`) and `checkpoints` go; without it there are none.

        Raises:
            SampleError: The samples do not fit.
            MissingTensorBoardError: There is a folder, but no TensorBoard to write curves with.
        """
        found = fine_tune(
            self.model,
            self._ranges(thresholds),
            self._samples(fine_tuning_data),
            epochs=fine_tuning_epochs,
            folder=working_dir,
            config=self._config,
        )
        return {name: _pair(each) for name, each in found.tensors.items()}

    def _samples(self, data: Mapping[str, Array] | Iterable[Mapping[str, Array]]) -> Samples:
        ports = self.model.inputs
        dtypes = {port.name: np.dtype(port.dtype) for port in ports}
        if isinstance(data, Mapping):
            return Samples.of(_arrays(data, dtypes), ports)
        return Samples.of_feeds([_arrays(feed, dtypes) for feed in data], ports)

    def quantize(self, thresholds: Mapping[str, tuple[float, float]]) -> InMemoryQuantizedModel:
        """The model in integers.

        Raises:
            QuantizeError: A threshold is missing.
            RangesError: A threshold is no pair of numbers.
        """
        graph = Recipe(self._config).lower(CalibratedModel(self.model, self._ranges(thresholds)))
        assert not isinstance(graph, Partitioned), "the model is whole"
        return InMemoryQuantizedModel(graph, self, thresholds)

    def _ranges(self, thresholds: Mapping[str, tuple[float, float]]) -> Ranges:
        # Thresholds are pairs alone; margins and the averages for bias correction stay with the model.
        try:
            tensors = {
                name: Range(float(low), float(high), margin=self._margins.get(name, 1.0))
                for name, (low, high) in thresholds.items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise RangesError(f"thresholds: a pair of numbers per tensor is expected: {error}") from None
        return Ranges(tensors, means=self._means)


def _by_batch(function: Callable[[ProgramPort, Array], Array], port: ProgramPort, array: Array) -> Array:
    own = port.shape[0] if port.shape else 0
    if array.ndim == 0 or own == 0 or array.shape[1:] != port.shape[1:] or len(array) % own:
        return function(port, array)
    return np.concatenate([function(port, array[at : at + own]) for at in range(0, len(array), own)])


def _codes(port: ProgramPort, array: Array) -> Array:
    stored = port.encode(np.asarray(array, port.dtype).reshape(port.shape))
    ordered = stored.reshape([port.shape[axis] for axis in port.permutation])
    return np.ascontiguousarray(ordered.transpose(np.argsort(port.permutation)))


def _real(port: ProgramPort, codes: Array) -> Array:
    stored = np.asarray(codes, port.code).transpose(port.permutation).reshape(port.stored)
    return port.decode(np.ascontiguousarray(stored))


def _pair(found: Range) -> tuple[float, float]:
    return min(low for low, _ in found.pairs), max(high for _, high in found.pairs)


def _named_shapes(
    source: Source, shapes: Mapping[str, Sequence[int | None]] | Sequence[Sequence[int | None]] | None
) -> dict[str, Sequence[int]]:
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping):
        names = [port.name for port in load(source, host=True).inputs]
        if len(names) != len(shapes):
            raise ModelError(f"{len(shapes)} input shapes for {len(names)} inputs: {', '.join(names)}")
        shapes = dict(zip(names, shapes, strict=True))
    if not any(size is None for shape in shapes.values() for size in shape):
        return {name: [int(size or 0) for size in shape] for name, shape in shapes.items()}
    try:
        own = {port.name: port.shape for port in load(source, host=True).inputs}
    except ModelError:
        own = {}  # sizes are open: the batch is 1, others must be given
    return {name: _without_open(name, shape, own.get(name)) for name, shape in shapes.items()}


def _without_open(name: str, shape: Sequence[int | None], own: Sequence[int] | None) -> list[int]:
    """A shape whose open sizes are the model's own, or 1 for the batch."""
    known = list(own) if own is not None and len(own) == len(shape) else [1, *(None for _ in shape[1:])]
    sizes = [size if size is not None else other for size, other in zip(shape, known, strict=True)]
    open_axes = [axis for axis, size in enumerate(sizes) if size is None]
    if open_axes:
        raise ModelError(f'input "{name}": axis {open_axes[0]} is open in the model, too: give its size')
    return [int(size) for size in sizes if size is not None]


def _arrays(feed: Mapping[str, Any], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    """Arrays of what is given as lists, or as other real numbers than the model's."""
    found = {name: np.asarray(values) for name, values in feed.items()}
    return {
        name: array.astype(dtypes[name])
        if array.dtype.kind == "f" and name in dtypes and dtypes[name].kind == "f"
        else array
        for name, array in found.items()
    }
