"""Plugins at work: samples from a dataset, metrics for `evaluate`, scales of inputs, settings by layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibration import Range, Ranges
from tpuflow.config import Config, layer_names
from tpuflow.config.operators import types_of
from tpuflow.errors import SampleError
from tpuflow.evaluation.metrics import Metric
from tpuflow.io.samples import Samples, in_turn
from tpuflow.plugins.datasets import dataset_named
from tpuflow.plugins.nodes import PyNode, PyTensor, backend, numpy_of, onnx_form
from tpuflow.plugins.numbers import get_linear_quant_params_from_tensor
from tpuflow.plugins.registry import PluginError, Registry

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.io.samples import Port

__all__ = [
    "configure_layers",
    "dataset_samples",
    "is_dataset",
    "operators_of",
    "plugin_metrics",
    "unused_operators",
    "with_input_scales",
    "with_operator_scales",
]

WORD = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.DOTALL)


def is_dataset(text: str) -> bool:
    """Whether a word names a dataset and its files: `NAME(data_file,label_file)`."""
    return WORD.fullmatch(text) is not None


def dataset_samples(
    registry: Registry, text: str, ports: Sequence[Port], workers: int = 0
) -> tuple[Samples, Any | None]:
    """All samples of a dataset plugin and their labels, None where it has none.

    Args:
        registry: Where it is registered.
        text: `NAME(data_file,label_file)`.
        ports: The network's inputs, in the order of the dataset's.
        workers: Threads that ask for samples ahead; the dataset must bear that. 0: none.

    Raises:
        PluginError: There is no such dataset, or it cannot be opened.
        SampleError: Its samples do not fit the inputs.
    """
    match = WORD.fullmatch(text)
    if match is None:
        raise PluginError(f'"{text}": write NAME(data_file,label_file)')
    words = [word.strip() for word in match[2].split(",") if word.strip()]
    maker = _dataset(registry, match[1])
    rows = _call(match[1], lambda: _rows(maker(*words), workers))
    if not rows:
        raise SampleError(f"{text}: there are no samples")
    columns: dict[str, list[Any]] = {port.name: [] for port in ports}
    for index, (inputs, _) in enumerate(rows):
        if len(inputs) != len(ports):
            raise SampleError(f"{text}: sample {index} has {len(inputs)} inputs, the network {len(ports)}")
        for port, values in zip(ports, inputs, strict=True):
            columns[port.name].append(np.asarray(numpy_of(values)).astype(port.dtype))
    try:
        arrays = {name: np.stack(values) for name, values in columns.items()}
    except ValueError as error:
        raise SampleError(f"{text}: samples differ in shape: {error}") from None
    labels = [label for _, label in rows]
    # What stands for no label at all.
    absent = all(isinstance(label, float) and label == float("-inf") for label in labels)
    return Samples.of(arrays, ports, text), None if absent else np.stack([numpy_of(each) for each in labels])


def _dataset(registry: Registry, name: str) -> Any:
    """A dataset of a plugin, or one that is there without."""
    plugins = {each.lower(): each for each in registry.names("dataset")}
    own = dataset_named(name)
    if name.lower() not in plugins and own is not None:
        return own
    return registry.get("dataset", plugins.get(name.lower(), name))


def _rows(dataset: Any, workers: int) -> list[tuple[list[Any], Any]]:
    def row(index: int) -> tuple[list[Any], Any]:
        sample = dataset[index]
        inputs = sample[0]
        return list(inputs) if isinstance(inputs, list | tuple) else [inputs], sample[1]

    return list(in_turn(row, range(len(dataset)), workers))


def _call(name: str, call: Callable[[], Any]) -> Any:
    """Calls a plugin's code; whatever it raises becomes one sentence.

    Raises:
        PluginError: Naming the plugin.
    """
    try:
        return call()
    except PluginError as error:
        raise PluginError(f"{name}: {error}") from None
    except Exception as error:
        reason = " ".join(str(error).split())
        raise PluginError(f"plugin {name} failed: {type(error).__name__}: {reason}") from error


def plugin_metrics(registry: Registry) -> dict[str, Callable[..., Metric]]:
    """The metrics of plugins, as `evaluate` takes them: they read every output, and labels."""
    return {name: _metric(name, registry.get("metric", name)) for name in registry.names("metric")}


def _metric(name: str, made: Any) -> Callable[..., Metric]:
    def metric(*words: str) -> Metric:
        def value(outputs: Sequence[Any], labels: Any) -> float:
            def run() -> float:
                scorer = made(*words)
                scorer.reset()
                for index in range(len(outputs[0])):
                    row = slice(index, index + 1)
                    scorer([backend(output[row]) for output in outputs], backend(labels[row]))
                return float(scorer.compute())

            found: float = _call(name, run)
            return found

        return Metric("labels", value, outputs=0)

    return metric


def with_input_scales(ranges: Ranges, registry: Registry, names: Sequence[str], config: Config) -> Ranges:
    """Ranges of inputs as the quantise function of the operator type `Input` sets them, if there is one.

    Raises:
        PluginError: It gave up, or set no scale.
    """
    if "Input" not in registry.names("quantise"):
        return ranges
    quantize = registry.get("quantise", "Input")
    found = dict(ranges.tensors)
    for number, name in enumerate(names):
        if name not in found:
            continue  # integers need no range
        node = PyNode(name, "Input")
        tensor = PyTensor(name)
        tensor.min, tensor.max = (
            min(low for low, _ in ranges.tensors[name].pairs),
            max(high for _, high in ranges.tensors[name].pairs),
        )
        node.attrs["layer_id"] = str(number)
        node.outputs = [tensor]
        _call("Input", partial(quantize, node))
        if tensor.scale is None or tensor.zerop is None:
            raise PluginError(f'Input: quantise sets no scale and zero point of "{name}"')
        scale, zero = onnx_form(tensor)
        found[name] = _range_of(scale, zero, config)
    return Ranges(found, ranges.samples, ranges.strategy)


def operators_of(registry: Registry) -> dict[str, Callable[..., list[Any]]]:
    """The operators of plugins that take part in networks: new types, and newer versions of known ones.

    Each is called with a node's name, its attributes, its inputs, which of them are constants, and the names
    of its outputs, and gives these.
    """
    return {
        name: partial(_forward, registry, name)
        for name in registry.names("forward")
        if name != "Input" and (not types_of(name) or registry.version("forward", name) > (1, 0))
    }


def _forward(
    registry: Registry,
    kind: str,
    name: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[Any],
    constants: frozenset[int],
    outputs: Sequence[str],
) -> list[Any]:
    node = _node(kind, name, attributes, inputs, constants, outputs)
    _call(kind, partial(registry.get("forward", kind), node))
    return _values(node)


def _values(node: PyNode) -> list[Any]:
    for tensor in node.outputs:
        if tensor.betensor is None:
            raise PluginError(f'{node.type}: forward leaves output "{tensor.name}" without values')
    return [np.asarray(numpy_of(tensor.betensor)) for tensor in node.outputs]


def _node(
    kind: str,
    name: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[Any],
    constants: frozenset[int],
    outputs: Sequence[str],
) -> PyNode:
    """A node as plugins see it: constants are weights, biases, and what else there is by number."""
    node = PyNode(name, kind)
    node.params.update(attributes)
    for at, array in enumerate(inputs):
        if array is None:
            continue
        if at in constants:
            what = ("weights", "biases", f"constant{len(node.constants)}")[min(len(node.constants), 2)]
            node.constants[what] = PyTensor(f"{name}/{what}", array)
        else:
            node.inputs.append(PyTensor(f"{name}/input{at}", array))
    node.outputs = [PyTensor(each) for each in outputs]
    if node.inputs and node.inputs[0].ir_shape:
        node.current_batch_size = node.inputs[0].ir_shape[0]
    return node


def with_operator_scales(ranges: Ranges, registry: Registry, model: ir.Model, config: Config) -> Ranges:
    """Ranges of what operators of plugins give, as their quantise functions set them.

    Forward has run once before, on the middles of what calibration saw.

    Raises:
        PluginError: A function gave up, or set no scale.
    """
    taking, rules = operators_of(registry), registry.names("quantise")
    found = dict(ranges.tensors)
    for node in model.graph:
        seen = [value.name in found for value in node.outputs]
        if node.op_type not in taking or node.op_type not in rules or not all(seen):
            continue
        held = [(at, value) for at, value in enumerate(node.inputs) if value is not None]
        constants = frozenset(at for at, value in held if value.const_value is not None)
        made = _node(
            node.op_type, node.name or "", {}, [_middle(value, found) for value in node.inputs],
            constants, [value.name or "" for value in node.outputs],
        )  # fmt: skip
        made.params.update({name: each.value for name, each in node.attributes.items()})
        _call(node.op_type, partial(registry.get("forward", node.op_type), made))
        variable = [value for at, value in held if at not in constants]
        for tensor, value in zip((*made.inputs, *made.outputs), (*variable, *node.outputs), strict=True):
            _state_range(tensor, found.get(value.name or ""), made)
        _call(node.op_type, partial(registry.get("quantise", node.op_type), made))
        for tensor in made.outputs:
            if tensor.scale is None or tensor.zerop is None:
                raise PluginError(f'{node.op_type}: quantise sets no scale and zero point of "{tensor.name}"')
            scale, zero = onnx_form(tensor)
            found[tensor.name] = _range_of(scale, zero, config)
    return replace(ranges, tensors=found)


def _middle(value: ir.Value | None, found: Mapping[str, Range]) -> Any:
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    assert value.shape is not None and value.dtype is not None, "shapes of a normalised model are known"
    reach = found.get(value.name or "")
    middle = 0.0 if reach is None else sum(reach.pairs[0]) / 2
    return np.full(value.shape.numpy(), middle, value.dtype.numpy())


def _state_range(tensor: PyTensor, reach: Range | None, node: PyNode) -> None:
    """States what calibration saw of a tensor, and a grid over it where it is an input."""
    if reach is not None:
        tensor.min, tensor.max = min(low for low, _ in reach.pairs), max(high for _, high in reach.pairs)
    if tensor in node.inputs:
        bits = node.attrs["q_bits_activation"]
        tensor.qinvariant, tensor.qbits = False, bits
        tensor.scale, tensor.zerop, tensor.qmin, tensor.qmax, tensor.dtype = (
            get_linear_quant_params_from_tensor(tensor, node.attrs["q_mode_activation"], bits, is_signed=True)
        )


def unused_operators(registry: Registry, model: ir.Model) -> list[str]:
    """Operator plugins that a build makes no use of, a sentence each: they are never ignored in silence.

    Args:
        registry: What plugins registered.
        model: The model as the user gave it.
    """
    names = {*registry.names("forward"), *registry.names("quantise")} - {"Input"}
    taking = operators_of(registry)
    there: dict[str, list[str]] = {}
    for node in model.graph:
        there.setdefault(node.op_type.lower(), []).append(node.name or node.op_type)
    lines = []
    for name in sorted(names):
        nodes = there.get(name.lower())
        if nodes is None:
            lines.append(f'operator plugin "{name}": the model has no node of that type')
            continue
        if name in taking:
            continue
        listed = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        lines.append(
            f'operator plugin "{name}" takes no part, it has no forward function of a version above 1.0: '
            f"{listed} are computed by the operator of tpuflow"
        )
    return lines


def _range_of(scale: float, zero: int, config: Config) -> Range:
    """The range for which the configured grid has that scale and zero point."""
    half = 1 << (config.quantize.grid_bits - 1)
    if config.quantize.dtype == "int16":
        reach = scale * (half - 1) / config.quantize.headroom_16
        return Range(-reach, reach)
    mode = config.quantize.activation_mode
    if mode == "asymmetric":
        return Range(min(0.0, (-half - zero) * scale), max(0.0, (half - 1 - zero) * scale))
    reach = scale * (half - 0.5 if mode == "symmetric_full" else half - 1)
    return Range(-reach, reach)


def configure_layers(config: Config, registry: Registry, name: str, model: ir.Model) -> Config:
    """A configuration with the settings by layer that a plugin gives for a model.

    The plugin is called with one description per layer, `{"name", "type", "id"}`, and returns settings by
    layer name; they come after the entries there are.

    Raises:
        PluginError: There is no such plugin, or it failed.
        ConfigError: Its settings are wrong.
    """
    maker = registry.get("qconfig", name)
    numbers = {each: number for number, each in enumerate(layer_names(model))}
    layers = [
        {"name": node.name, "type": node.op_type, "id": numbers[node.name or ""]} for node in model.graph
    ]
    settings: Mapping[str, Mapping[str, Any]] = _call(name, lambda: maker()(layers))
    entries = [{"names": [layer], **values} for layer, values in settings.items() if values]
    added = Config.parse({"layers": entries}, f"plugin {name}")
    return config.model_copy(update={"layers": (*config.layers, *added.layers)})
