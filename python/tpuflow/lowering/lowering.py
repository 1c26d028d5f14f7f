"""The context operators lower in: where the values of a normalised float model lie in the growing `Graph`.

Every value of the model is held as a `StoredValue`: a tensor of the graph, a `View` that says how the value
lies in it, and the quantisation its consumers calculate with. Operators that only regroup, permute, cut or
repeat elements, or multiply by a positive constant, change the view or the scale and emit nothing. An
operator that needs its operand in a certain order asks for it (`rearrange`, `whole_tensor`, `rows`), and one
`Rearrange` is emitted where the view differs.

`walk` goes through the model; operators call the methods of its context. `ports` adds inputs and outputs.

Invariants: layers are emitted in the model's order; the quantisation of a tensor is that of the value it
was made for; a concatenation's own quantisation is also that of operands nothing else reads, so that it
copies codes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow import _core
from tpuflow.errors import RangesError
from tpuflow.frontend.values import factors_of
from tpuflow.lowering import scheme
from tpuflow.lowering.expressions import EXPRESSIONS, program
from tpuflow.lowering.fixed_point import Requant
from tpuflow.lowering.functions import FUNCTIONS, PERIODS
from tpuflow.lowering.grids import (
    Grids,
    clamp,
    float_clamp,
    stated_grid,
)
from tpuflow.lowering.layout import Shape, StoredValue, natural_order, rearrangement
from tpuflow.lowering.loads import bytes_worth_a_cycle
from tpuflow.lowering.nodes import shape_of, sole_user
from tpuflow.lowering.operators import Op
from tpuflow.lowering.plan import Step, plan
from tpuflow.lowering.registry import VIEWS, UnsupportedNodeError
from tpuflow.lowering.scheme import Quant
from tpuflow.lowering.settings import REQUANT, WIDE_TABLE, Settings
from tpuflow.lowering.states import states_of
from tpuflow.lowering.tables import SampledFunction, sample
from tpuflow.lowering.unify import (
    cache_ranges,
    means_over_steps,
    recurrence_ranges,
    recurrent_values,
    unified_ranges,
)
from tpuflow.lowering.view import Loop, View

if TYPE_CHECKING:
    from tpuflow.calibration import Means, Range
    from tpuflow.config import Config, QuantizeConfig
    from tpuflow.lowering.operators import FloatFields, RequantFields, TableFields
    from tpuflow.lowering.packed import Packed

__all__ = ["Graph", "Layer", "Lowering", "Tensor"]

Graph = _core.Graph
Tensor = _core.Tensor
Layer = _core.Layer


class Lowering:
    """State of one walk.

    `step` is the one being lowered; None at inputs and outputs of the network.
    """

    def __init__(
        self,
        model: ir.Model,
        ranges: Mapping[str, Range],
        config: Config,
        means: Mapping[str, Means] | None = None,
        errors: Mapping[str, Means] | None = None,
    ) -> None:
        self.graph = model.graph
        self.builder = _core.GraphBuilder(model.graph.name or "model")
        self.settings = Settings(config)
        usual = self.settings.defaults
        gates_apart = usual.swish_layer_mode == "product" and not scheme.is_float(usual.dtype)
        self.steps = plan(self.graph, fuse_tables=usual.fuse_tables, gates_apart=gates_apart)
        self.grids = Grids(ranges, self.settings, {node: step for step in self.steps for node in step.nodes})
        alike = [] if usual.scales_by_step else recurrent_values(self.steps)
        recurrences = recurrence_ranges(self.steps, alike, self.grids)
        self.grids.shared_ranges = {**recurrences, **cache_ranges(self.steps, self.grids)}
        unified = unified_ranges(self.steps, self.grids, self.settings)
        self.grids.shared_ranges = {**self.grids.shared_ranges, **unified}
        self._means = means_over_steps(means or {}, alike)
        self._errors = means_over_steps(errors or {}, alike)
        self.stored: dict[ir.Value, StoredValue] = {}
        self._constants: dict[tuple[Any, ...], int] = {}
        self._tables: dict[tuple[ir.Value | None, Quant], int] = {}
        self.tables: dict[ir.Value, Packed] = {}
        """Packed constants of which entries are picked, some of them weights of products as well."""
        self._packed: dict[int, int] = {}
        self._arranged: dict[tuple[StoredValue, View, Shape], StoredValue] = {}
        self._requantized: dict[tuple[ir.Value, Quant], StoredValue] = {}
        self.sources: dict[int, str] = {}
        """By tensor of the graph, the name of the model's value that it equals."""
        self.states = states_of(self.graph)
        self.step: Step | None = None
        self._names: set[str] = set()

    # What operators ask for.

    def operand(self, node: ir.Node, index: int) -> ir.Value:
        """A required, computed input.

        Raises:
            UnsupportedNodeError: If it is left out or constant.
        """
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            raise UnsupportedNodeError(f"input {index} is left out")
        if value not in self.stored:
            raise UnsupportedNodeError(f'input {index} ("{value.name}") is constant')
        return value

    @property
    def columns(self) -> int:
        """Columns of the array."""
        return self.settings.defaults.array_columns

    @cached_property
    def bytes_worth_a_cycle(self) -> float:
        """Bytes of constants that may be added for a cycle less of the array."""
        return bytes_worth_a_cycle(self.steps, self.columns)

    def config(self, step: Step) -> QuantizeConfig:
        """The configuration that holds for a step."""
        return self.settings.within_target(step.names, step.node.op_type)

    def mean(self, value: ir.Value, axis: int) -> npt.NDArray[np.float64] | None:
        """The average of a value by index of `axis`, if it was calibrated.

        Raises:
            RangesError: There are more or fewer than indices.
        """
        return _by_index(self._means, value, axis, "means")

    def error(self, value: ir.Value, axis: int) -> npt.NDArray[np.float64] | None:
        """The mean error of a last layer's sums by index of `axis`, if it was measured.

        Raises:
            RangesError: There are more or fewer than indices.
        """
        return _by_index(self._errors, value, axis, "errors")

    # Operands in the order an operator needs.

    def rearrange(
        self,
        value: ir.Value,
        permutation: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        *,
        stored: StoredValue | None = None,
    ) -> StoredValue:
        """The value as the tensor `value.transpose(permutation).reshape(shape)`, moved if need be.

        `stored` stands in for where the value is found, such as a broadcast form of it.
        """
        stored = stored or self.stored[value]
        extents = stored.view.shape
        order = tuple(range(len(extents))) if permutation is None else tuple(permutation)
        wanted = tuple(extents[axis] for axis in order) if shape is None else tuple(shape)
        view = View.dense(extents, order)
        if stored.view == view and stored.shape == wanted:
            return stored
        return self._move(value, stored, stored.view.transpose(order).loops, view, wanted)

    def whole_tensor(self, value: ir.Value) -> StoredValue:
        """The value as all of some tensor, in any order."""
        stored = self.stored[value]
        if stored.view.covers(stored.elements):
            return stored
        return self.rearrange(value, natural_order(stored.view))

    def rows(self, value: ir.Value, axis: int) -> StoredValue:
        """The value as all of a tensor whose last axis is `axis`, the others in any order."""
        stored = self.stored[value]
        extent = stored.view.shape[axis]
        innermost = stored.view.axes[axis] == (((extent, 1),) if extent > 1 else ())
        if innermost and stored.shape[-1:] == (extent,) and stored.view.covers(stored.elements):
            return stored
        others = [a for a in natural_order(stored.view) if a != axis]
        return self.rearrange(value, [*others, axis])

    def unordered_rows(self, value: ir.Value, axis: int) -> StoredValue:
        """As `rows`, with the elements along `axis` in any order, which the view tells."""
        stored = self.stored[value]
        loops, view = stored.view.as_rows(axis)
        extent = view.shape[axis]
        if stored.view == view and stored.view.covers(stored.elements) and stored.shape[-1] == extent:
            return stored
        wanted = (math.prod(view.shape) // extent, extent)
        return self._move(value, stored, loops, view, wanted)

    def _move(
        self, value: ir.Value, stored: StoredValue, loops: Sequence[Loop], view: View, shape: Shape
    ) -> StoredValue:
        """The value written out by `loops`, so that it is seen by `view`; once for all who ask for it."""
        key = (stored, view, shape)
        if key not in self._arranged:
            name, op = f"{value.name}/arranged", rearrangement(stored, loops)
            self._arranged[key] = self.layer(name, op, value, shape, view, stored.quant, [])
        return self._arranged[key]

    def find_arranged(self, stored: StoredValue, view: View, shape: Shape) -> StoredValue | None:
        """A value as some layer has written it out to be seen by `view`; `None` if none has."""
        return self._arranged.get((stored, view, shape))

    def images(self, value: ir.Value) -> StoredValue:
        """A value `[n, c, h, w]` as the tensor `[n, h, w, c]`.

        Raises:
            UnsupportedNodeError: If it has another rank.
        """
        if len(self.stored[value].view.shape) != 4:
            raise UnsupportedNodeError(
                f"operand of shape {list(self.stored[value].view.shape)} is not [n, c, h, w]"
            )
        return self.rearrange(value, (0, 2, 3, 1))

    def truths(self, value: ir.Value, order: Sequence[int], shape: Shape) -> int:
        """Truth values computed at run time, broadcast to `shape`, as a tensor in an axis order.

        Raises:
            UnsupportedNodeError: If they are not stored as such.
        """
        stored = self.stored[value]
        if stored.quant is None or stored.grid.dtype != "int8":
            raise UnsupportedNodeError("truth values are computed elsewhere")
        spread = replace(stored, view=stored.view.expand(shape))
        return self.rearrange(value, order, stored=spread).tensor

    def requantize(self, value: ir.Value, quant: Quant) -> StoredValue:
        """The value with another quantisation; a `Rescale` where it differs, before elements are repeated."""
        stored = self.stored[value]
        if stored.quant == quant:
            return stored
        key = (value, quant)
        if key not in self._requantized:
            if stored.elements >= math.prod(stored.view.shape):
                stored = self.whole_tensor(value)
            op = self._conversion(stored, quant)
            name = f"{value.name}/{quant.dtype}"
            self._requantized[key] = self.layer(name, op, value, stored.shape, stored.view, quant, [])
        return self._requantized[key]

    def _conversion(self, stored: StoredValue, quant: Quant) -> Op:
        """The operator that gives a tensor another scale or type."""
        source = stored.grid
        if source.is_float and not quant.is_float:
            scale, zero_point, lo, hi = quant.scale, quant.zero_point, quant.lo, quant.hi
            return Op.quantize(input=stored.tensor, scale=scale, zero_point=zero_point, lo=lo, hi=hi)
        if quant.is_float and not source.is_float:
            return Op.dequantize(input=stored.tensor, scale=source.scale, finish={})
        wide = source.dtype == "int16"
        requant = self.rounding([source.scale / quant.scale], quant, wide=wide)
        return Op.rescale(input=stored.tensor, requant=requant)

    # Emission.

    def alias(self, step: Step, view: View, source: StoredValue | None = None) -> None:
        """Says that a step's output is its first operand's tensor under another view.

        Where the configuration names another type for it, the codes are requantised.
        """
        self.stored[step.output] = replace(source or self.stored[self.operand(step.node, 0)], view=view)
        self.convert_output(step)

    def convert_output(self, step: Step) -> None:
        """Gives the output of a step that only passes codes on the type an entry asks for."""
        quant = self.stored[step.output].quant
        wanted = self.settings.explicit(step.names, "dtype")
        if wanted is not None and quant is not None and wanted != quant.dtype:
            self.stored[step.output] = self.requantize(step.output, self.grids.target(step))

    def rounding(
        self, factors: Sequence[float], quant: Quant, activation: ir.Node | None = None, *, wide: bool
    ) -> RequantFields | FloatFields:
        """How results of scale `factors * quant.scale` become elements, in the form the graph takes.

        Floats need no factors: there it is the activation's clamp alone.
        """
        if quant.is_float:
            return {"float": float_clamp(activation)}
        return self.requant(factors, quant, activation, wide=wide).fields()

    def requant(
        self, factors: Sequence[float], quant: Quant, activation: ir.Node | None = None, *, wide: bool
    ) -> Requant:
        """Requantisation to `quant`, clamped as the activation says; `wide` where an operand has 16 bits."""
        lo, hi = clamp(activation, quant)
        rules = self.rules
        return Requant.of(
            factors,
            quant.zero_point,
            lo,
            hi,
            rules.multiplier_bits,
            47 if wide else 31,
            one_shift=rules.unify_shifts,
            positive=rules.force_shift_positive,
        )

    @property
    def rules(self) -> QuantizeConfig:
        """The configuration of the step being lowered, for what all kinds of layers have in common."""
        if self.step is None:
            return self.settings.defaults
        names = self.step.names
        self.settings.honors(names, REQUANT)
        return self.settings.of(names)

    def constant(self, name: str, array: npt.NDArray[Any], quant: Quant | None = None) -> int:
        """Adds elements as a constant tensor and returns its number."""
        scale = None if quant is None or quant.is_float else quant.scale
        zero_point = 0 if quant is None else quant.zero_point
        return self.builder.constant(self.unique(name), np.ascontiguousarray(array), scale, zero_point)

    def shared_constant(
        self, name: str, array: npt.NDArray[Any], scales: Sequence[float] | None = None, zero_point: int = 0
    ) -> int:
        """Weights with one scale or one per channel, biases, a table: equal ones are one tensor.

        So are those of all steps of a recurrence. The tensor has the name of the first.
        """
        array = np.ascontiguousarray(array)
        stated = None if scales is None else tuple(scales)
        key = (array.dtype.str, array.shape, stated, zero_point, sha256(array.tobytes()).digest())
        if key not in self._constants:
            scale = None if scales is None else list(scales)
            self._constants[key] = self.builder.constant(self.unique(name), array, scale, zero_point)
        return self._constants[key]

    def picked_table(self, value: ir.Value | None, table: npt.NDArray[Any], quant: Quant) -> int:
        """The tensor of a constant's rows, `[rows, columns]`, which all that picks some on one grid share."""
        key = (value, quant)
        if key not in self._tables:
            name = value.name if value is not None else None
            self._tables[key] = self.constant(name or "table", quant.codes(table), quant)
        return self._tables[key]

    def packed_weights(self, name: str, packed: Packed) -> int:
        """Weights of 4 bits in blocks; those of a table are one tensor for all that read them."""
        if any(packed is each for each in self.tables.values()):
            if id(packed) not in self._packed:
                self._packed[id(packed)] = self._packed_constant(name, packed)
            return self._packed[id(packed)]
        return self._packed_constant(name, packed)

    def _packed_constant(self, name: str, packed: Packed) -> int:
        return self.builder.packed_constant(
            self.unique(name),
            packed.codes,
            packed.scales,
            packed.zero_points,
            block=packed.block,
            scale=list(packed.columns),
            is_float=packed.is_float,
        )

    def function(self, step: Step, node: ir.Node, source: Quant, target: Quant) -> TableFields | FloatFields:
        """A node's function from `source` to `target`: a table of codes, a program of floats.

        Raises:
            UnsupportedNodeError: If it has no such form.
        """
        if target.is_float:
            return self.float_function(step, node, target)
        return self.code_function(step, node, source, target)

    def float_function(self, step: Step, node: ir.Node, target: Quant) -> FloatFields:
        """A node's function as a program of floats.

        Raises:
            UnsupportedNodeError: If it has no such form.
        """
        if node.op_type not in EXPRESSIONS:
            raise UnsupportedNodeError(f"function has no form in {target.dtype}")
        return {"float": {"function": program(_add_shift(EXPRESSIONS[node.op_type](node), step.shift))}}

    def code_function(self, step: Step, node: ir.Node, source: Quant, target: Quant) -> TableFields:
        """A node's function as a table of codes.

        Raises:
            UnsupportedNodeError: If it has no such form.
        """
        if node.op_type not in FUNCTIONS:
            raise UnsupportedNodeError(f"function has no form in {target.dtype}")
        function = _add_shift(FUNCTIONS[node.op_type](node), step.shift)
        return self.table(step, SampledFunction(function, source, target, PERIODS.get(node.op_type)))

    def table(self, step: Step, sampled: SampledFunction) -> TableFields:
        """Samples a function into a constant; the form the graph takes."""
        target = sampled.target
        if sampled.source.dtype == "int16":
            self.settings.honors(step.names, WIDE_TABLE)
        entries = sample(sampled, self.settings.of(step.names).table_bits, _core.lookup)
        index = self.shared_constant(f"{step.output.name}/table", entries)
        return {"entries": index, "lo": target.lo, "hi": target.hi}

    def emit(self, step: Step, op: Op, shape: Shape, view: View, quant: Quant | None) -> StoredValue:
        """Adds the layer of a step and keeps its output."""
        names = [node.name for node in step.nodes if node.name]
        name = names[-1] if names else step.output.name or "layer"
        stored = self.layer(name, op, step.output, shape, view, quant, names)
        self.stored[step.output] = stored
        return stored

    def layer(
        self,
        name: str,
        op: Op,
        value: ir.Value,
        shape: Shape,
        view: View,
        quant: Quant | None,
        nodes: Sequence[str],
    ) -> StoredValue:
        """Adds a layer whose output holds `value`; most operators call `emit`.

        A layer that computes no node of the model (it has none in `nodes`) gives its own name to its tensor.
        """
        found = self._source(value, view, math.prod(shape), quant)
        tensor, source = self.tensor_fields(shape, found, quant)
        tensor_name = (source or value.name or name) if nodes else name
        index = self.builder.layer(
            self.unique(name, "layer"), op, self.unique(tensor_name), nodes=list(nodes), **tensor
        )
        if source is not None:
            self.sources[index] = source
        return StoredValue(index, tuple(shape), view, quant)

    def hidden_layer(self, name: str, op: Op, shape: Shape, quant: Quant, nodes: Sequence[str] = ()) -> int:
        """Adds a layer whose output is no value of the model; returns the tensor."""
        return self.builder.layer(
            self.unique(name, "layer"),
            op,
            self.unique(name),
            list(shape),
            quant.dtype,
            None if quant.is_float else quant.scale,
            quant.zero_point,
            nodes=list(nodes),
        )

    def unique(self, name: str, kind: str = "tensor") -> str:
        """`name`, numbered where a tensor (or layer) already has it."""
        candidate, count = name, 1
        while f"{kind}:{candidate}" in self._names:
            count += 1
            candidate = f"{name}#{count}"
        self._names.add(f"{kind}:{candidate}")
        return candidate

    def tensor_fields(
        self, shape: Shape, found: tuple[ir.Value, Shape] | None, quant: Quant | None
    ) -> tuple[dict[str, Any], str | None]:
        """Arguments of the builder for a tensor, and the name of the model's value it equals."""
        tensor: dict[str, Any] = {"shape": list(shape), "dtype": "int32"}
        if quant is not None:
            tensor |= {"dtype": quant.dtype, "scale": quant.scale, "zero_point": quant.zero_point}
            if quant.is_float:
                del tensor["scale"], tensor["zero_point"]
        if found is None:
            return tensor, None
        origin, permutation = found
        factors = factors_of(origin)
        if factors is not None and quant is not None and not quant.is_float:
            # Whoever shows the codes multiplies again; a tensor whose channels are not last is not shown.
            spread = factors.transpose(permutation).reshape(-1)
            if factors.shape[permutation[-1]] != shape[-1] or spread.size != shape[-1]:
                return tensor, None
            tensor["scale"] = [float(np.float32(quant.scale * factor)) for factor in spread]
        source = {
            "name": origin.name,
            "shape": list(shape_of(origin)),
            "permutation": list(permutation),
            "dtype": self._source_type(origin, quant),
        }
        return tensor | {"source_json": json.dumps(source)}, origin.name

    def _source_type(self, value: ir.Value, quant: Quant | None) -> str:
        """The element type users meet a value in: the model's, or that of its codes where asked for."""
        config = self.settings.defaults
        raw = (value.is_graph_input() and (config.quant_input or value.name in config.quant_inputs)) or (
            value.is_graph_output() and (config.quant_output or value.name in config.quant_outputs)
        )
        if raw and quant is not None and not quant.is_float:
            return quant.dtype
        return "float32" if value.dtype is None else str(value.dtype.numpy())

    def _source(
        self, value: ir.Value, view: View, elements: int, quant: Quant | None
    ) -> tuple[ir.Value, Shape] | None:
        """The model's value a tensor stands for: a network output it becomes by views alone, else `value`.

        Codes the network returns are the tensor itself where it lies on the grid the model states. A tensor
        that repeats the value along axes it lacks stands for none.
        """
        if view.shape != shape_of(value):
            return None
        permutation = view.permutation(elements)
        best = None if permutation is None else (value, permutation)
        while (user := sole_user(value)) is not None and user.inputs[0] is value:
            if user.op_type in VIEWS:
                seen = VIEWS[user.op_type](user, view)
                if seen is None:
                    break
                view = seen
            elif user.op_type != "QuantizeLinear" or stated_grid(user) != quant:
                break
            value = user.outputs[0]
            permutation = view.permutation(elements)
            if value.is_graph_output() and permutation is not None:
                return value, permutation
        return best

    def is_state(self, value: ir.Value) -> bool:
        """Whether a network input is a cache that may stay on the device, stored row by row."""
        return value in self.states


def _by_index(
    known: Mapping[str, Means], value: ir.Value, axis: int, what: str
) -> npt.NDArray[np.float64] | None:
    """Numbers of a value along an axis, if they are known along it."""
    found = known.get(value.name or "")
    extents = shape_of(value)
    if found is None or found.axis != axis % len(extents):
        return None
    if len(found.values) != extents[axis]:
        raise RangesError(
            f'{what} of "{value.name}": {len(found.values)} numbers along axis {found.axis}, '
            f"where the tensor has {extents[axis]}: calibrate anew"
        )
    return np.array(found.values, np.float64)


def _add_shift(function: Callable[[Any], Any], shift: float) -> Callable[[Any], Any]:
    """A function with a constant added to its results."""
    return (lambda x: function(x) + shift) if shift else function
