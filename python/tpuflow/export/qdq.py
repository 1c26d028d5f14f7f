"""A quantised graph as an ONNX model with its quantisers, for other runtimes and tools.

The float model keeps its operators and names. Behind every value the graph stores as codes come
QuantizeLinear and DequantizeLinear with the graph's scale and zero point; weights and biases are stored as
the graph's codes, each behind its DequantizeLinear. With `fake` they are stored as the floats these codes
stand for, and only activations have quantisers.

    x -> Q -> DQ -> Conv(W codes -> DQ, B codes -> DQ) -> Relu -> Q -> DQ -> ...

The scales of weights, and of operands that are added, multiplied, joined or averaged, are those by which the
graph's multipliers and shifts rescale to the letter; biases and constants are the graph's own. What still
differs: a runtime rounds sums in float32, and computes norms and functions anew instead of by integers and
tables. Each value is within one step of the graph's for the same operands, but in a deep network single
steps reach every element; so layers are then written in integers, which onnxruntime computes to the bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from tpuflow.errors import ModelError
from tpuflow.export.exact import with_integers
from tpuflow.export.factors import Network, StoredTensor, multipliers, with_one_scale
from tpuflow.partitioning import device_networks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.frontend import FloatModel
    from tpuflow.lowering import Graph
    from tpuflow.lowering.lowering import Layer, Tensor
    from tpuflow.partitioning import Partitioned

__all__ = ["activation_grids", "quantized_onnx", "scales"]

CODES = ("int8", "int16")


@dataclass(frozen=True)
class Grid:
    """How codes stand for numbers: `x = scale * (q - zero_point)`; scales may differ along an axis."""

    dtype: str
    scale: tuple[float, ...]
    zero_point: int
    axis: int | None = None

    @property
    def reach(self) -> tuple[float, float]:
        """Smallest and largest number that codes stand for."""
        limits, step = np.iinfo(self.dtype), max(self.scale)
        return (int(limits.min) - self.zero_point) * step, (int(limits.max) - self.zero_point) * step


def quantized_onnx(
    model: FloatModel, graph: Graph | Partitioned[Graph], *, fake: bool = False, exact: bool = True
) -> onnx.ModelProto:
    """The normalised float model with the quantisers of a graph made of it.

    Args:
        model: What the graph was made of.
        graph: The quantised graph, whole or in segments.
        fake: Weights as the floats their codes stand for; nothing is `exact` then.
        exact: Layers that floats do not repeat to the letter are written in integers; otherwise the model
            holds nothing but its own operators and quantisers.

    Raises:
        ModelError: The graph was not made of this model, or stores nothing as codes.
    """
    model, networks = with_one_scale(model, graph)
    proto = ir.serde.serialize_model(model.model)
    grids = activation_grids(tensor for network in networks for tensor in network.tensors)
    inside = _values(proto.graph)
    strangers = [name for name in grids if name not in inside]
    if strangers:
        raise ModelError(
            f'{model.label}: has no tensor "{strangers[0]}", the graph was made of another model, '
            "or with other options (give the same --input-shape, --batch and --cut-...)"
        )
    if not grids:
        raise ModelError(f"{model.label}: the graph stores nothing as codes, there is nothing to export")
    writer = _Writer(proto, fake=fake)
    writer.activations(grids)
    writer.weights(networks)
    writer.operands(networks)
    writer.finish()
    if exact and not fake:
        with_integers(proto, device_networks(graph))
    return proto


def activation_grids(tensors: Iterable[Tensor | StoredTensor]) -> dict[str, Grid]:
    """The grid of every value of the model that is stored as codes, by its name in the model."""
    found: dict[str, Grid] = {}
    for tensor in tensors:
        if tensor.is_constant or tensor.source_json is None or tensor.scale is None:
            continue
        source = json.loads(tensor.source_json)
        if tensor.dtype in CODES and source["dtype"].startswith("float"):
            # The same codes counted from zero: runtimes that have kernels for one kind have them for it.
            shift = 128 if tensor.dtype == "int8" else 0
            dtype = "uint8" if shift else tensor.dtype
            grid = Grid(dtype, tuple(tensor.scale), tensor.zero_point + shift)
            found.setdefault(source["name"], grid)
    return found


def scales(graph: Graph | Partitioned[Graph]) -> dict[str, Any]:
    """Scales and the rest that users of codes must know of every input and output, by name."""
    networks = device_networks(graph)
    found: dict[str, Any] = {"inputs": {}, "outputs": {}}
    for network in networks:
        for kind, indices in (("inputs", network.inputs), ("outputs", network.outputs)):
            for index in indices:
                tensor = network.tensors[index]
                source = {} if tensor.source_json is None else json.loads(tensor.source_json)
                found[kind][source.get("name", tensor.name)] = {
                    "scale": None if tensor.scale is None else tensor.scale[0],
                    "zero_point": tensor.zero_point,
                    "dtype": tensor.dtype,
                    "shape": source.get("shape", tensor.shape),
                    "stored_shape": tensor.shape,
                    "permutation": source.get("permutation"),
                }
    return found


def _values(graph: onnx.GraphProto) -> set[str]:
    names = {value.name for value in graph.input}
    return names | {name for node in graph.node for name in node.output}


class _Writer:
    """A model that is being given quantisers."""

    def __init__(self, proto: onnx.ModelProto, *, fake: bool) -> None:
        self.proto = proto
        self.graph = proto.graph
        self.fake = fake
        self._front: list[onnx.NodeProto] = []
        self._behind: dict[str, list[onnx.NodeProto]] = {}

    def activations(self, grids: Mapping[str, Grid]) -> None:
        """Quantisers behind values; outputs keep their names, readers of inputs get others."""
        inputs = {value.name for value in self.graph.input}
        made: dict[str, list[onnx.NodeProto]] = {}
        for name, grid in grids.items():
            if name in inputs:
                self._front += self._pair(name, f"{name}/quantised", grid)
                for node in self.graph.node:
                    _rename(node.input, name, f"{name}/quantised")
            else:
                made[name] = self._pair(f"{name}/float", name, grid)
        nodes = []
        for node in self.graph.node:
            behind = [made[name] for name in node.output if name in made]
            for name in list(node.output):
                if name in made:
                    _rename(node.output, name, f"{name}/float")
            nodes += [node, *(each for pair in behind for each in pair)]
        self._replace(nodes)

    def weights(self, networks: Sequence[Network]) -> None:
        """Weights and biases of linear layers as codes."""
        constants = {value.name: value for value in self.graph.initializer}
        readers: dict[str, int] = {}
        for node in self.graph.node:
            for name in node.input:
                readers[name] = readers.get(name, 0) + 1
        done: set[str] = set()
        for node, weight, bias, facts in self._linear(networks):
            name = node.input[weight]
            if name not in constants or name in done or readers[name] > 1:
                continue
            array = numpy_helper.to_array(constants[name])
            grid = Grid(facts.dtype, facts.scale, facts.zero, facts.axis)
            if not self._constant(name, array, grid, facts.effective):
                continue
            done.add(name)
            self._bias(node, bias, facts)

    def _bias(self, node: onnx.NodeProto, place: int | None, facts: _ValueInfo) -> None:
        """The graph's own biases: they hold what the model's do not, such as corrections."""
        if facts.bias is None or facts.input_scale is None or not np.any(facts.bias):
            return
        scale = np.broadcast_to(facts.input_scale * np.array(facts.effective), facts.bias.shape)
        values = (facts.bias * scale).astype(np.float32)
        name, taken = f"{node.name}/bias", {value.name for value in self.graph.initializer}
        while name in taken or f"{name}/codes" in taken:
            name += "+"
        limits = np.iinfo(np.int32)
        within = facts.bias.min() >= limits.min and facts.bias.max() <= limits.max
        if place is not None and within and not self.fake:
            codes = numpy_helper.from_array(facts.bias.astype(np.int32), f"{name}/codes")
            self.graph.initializer.append(codes)
            grid = Grid("int32", tuple(map(float, scale)), 0, 0)
            self._front.append(self._dequantize(f"{name}/codes", name, grid))
        else:
            self.graph.initializer.append(numpy_helper.from_array(values, name))
        if place is not None:
            inputs = [*node.input, "", ""][:place]
            del node.input[:]
            node.input.extend([*inputs, name])
            return
        known = {value.name for value in self.graph.initializer}
        for other in self.graph.node:
            if other.name in facts.nodes and other.op_type == "Add" and known.intersection(other.input):
                constant = next(each for each in other.input if each in known)
                _rename(other.input, constant, name)
                return
        total = f"{node.output[0]}/product"
        added = helper.make_node("Add", [total, name], [node.output[0]], f"{node.name}/bias/add")
        node.output[0] = total
        self._behind.setdefault(node.name, []).append(added)

    def _linear(self, networks: Sequence[Network]) -> Iterator[tuple[onnx.NodeProto, int, int | None, Any]]:
        """Nodes with constant weights: which input those are, which the bias, and their scales."""
        nodes = {
            node.name: node for node in self.graph.node if node.op_type in {"Conv", "ConvTranspose", "MatMul"}
        }
        sizes = {value.name: value.dims for value in self.graph.initializer}
        for network in networks:
            for layer in network.layers:
                own = [nodes[name] for name in layer.nodes if name in nodes]
                constant = next(
                    (
                        network.tensors[index]
                        for index in layer.operands
                        if network.tensors[index].is_constant
                        and network.tensors[index].dtype in CODES
                        and network.tensors[index].scale is not None
                    ),
                    None,
                )
                if len(own) != 1 or constant is None or constant.scale is None:
                    continue
                (node,) = own
                source = network.tensors[layer.operands[0]]
                grouped = any(each.name == "group" and each.i > 1 for each in node.attribute)
                if node.op_type == "ConvTranspose" and grouped and len(constant.scale) > 1:
                    continue  # one scale for a channel of every group has no axis in its weights
                left = node.op_type == "MatMul" and node.input[0] in {i.name for i in self.graph.initializer}
                axis = {"Conv": 0, "ConvTranspose": 1, "MatMul": -2 if left else -1}[node.op_type]
                effective = _effective(layer, constant.scale, source, network.tensors[layer.output])
                biases = _biases(network, layer)
                own_channels = None
                if node.op_type == "ConvTranspose" and not grouped:
                    # Phases that share a convolution have the same channels one set behind the other.
                    own_channels = sizes[node.input[1]][1] if node.input[1] in sizes else None
                yield (
                    node,
                    0 if left else 1,
                    2 if node.op_type != "MatMul" else None,
                    _ValueInfo(
                        constant.dtype,
                        tuple(constant.scale[:own_channels]),
                        axis if len(constant.scale) > 1 else None,
                        None if source.scale is None else source.scale[0],
                        effective[:own_channels],
                        None if biases is None else biases[:own_channels],
                        frozenset(layer.nodes),
                        constant.zero_point,
                    ),
                )

    def _constant(self, name: str, array: NDArray[Any], grid: Grid, shown: Sequence[float]) -> bool:
        """Stores a constant as codes behind a dequantiser, or as what they stand for; False if it cannot.

        Codes follow from the scales of `grid`, what they stand for from those `shown`.
        """
        axis = None if grid.axis is None else grid.axis % array.ndim
        if axis is not None and array.shape[axis] != len(grid.scale):
            return False
        shape = [1] * array.ndim
        if axis is not None:
            shape[axis] = -1
        scale = np.array(grid.scale, np.float64).reshape(shape if axis is not None else [])
        limits = np.iinfo(grid.dtype)
        quotient = np.rint(array.astype(np.float64) / scale) + grid.zero_point
        if quotient.size and (quotient.min() < limits.min or quotient.max() > limits.max):
            if grid.dtype == "int32":
                return False
            quotient = np.clip(quotient, limits.min, limits.max)
        (place,) = (i for i, value in enumerate(self.graph.initializer) if value.name == name)
        if self.fake:
            values = ((quotient - grid.zero_point) * np.array(shown).reshape(scale.shape)).astype(np.float32)
            self.graph.initializer[place].CopyFrom(numpy_helper.from_array(values, name))
            return True
        codes = numpy_helper.from_array(quotient.astype(grid.dtype), f"{name}/codes")
        self.graph.initializer[place].CopyFrom(codes)
        self._front.append(
            self._dequantize(f"{name}/codes", name, replace(grid, scale=tuple(shown), axis=axis))
        )
        return True

    def _pair(self, source: str, target: str, grid: Grid) -> list[onnx.NodeProto]:
        """QuantizeLinear and DequantizeLinear from one name to another."""
        codes = f"{target}/codes"
        scale, zero = self._parameters(codes, grid)
        return [
            helper.make_node("QuantizeLinear", [source, scale, zero], [codes], f"{codes}/quantize"),
            helper.make_node("DequantizeLinear", [codes, scale, zero], [target], f"{codes}/dequantize"),
        ]

    def _dequantize(self, codes: str, target: str, grid: Grid) -> onnx.NodeProto:
        scale, zero = self._parameters(codes, grid)
        more: dict[str, Any] = {} if grid.axis is None else {"axis": grid.axis}
        return helper.make_node(
            "DequantizeLinear",
            [codes, scale, zero],
            [target],
            f"{codes}/dequantize",
            **more,
        )

    def _parameters(self, codes: str, grid: Grid) -> tuple[str, str]:
        scale = np.array(grid.scale, np.float32)
        zero = np.full(scale.shape, grid.zero_point, grid.dtype)
        if grid.axis is None:
            scale, zero = scale.reshape(()), zero.reshape(())
        for name, array in ((f"{codes}/scale", scale), (f"{codes}/zero_point", zero)):
            self.graph.initializer.append(numpy_helper.from_array(array, name))
        return f"{codes}/scale", f"{codes}/zero_point"

    def operands(self, networks: Sequence[Network]) -> None:
        """Operands that a layer rescales by its own multipliers get a dequantiser of that effect for it."""
        nodes = {node.name: node for node in self.graph.node}
        made = {name: node for node in self.graph.node for name in node.output}
        for network in networks:
            for layer in network.layers:
                output = network.tensors[layer.output]
                factors = _factors(json.loads(layer.op_json), [network.tensors[i] for i in layer.operands])
                own = [
                    nodes[name] for name in layer.nodes if name in nodes and nodes[name].op_type in RESCALING
                ]
                if not factors or len(own) != 1 or len(own[0].input) != len(factors) or output.scale is None:
                    continue
                self._constant_operands(network, layer, own[0], factors, output.scale[0])
                for place, factor in enumerate(factors):
                    codes = f"{own[0].input[place]}/codes"
                    if factor is None or codes not in made:
                        continue
                    zero = next(each for each in self.graph.initializer if each.name == f"{codes}/zero_point")
                    whole = int(numpy_helper.to_array(zero))
                    kind = str(numpy_helper.to_array(zero).dtype)
                    target = f"{own[0].name}/operand{place}"
                    scale = float(np.float32(factor * output.scale[0]))
                    names = self._parameters(target, Grid(kind, (scale,), whole))
                    node = helper.make_node(
                        "DequantizeLinear", [codes, *names], [target], f"{target}/dequantize"
                    )
                    self._behind.setdefault(made[codes].name, []).append(node)
                    own[0].input[place] = target

    def _constant_operands(
        self,
        network: Network,
        layer: Layer,
        node: onnx.NodeProto,
        factors: Sequence[float | None],
        step: float,
    ) -> None:
        """Constants that are added or compared become what their codes count for in the graph."""
        known = {value.name: value for value in self.graph.initializer}
        for place, (index, factor) in enumerate(zip(layer.operands, factors, strict=False)):
            tensor = network.tensors[index]
            if not tensor.is_constant or tensor.scale is None or len(tensor.scale) != 1 or factor is None:
                continue
            if node.input[place] not in known:
                continue
            array = numpy_helper.to_array(known[node.input[place]]).astype(np.float64)
            limits = np.iinfo(tensor.dtype)
            codes = np.clip(np.rint(array / tensor.scale[0]) + tensor.zero_point, limits.min, limits.max)
            values = ((codes - tensor.zero_point) * factor * step).astype(np.float32)
            name = f"{node.name}/operand{place}"
            self.graph.initializer.append(numpy_helper.from_array(values, name))
            node.input[place] = name

    def finish(self) -> None:
        """Puts what stands in front of everything there; shapes of values are inferred anew by readers."""
        nodes = [*self._front, *self.graph.node]
        self._replace([each for node in nodes for each in (node, *self._behind.get(node.name, ()))])
        del self.graph.value_info[:]

    def _replace(self, nodes: list[onnx.NodeProto]) -> None:
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self.graph.node[:]
        self.graph.node.extend(kept)


@dataclass(frozen=True)
class _ValueInfo:
    dtype: str
    scale: tuple[float, ...]
    axis: int | None
    input_scale: float | None
    effective: tuple[float, ...]
    bias: NDArray[Any] | None
    nodes: frozenset[str]
    zero: int


def _biases(network: Network, layer: Layer) -> NDArray[Any] | None:
    """Codes of a linear layer's biases at the scale of its products, one per output channel."""
    op = json.loads(layer.op_json)
    index = op.get("bias")
    first = op.get("epilogue", {}).get("first_shift") or 0
    return None if index is None else network.constant(index).astype(np.int64) << first


