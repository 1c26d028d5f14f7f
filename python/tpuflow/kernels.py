"""Single kernels on arrays, for tests, experiments and explanations.

`apply` runs any operator of the quantised graph on arrays: it builds the graph of that one layer and
interprets it, so what is returned is what a network would compute. The others are pieces of operators.

Example:
    >>> import numpy as np
    >>> half = {"multiplier": [1], "shift": [1], "zero_point": 0, "lo": -128, "hi": 127}
    >>> x = Operand(np.array([1, 3, 5], np.int8))
    >>> apply(lambda tensor: _core.Op.rescale(tensor(x), half), shape=[3], dtype="int8")
    array([0, 2, 2], dtype=int8)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpuflow import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Operand", "Tensors", "apply", "approximate", "gemm", "layer_graph", "lookup", "requantize"]


@dataclass(frozen=True, eq=False)
class Operand:
    """An array in the place of a tensor of an operator.

    Attributes:
        codes: int8, int16, int32 or int64.
        zero_point: Zero point of the codes.
        constant: Part of the network, such as weights, rather than fed to it.
    """

    codes: NDArray[Any]
    zero_point: int = 0
    constant: bool = False


Tensors: TypeAlias = "Callable[[Operand], int]"
"""Makes a tensor of an operand, and gives its number."""


def layer_graph(
    operator: Callable[[Tensors], _core.Op], *, shape: Sequence[int], dtype: str, zero_point: int = 0
) -> tuple[_core.Graph, dict[str, NDArray[Any]]]:
    """The graph of a single layer, and the arrays to run it on.

    Args:
        operator: Given what makes tensors of operands, the operator.
        shape: Shape of the output.
        dtype: Element type of the output.
        zero_point: Zero point of the output tensor; no operator but those that copy codes has use for it.

    Returns:
        Graph and inputs by name; the output is called `y`.

    Raises:
        GraphError: The operator and its operands do not fit together.
    """
    builder = _core.GraphBuilder("layer")
    inputs: dict[str, NDArray[Any]] = {}

    def tensor(operand: Operand) -> int:
        if operand.constant:
            return builder.constant(f"c{id(operand)}", operand.codes, 1.0, operand.zero_point)
        name, codes = f"x{len(inputs)}", operand.codes
        inputs[name] = codes
        return builder.input(name, codes.shape, codes.dtype.name, 1.0, operand.zero_point)

    builder.output(builder.layer("layer", operator(tensor), "y", shape, dtype, 1.0, zero_point))
    return builder.finish(), inputs


def apply(operator: Callable[[Tensors], _core.Op], *, shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """Computes one operator.

    Args:
        operator: Given what makes tensors of operands, the operator.
        shape: Shape of the result.
        dtype: Element type of the result.

    Returns:
        The result's codes.

    Raises:
        GraphError: The operator and its operands do not fit together, or an accumulator may overflow.
    """
    graph, inputs = layer_graph(operator, shape=shape, dtype=dtype)
    return graph.run(inputs)["y"]


def approximate(factor: float, *, bits: int = 15, max_shift: int = 31) -> tuple[int, int] | None:
    """`(M, N)` with `factor ~ M * 2^-N`, or None where no pair the machine holds comes near.

    Args:
        factor: A real number.
        bits: Width of M, at most 15.
        max_shift: Largest N, at most 47.
    """
    return _core.approximate(factor, bits, max_shift)


def requantize(
    accumulators: NDArray[np.int64],
    *,
    multiplier: Sequence[int],
    shift: Sequence[int],
    zero_point: int,
    lo: int,
    hi: int,
) -> NDArray[np.int32]:
    """`clamp(RNE(accumulators * M * 2^-N) + Z, lo, hi)`; one M and N, or one per index of the last axis."""
    return _core.requantize(accumulators, multiplier, shift, zero_point, lo, hi)


def lookup(entries: Sequence[int], codes: NDArray[Any], *, lo: int, hi: int) -> NDArray[np.int16]:
    """The table's value at every code of an int8 or int16 array; words as docs/arithmetic.md, section 5."""
    return _core.lookup(np.array(entries, np.int32), codes, lo, hi)


def gemm(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """`a[m,k] @ b[k,n]` of int8 or int16 codes: int32 for two int8 operands, int64 otherwise."""
    return _core.gemm(a, b)
