"""Constraints of ONNX on the attributes and shapes of a node, operator by operator.

Its checker and its shape inference look at a part of this alone. A constraint that cannot be looked at, for
want of a shape or a constant, is not violated.

Source: https://onnx.ai/onnx/operators/ (the text of each operator).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from tpuflow.frontend.constraints import shapes, windows
from tpuflow.frontend.constraints.attributes import LARGEST, attribute_violations
from tpuflow.frontend.constraints.bodies import branches_fit, loop_fits, parts_fit, scan_fits
from tpuflow.frontend.constraints.costs import distribution_exists, neighbors_exist, steps_end
from tpuflow.frontend.constraints.indices import (
    SINGLE,
    Constraint,
    Objection,
    axes_fit,
    centered_axes_fit,
    elements_fit,
    heads_fit,
    indices_fit,
    lengths_fit,
    matrices,
    one_number,
    pair_of_values,
    permutation_fit,
    places_fit,
    points_fit,
    rows_fit,
    running_axis_fits,
    slices_fit,
    some_elements,
    updates_fit,
)

__all__ = ["LARGEST", "Objection", "violations"]


def violations(node: ir.Node) -> Iterator[Objection]:
    """The constraints a node of ONNX's own domain does not keep."""
    own = CONSTRAINTS.get(node.op_type, ())
    checks = (*own, attribute_violations) if node.op_type in DANGEROUS else (attribute_violations, *own)
    for constraint in checks:
        yield from constraint(node)


CONSTRAINTS: Mapping[str, Sequence[Constraint]] = {
    "Conv": (windows.window, windows.convolution),
    "ConvInteger": (windows.window, windows.convolution),
    "ConvTranspose": (windows.window, windows.convolution),
    "MaxPool": (windows.window, windows.pooling),
    "AveragePool": (windows.window, windows.pooling),
    "LpPool": (windows.window, windows.pooling),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), (windows.images,)),
    "BatchNormalization": (shapes.per_channel(1, 2, 3, 4),),
    "InstanceNormalization": (shapes.per_channel(1, 2),),
    "GroupNormalization": (shapes.groups,),
    "LayerNormalization": (shapes.scaled_axes,),
    "RMSNormalization": (shapes.scaled_axes,),
    "PRelu": (shapes.to_first(1),),
    "Clip": (shapes.bounds,),
    "LRN": (neighbors_exist,),
    **dict.fromkeys(
        ("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike"), (distribution_exists,)
    ),
    "Loop": (one_number(0, 1), loop_fits, steps_end),
    "Scan": (scan_fits,),
    "If": (one_number(0), branches_fit),
    "OneHot": (one_number(1), pair_of_values),
    **{operator: (one_number(*indices),) for operator, indices in SINGLE.items()},
    "Trilu": (one_number(1), matrices),
    **dict.fromkeys(("CumSum", "CumProd"), (one_number(1), running_axis_fits)),
    "SplitToSequence": (parts_fit,),
    "QuantizeLinear": (shapes.steps,),
    "DequantizeLinear": (shapes.steps,),
    "LSTM": (shapes.recurrent,),
    "GRU": (shapes.recurrent,),
    "RNN": (shapes.recurrent,),
    "DepthToSpace": (shapes.blocks,),
    "SpaceToDepth": (shapes.blocks,),
    "Pad": (shapes.padding,),
    "Slice": (slices_fit,),
    "TensorScatter": (rows_fit,),
    "Attention": (heads_fit,),
    "GridSample": (shapes.positions,),
    "Resize": (shapes.resize, shapes.region),
    "Upsample": (shapes.resize,),
    "Gather": (indices_fit,),
    "GatherElements": (indices_fit, elements_fit),
    "GatherND": (points_fit,),
    "ReverseSequence": (lengths_fit,),
    "DFT": (shapes.dft,),
    "Scatter": (places_fit,),
    "ScatterElements": (places_fit,),
    "Unique": (some_elements,),
    "ScatterND": (updates_fit,),
    "Reshape": (shapes.same_size,),
    "Concat": (shapes.concat,),
    "Gemm": (shapes.gemm,),
    "MeanVarianceNormalization": (centered_axes_fit,),
    "Squeeze": (axes_fit,),
    "Unsqueeze": (axes_fit,),
    "Tile": (shapes.repeats,),
    "Transpose": (permutation_fit,),
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where", "And", "Or", "Xor",
         "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        (shapes.elementwise,),
    ),
    **dict.fromkeys(
        [f"Reduce{name}" for name in
         ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")],
        (axes_fit,),
    ),
}  # fmt: skip
"""Further constraints on the inputs of an operator."""
DANGEROUS = frozenset(
    {
        "CumProd", "CumSum", "If", "LRN", "Loop", "OneHot", "RandomNormal", "RandomNormalLike",
        "RandomUniform", "RandomUniformLike", "SplitToSequence", "Trilu", "Unique", *SINGLE,
    }
)  # fmt: skip
"""Operators of whose constraints onnxruntime does not survive all: they come before those of attributes."""