def _effective(
    layer: Layer, scales: Sequence[float], source: StoredTensor, output: StoredTensor
) -> tuple[float, ...]:
    """The scales of weights by which the graph's multipliers and shifts rescale to the letter."""
    epilogue = json.loads(layer.op_json).get("epilogue", {})
    ratios = multipliers(epilogue)
    if "table" in epilogue or len(ratios) != len(scales) or source.scale is None or output.scale is None:
        return tuple(scales)
    return tuple(_scale_for(ratio, source.scale[0], output.scale[0]) for ratio in ratios)


RESCALING = frozenset(
    {"Add", "Sub", "Mul", "MatMul", "Max", "Min", "Concat", "AveragePool", "GlobalAveragePool"}
)


def _factors(op: Mapping[str, Any], operands: Sequence[StoredTensor]) -> list[float | None]:
    """Factors from each operand's codes to those of the layer, where that is one number each.

    Of a product the first operand has all of it, and the second none but its own scale.
    """

    def factor(requant: Mapping[str, Any] | None) -> float | None:
        if requant is None or len(requant.get("multiplier", [])) != 1:
            return None
        return math.ldexp(requant["multiplier"][0], -requant["shift"][0])

    if op["op"] == "binary" and op["kind"] in {"add", "sub", "max", "min"}:
        common = factor(op["requant"])
        return [] if common is None else [op["ka"] * common, op["kb"] * common]
    product = op["requant"] if op["op"] == "binary" and op["kind"] == "mul" else None
    if op["op"] == "mat_mul" and "table" not in op["epilogue"] and not operands[1].is_constant:
        product = op["epilogue"].get("requant")
    common = factor(product)
    if product is not None and common is not None:
        common = math.ldexp(common, -(op.get("epilogue", {}).get("first_shift") or 0))
        other = operands[1].scale
        return [] if other is None or len(other) != 1 else [common / other[0], None]
    if op["op"] == "concat":
        return [factor(requant) for requant in op["requants"]]
    if op["op"] == "average_pool":
        divisors = op["average"].get("divisors", [])
        return (
            [math.ldexp(d["multiplier"], -d["shift"]) * d["area"] for d in divisors]
            if len(divisors) == 1
            else []
        )
    return []


def _scale_for(factor: float, source: float, target: float) -> float:
    """The weight scale by which `source * scale / target` in float32 is `factor`, or next to it."""
    start = np.float32(factor * target / source)
    above, below = [start], [start]
    for _ in range(4):
        above.append(np.nextafter(above[-1], np.float32(np.inf)))
        below.append(np.nextafter(below[-1], np.float32(0)))
    tried = np.array([*above, *below[1:]], np.float32)
    found = (np.float32(source) * tried) / np.float32(target)
    return float(tried[np.argmin(np.abs(found.astype(np.float64) - factor))])


def _rename(names: Any, old: str, new: str) -> None:
    for place, name in enumerate(names):
        if name == old:
            names[place] = new
