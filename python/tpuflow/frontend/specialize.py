"""One phase of a decoder whose sequence and past are open: a model of static shapes.

    specialize("model.onnx", sequence=1, context=256)      # one token, after at most 255 others
    specialize("model.onnx", sequence=128, context=256)    # 128 tokens of a prompt, after at most 128 others

A context is what attention sees: the past and what is new. The dimensions of a model are known by the inputs
that have them, whatever their symbols are called:

| dimension | is that of | its size |
|---|---|---|
| batch | the first axis of every input | 1 |
| sequence | the second axis of `input_ids` (`inputs_embeds`) | `sequence` |
| past | the open axis of caches, `past*` with an output `present*` of the same ending | context - sequence |
| total | the last axis of `attention_mask` | `context` |
| head size | the last axis of caches, if it is open as well | as `GroupQueryAttention` needs |

Other open axes of the same symbol follow, sums of symbols as well ("past_sequence_length + sequence_length").

The cache a model takes has a row for every place of the past, filled or not: rows that are not are left
out by zeros in `attention_mask`. What it returns are the new rows alone (`present*`), so that nothing
of the past leaves the machine. Positions are below `context` and masks below 2, so what is computed of them
alone becomes tables (`rewrites.tables`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.errors import ModelError
from tpuflow.frontend.source import Source, read
from tpuflow.frontend.values import mark_state, state_bound

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Cache", "Phase", "caches_of", "specialize"]

IDS = ("input_ids", "inputs_embeds")
MASK, POSITIONS = "attention_mask", "position_ids"
CONTRIBUTED = "com.microsoft"
FIRST = np.iinfo(np.int64).max
"""End of a Slice that reaches to the end of its axis."""
LOWEST = -1e9
"""Addend of the scores of masked positions."""
PAST_KEYS, PAST_VALUES, SEQLENS, TOTAL, PLACES, BIAS = 3, 4, 5, 6, 9, 10
"""Inputs of GroupQueryAttention: caches, lengths of keys less one and in all, positions, what is added."""
MOST_NODES = 8
"""Nodes looked through for the width of what attention reads."""


@dataclass(frozen=True)
class Cache:
    """A cache by the names of the model.

    Attributes:
        past: The input.
        present: The output.
    """

    past: str
    present: str


@dataclass(frozen=True)
class Phase:
    """Sequence and context length of one program of a decoder.

    Attributes:
        sequence: Tokens that are new.
        context: Tokens attention sees, these included.
    """

    sequence: int
    context: int

    @property
    def past(self) -> int:
        """Places of the cache."""
        return self.context - self.sequence

    @property
    def name(self) -> str:
        """Name of its program in a bundle."""
        return f"sequence{self.sequence}_context{self.context}"


def caches_of(inputs: list[str], outputs: list[str]) -> list[Cache]:
    """The caches among names of inputs and outputs, in the order of the inputs.

    `past*` belongs to the `present*` that ends alike, from the first dot, digit or underscore on.
    """
    endings = {_ending(name): name for name in outputs if name.startswith("present")}
    found = [name for name in inputs if name.startswith("past") and _ending(name) in endings]
    return [Cache(name, endings[_ending(name)]) for name in found]


def _ending(name: str) -> str:
    return re.sub(r"^(past|present)(_key_values|_key_value)?[._]?", "", name)


def specialize(source: Source, sequence: int = 1, context: int = 256) -> ir.Model:
    """A model for one phase, to be loaded by `load`.

    Args:
        source: A file or a model in memory, which is not changed.
        sequence: Tokens computed at once.
        context: Tokens attention sees, these included.

    Raises:
        ModelError: The model is no decoder with open dimensions, a dimension is none of those above, or sizes
            contradict each other; the text names the dimension.
    """
    model, label = read(source)
    if not 1 <= sequence <= context:
        raise ModelError(f"{label}: a sequence of {sequence} does not fit a context of {context}")
    phase = Phase(sequence, context)
    graph = model.graph
    ids = next((value for value in graph.inputs if value.name in IDS), None)
    if ids is None:
        raise ModelError(f"{label}: has no input {' or '.join(IDS)}, so its sequence is not known")
    found = caches_of([v.name or "" for v in graph.inputs], [v.name or "" for v in graph.outputs])
    if not found and phase.past:
        raise ModelError(
            f"{label}: takes no cache (past* with an output present*): a context of {context} for a sequence "
            f"of {sequence} needs one"
        )
    _fix_dimensions(model, label, phase, found)
    _group_queries(model, label, phase)
    for cache in found:
        _new_rows_only(graph, cache, phase)
    for value in graph.inputs:
        if value.name == MASK and value.dtype is not None and value.dtype.is_integer():
            state_bound(value, 2)
        if value.name == POSITIONS:
            state_bound(value, context)
    return model


def _fix_dimensions(model: ir.Model, label: str, phase: Phase, caches: list[Cache]) -> None:
    """Gives every input a static shape by the roles of its axes."""
    pasts = {cache.past for cache in caches}
    for value in model.graph.inputs:
        if value.name in pasts and len(_roles(value, phase, pasts)) < 2:  # the batch alone
            raise ModelError(
                f'{label}: cache "{value.name}" has a fixed length: only caches that grow are specialised; '
                "give the shapes of all inputs to load it as it is"
            )
    sizes: dict[str, tuple[str, int]] = {}
    for value in model.graph.inputs:
        for axis, (role, size) in _roles(value, phase, pasts).items():
            symbol = _symbol(value, axis)
            if symbol is not None and sizes.setdefault(symbol, (role, size))[1] != size:
                raise ModelError(
                    f'{label}: input "{value.name}": dimension "{symbol}" is {role} ({size}), but elsewhere '
                    f"{sizes[symbol][0]} ({sizes[symbol][1]})"
                )
    for value in model.graph.inputs:
        if value.shape is None:
            raise ModelError(f'{label}: input "{value.name}" has no shape')
        roles = _roles(value, phase, pasts)
        value.shape = ir.Shape([
            _size(value, axis, roles, sizes, label) for axis in range(value.shape.rank())
        ])  # fmt: skip


def _roles(value: ir.Value, phase: Phase, pasts: set[str]) -> dict[int, tuple[str, int]]:
    """Role and size of the axes of an input that are known by its name."""
    rank = 0 if value.shape is None else value.shape.rank()
    roles = {0: ("batch", 1)} if rank else {}
    if value.name in {*IDS, POSITIONS} and rank > 1:
        roles[1] = ("sequence", phase.sequence)
    elif value.name == MASK and rank > 1:
        roles[rank - 1] = ("total", phase.context)
    elif value.name in pasts:
        opened = [axis for axis in range(1, rank) if _symbol(value, axis) is not None]
        roles |= dict.fromkeys(opened[:1], ("past", phase.past))
        size = _head_size(value) if opened[1:] == [rank - 1] else None
        if size is not None:
            roles[rank - 1] = ("head size", size)
    return roles


def _head_size(cache: ir.Value) -> int | None:
    """The last axis of a cache that a model leaves open, by the attention that reads it."""
    for node, place in cache.uses():
        if node.op_type != "GroupQueryAttention" or place not in {PAST_KEYS, PAST_VALUES}:
            continue
        heads, shared = (node.attributes.get_int(name, 0) for name in ("num_heads", "kv_num_heads"))
        parts = heads + 2 * shared if node.inputs[1] is None else heads
        width = _width(node.inputs[0])
        if width is not None and parts > 0 and width % parts == 0:
            return width // parts
    return None


def _width(value: ir.Value | None) -> int | None:
    """The last axis of a value, by its shape or what makes it."""
    for _ in range(MOST_NODES):
        if value is None:
            return None
        last = value.shape[-1] if value.shape is not None and value.shape.rank() else None
        node = value.producer()
        if isinstance(last, int):
            return last
        if node is None:
            return None
        if node.op_type == "MatMulNBits":
            return node.attributes.get_int("N", 0) or None
        weights = node.inputs[1] if len(node.inputs) > 1 else None
        if node.op_type in {"MatMul", "Add"} and weights is not None and weights.const_value is not None:
            return int(weights.const_value.shape.numpy()[-1])
        value = node.inputs[0] if node.inputs else None
    return None


def _symbol(value: ir.Value, axis: int) -> str | None:
    """The symbol of an open axis; "" where it has none, None where the axis is fixed."""
    size = value.shape[axis] if value.shape is not None else None
    return None if isinstance(size, int) and size > 0 else getattr(size, "value", None) or ""


def _size(
    value: ir.Value,
    axis: int,
    roles: Mapping[int, tuple[str, int]],
    sizes: Mapping[str, tuple[str, int]],
    label: str,
) -> int:
    symbol = _symbol(value, axis)
    where = f'{label}: input "{value.name}", axis {axis}'
    if symbol is None:
        size = value.shape[axis] if value.shape is not None else 0
        if axis in roles and size != roles[axis][1]:
            raise ModelError(
                f"{where}: is {roles[axis][0]}, fixed to {size} by the model, not {roles[axis][1]}"
            )
        return int(size) if isinstance(size, int) else 0
    if axis in roles:
        return roles[axis][1]
    terms = [part.strip() for part in symbol.split("+")]
    if symbol and all(term in sizes or term.isdecimal() for term in terms):
        return sum(sizes[term][1] if term in sizes else int(term) for term in terms)
    raise ModelError(
        f'{where}: dimension "{symbol}" is none of batch, sequence, past and total: fix it in the model'
    )


def _new_rows_only(graph: ir.Graph, cache: Cache, phase: Phase) -> None:
    """Returns the new rows of a cache under the name of the output; a cache of no rows is no input."""
    past = next(value for value in graph.inputs if value.name == cache.past)
    place = next(k for k, value in enumerate(graph.outputs) if value.name == cache.present)
    whole = graph.outputs[place]
    whole.name = f"{cache.present}/all"
    axis = 2 if past.shape is not None and past.shape.rank() == 4 else 1
    bounds = [_constant(graph, f"{cache.present}/{word}", [number]) for word, number in (
        ("start", phase.past), ("end", FIRST), ("axis", axis)
    )]  # fmt: skip
    rows = ir.Node("", "Slice", [whole, *bounds], name=f"{cache.present}/rows")
    rows.outputs[0].name, rows.outputs[0].type = cache.present, whole.type
    graph.append(rows)
    graph.outputs[place] = rows.outputs[0]
    mark_state(past, cache.present)
    if not phase.past:
        shape = [size if isinstance(size, int) else 0 for size in past.shape or ()]
        empty = _initializer(
            graph, f"{past.name}/empty", np.zeros(shape, (past.dtype or ir.DataType.FLOAT).numpy())
        )
        past.replace_all_uses_with(empty)
        graph.inputs.remove(past)


def _initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype)
    )
    graph.register_initializer(value)
    return value


def _constant(graph: ir.Graph, name: str, numbers: list[int]) -> ir.Value:
    return _initializer(graph, name, np.array(numbers, np.int64))


def _group_queries(model: ir.Model, label: str, phase: Phase) -> None:
    """Tells GroupQueryAttention that all of its past is there, and leaves out by its bias what is not.

    Lengths counted from the mask at run time, its own way, would move rows to places not known before.
    """
    graph = model.graph
    nodes = [node for node in graph if (node.domain, node.op_type) == (CONTRIBUTED, "GroupQueryAttention")]
    if not nodes:
        return
    mask = next((value for value in graph.inputs if value.name == MASK), None)
    if mask is None and phase.past:
        raise ModelError(f'{label}: has no input "{MASK}", so rows of a cache cannot be left out')
    lengths = _initializer(graph, "specialized/seqlens_k", np.array([phase.context - 1], np.int32))
    total = _initializer(graph, "specialized/total", np.array(phase.context, np.int32))
    positions = next((value for value in graph.inputs if value.name == POSITIONS), None)
    bias = None if mask is None or not phase.past else _bias(graph, mask, nodes[0], phase)
    windowed: dict[int, ir.Value] = {}
    for node in nodes:
        inputs = [*node.inputs, *[None] * (BIAS + 1 - len(node.inputs))]
        inputs[SEQLENS], inputs[TOTAL] = lengths, total
        # A cache of the whole context holds what one of the window alone does, and more, which is masked.
        node.attributes.pop("sliding_window_cache", None)
        window = node.attributes.get_int("local_window_size", -1) if bias is not None else -1
        turned = node.attributes.get_int("do_rotary", 0) != 0 and inputs[PLACES] is None
        if positions is None and (turned or window > 0):
            positions = ir.Value(
                name=POSITIONS,
                shape=ir.Shape([1, phase.sequence]),
                type=ir.TensorType(ir.DataType.INT64),
            )
            graph.inputs.append(positions)
        if turned:
            inputs[PLACES] = positions
        if bias is not None and inputs[BIAS] is not None:
            raise ModelError(f'{label}: node "{node.name}" (GroupQueryAttention): has a bias and a mask')
        own = bias
        if bias is not None and positions is not None and window > 0:
            # Rows of a cache are counted by places, not by how far they lie from the new ones.
            if window not in windowed:
                windowed[window] = _windowed(graph, bias, positions, window, phase)
            own = windowed[window]
            node.attributes.pop("local_window_size", None)
        inputs[BIAS] = own if inputs[BIAS] is None else inputs[BIAS]
        while inputs and inputs[-1] is None:
            inputs.pop()
        node.resize_inputs(len(inputs))
        for place, value in enumerate(inputs):
            node.replace_input_with(place, value)


def _bias(graph: ir.Graph, mask: ir.Value, before: ir.Node, phase: Phase) -> ir.Value:
    """The addend of scores that stands for a mask of ones and zeros: [1, 1, sequence, context]."""
    kind = before.inputs[0].dtype if before.inputs[0] is not None else None
    number = (kind or ir.DataType.FLOAT).numpy()
    zero = _initializer(graph, "specialized/zero", np.zeros((), number))
    lowest = _initializer(
        graph, "specialized/lowest", np.array(LOWEST if number == np.float32 else -1e4, number)
    )
    shape = _constant(graph, "specialized/mask_shape", [1, 1, 1, phase.context])
    target = _constant(graph, "specialized/bias_shape", [1, 1, phase.sequence, phase.context])
    truth = ir.Node(
        "", "Cast", [mask], [ir.AttrInt64("to", ir.DataType.BOOL.value)], name="specialized/truth"
    )
    choice = ir.Node("", "Where", [truth.outputs[0], zero, lowest], name="specialized/choice")
    rows = ir.Node("", "Reshape", [choice.outputs[0], shape], name="specialized/rows")
    whole = ir.Node("", "Expand", [rows.outputs[0], target], name="specialized/bias")
    for node in (truth, choice, rows, whole):
        node.outputs[0].name = f"{node.name}_out"
    first = next(iter(graph))
    graph.insert_before(first, [truth, choice, rows, whole])
    return whole.outputs[0]


def _windowed(graph: ir.Graph, bias: ir.Value, positions: ir.Value, window: int, phase: Phase) -> ir.Value:
    """A bias that also leaves out keys `window` places and more before a query: [1, 1, sequence, context]."""
    name = f"specialized/window{window}"
    places = np.arange(phase.past, dtype=np.int64)[np.newaxis, np.newaxis, np.newaxis]
    past = _initializer(graph, f"{name}/past", places)
    new = np.arange(phase.sequence)
    far = (new[np.newaxis] <= new[:, np.newaxis] - window)[np.newaxis, np.newaxis]
    new_hidden = _initializer(graph, f"{name}/new_hidden", far)
    reach = _initializer(graph, f"{name}/reach", np.array(window, np.int64))
    lowest = _initializer(
        graph, f"{name}/lowest", np.array(LOWEST, (bias.dtype or ir.DataType.FLOAT).numpy())
    )
    column = _constant(graph, f"{name}/column", [1, 1, phase.sequence, 1])
    queries = ir.Node("", "Reshape", [positions, column], name=f"{name}/queries")
    last = ir.Node("", "Sub", [queries.outputs[0], reach], name=f"{name}/last")
    rows = ir.Node("", "LessOrEqual", [past, last.outputs[0]], name=f"{name}/past_hidden")
    axis = ir.AttrInt64("axis", 3)
    hidden = ir.Node("", "Concat", [rows.outputs[0], new_hidden], [axis], name=f"{name}/hidden")
    whole = ir.Node("", "Where", [hidden.outputs[0], lowest, bias], name=f"{name}/bias")
    made = [queries, last, rows, hidden, whole]
    for node in made:
        node.outputs[0].name = f"{node.name}_out"
    before = bias.producer()
    assert before is not None, "the bias is computed of the mask"
    graph.insert_after(before, made)
    return whole.outputs[0]
