"""Every operator alone, in the forms exporters use: from an ONNX node to the cycles of a program.

Each case is a network of one or two nodes. Its float result is that of onnxruntime on the original model; the
integers have to come close to it, and reference, interpreter and programs of both levels agree in every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from conftest import slow_except
from end_to_end.levels import DType, Network, assert_same
from tpuflow import _core
from tpuflow.compiler.program import LEVELS
from tpuflow.evaluation.similarity import similarity
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatSession

Array = NDArray[Any]
Node = tuple[str, str, str, dict[str, Any]]
MACHINE = "32x32_fpga"
SAMPLES = 4
LEAST: dict[DType, float] = {"int8": 25.0, "int16": 55.0, "bfloat16": 25.0, "float16": 40.0, "float32": 90.0}
"""Signal to quantisation or rounding noise in dB that every output reaches."""


def normal(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    return generator.standard_normal(shape)


def near_one(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    """Numbers whose products and quotients stay of one size."""
    return generator.uniform(0.7, 1.4, shape)


@dataclass(frozen=True)
class Case:
    """A network of few nodes.

    Attributes:
        nodes: Operator, inputs, outputs and attributes of each; the result is called `y`, or `y0`, `y1`, ...
        inputs: Shapes by name.
        constants: Initialisers by name; floating ones become float32.
        draw: Makes the samples of an input, one array for all of them.
        least: Other bounds than `LEAST`, where the operator justifies them.
    """

    nodes: Sequence[Node]
    inputs: dict[str, Sequence[int]]
    constants: dict[str, Any] = field(default_factory=dict)
    draw: Callable[[np.random.Generator, Sequence[int]], Array] = normal
    least: dict[DType, float] = field(default_factory=dict)

    def model(self, opset: int = 19) -> onnx.ModelProto:
        """The network in ONNX."""
        made = [helper.make_node(op, i.split(","), o.split(","), o, **a) for op, i, o, a in self.nodes]
        outputs = [name for _, _, o, _ in self.nodes for name in o.split(",") if name.startswith("y")]
        constants = []
        for name, value in self.constants.items():
            array = np.asarray(value)
            single = array.astype(np.float32) if array.dtype == np.float64 else array
            constants.append(numpy_helper.from_array(single, name))
        # The type of an output is left to inference.
        bare = helper.make_graph(
            made,
            "case",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in self.inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            constants,
        )
        model = helper.make_model(bare, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)

    def samples(self, seed: int = 0) -> dict[str, Array]:
        """Samples of every input, `[samples, ...]` in place of its first axis of size 1."""
        generator = np.random.default_rng(seed)
        return {
            name: self.draw(generator, (SAMPLES, *(shape[1:] if shape[0] == 1 else shape))).astype(np.float32)
            for name, shape in self.inputs.items()
        }


def weights(*shape: int, fan_in: int, seed: int = 1) -> Array:
    made: Array = np.random.default_rng(seed).standard_normal(shape) * float(fan_in) ** -0.5
    return made


def one(operator: str, shape: Sequence[int] = (1, 6, 9, 10), /, *constants: Any, **attributes: Any) -> Case:
    """One node of one computed operand, followed by constants (None for one left out)."""
    named = {f"c{i}": value for i, value in enumerate(constants) if value is not None}
    names = ["x", *("" if value is None else f"c{i}" for i, value in enumerate(constants))]
    return Case([(operator, ",".join(names), "y", attributes)], {"x": shape}, named)


def two(operator: str, left: Sequence[int], right: Sequence[int], **attributes: Any) -> Case:
    """One node of two computed operands; those without a batch axis are reshaped inputs that have one."""
    nodes: list[Node] = []
    inputs: dict[str, Sequence[int]] = {}
    constants: dict[str, Any] = {}
    operands = []
    for name, shape in (("a", left), ("b", right)):
        operands.append(name if shape[0] == 1 else f"{name}_")
        inputs[name] = shape if shape[0] == 1 else (1, *shape)
        if shape[0] != 1:
            constants[f"{name}_shape"] = ints(*shape)
            nodes.append(("Reshape", f"{name},{name}_shape", f"{name}_", {}))
    return Case([*nodes, (operator, ",".join(operands), "y", attributes)], inputs, constants)


def drawn(case: Case, draw: Callable[[np.random.Generator, Sequence[int]], Array]) -> Case:
    return Case(case.nodes, case.inputs, case.constants, draw, case.least)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


IMAGE = (1, 6, 9, 10)
KERNEL = {"kernel_shape": [3, 3]}
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

SOFTMAX = {f"softmax axis {axis}": one("Softmax", IMAGE, axis=axis) for axis in (1, 2, 3, -3)}

REDUCTIONS = {
    f"{name} axes {axes} keepdims {keep}": one(name, IMAGE, ints(*axes), keepdims=keep)
    for name in (
        "ReduceMean",
        "ReduceSum",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
    )
    for axes, keep in (((1,), 0), ((2,), 1), ((-1,), 0), ((1, 3), 1), ((1, 2, 3), 0))
    if name in {"ReduceMean", "ReduceMax"} or keep == 0
    if not (name == "ReduceSumSquare" and axes == (1, 3))
}
PRODUCTS = {
    f"ReduceProd {shape} axes {axes} keepdims {keep}": drawn(
        one("ReduceProd", shape, ints(*axes), keepdims=keep), near_one
    )
    for shape, axes, keep in (
        ((1, 6, 5, 4), (1,), 1),
        ((1, 6, 5, 4), (-1,), 0),
        ((1, 3, 5, 4), (1, 2), 0),
        ((1, 7, 3), (2,), 1),
        ((1, 4, 13), (-1,), 0),
    )
}

GATHERS = {
    f"gather axis {axis} of {indices}": one("Gather", IMAGE, ints(*indices), axis=axis)
    for axis, indices in (
        (1, (0, 5, 2)),
        (-1, (-1, 0, 3, 3)),
        (2, (-9, 4, 1)),
        (3, (8, 6, 4)),
        (-3, (-1, -2, -3)),
    )
} | {"gather one": one("Gather", IMAGE, np.array(-2), axis=2)}

SLICES = {
    "slice backwards": one("Slice", IMAGE, ints(8), ints(-20), ints(2), ints(-1)),
    "slice backwards by two": one("Slice", IMAGE, ints(-1, 5), ints(0, -7), ints(3, 1), ints(-2, -1)),
    "slice every third": one("Slice", IMAGE, ints(1, 0), ints(9, 6), ints(-1, 1), ints(3, 2)),
}

PADS = {
    f"pad {mode} {pads}": one(
        "Pad", IMAGE, ints(*pads), np.array(0.25 if mode == "constant" else 0.0), mode=mode
    )
    for mode in ("constant", "reflect", "edge")
    for pads in ((0, 0, 1, 2, 0, 0, 3, 0), (0, 2, 0, 0, 0, 1, 0, 0))
}

RESIZES = {
    f"resize {mode} {transform} {scales}{rounding or ''}": one(
        "Resize",
        IMAGE,
        None,
        np.array([1, 1, *scales], np.float32),
        mode=mode,
        coordinate_transformation_mode=transform,
        **({"nearest_mode": rounding} if rounding else {}),
    )
    for transform in COORDINATES
    for scales in ((2.0, 2.0), (1.7, 0.6))
    for mode, rounding in (("linear", None), ("nearest", NEAREST[len(transform) % 4]))
} | {
    f"resize nearest {rounding} by sizes": one(
        "Resize", IMAGE, None, None, ints(1, 6, 13, 7), mode="nearest", nearest_mode=rounding
    )
    for rounding in NEAREST
}

CONVOLUTIONS = {
    "conv strided, dilated": one(
        "Conv",
        IMAGE,
        weights(4, 6, 3, 2, fan_in=36),
        weights(4, fan_in=9),
        strides=[2, 1],
        dilations=[1, 3],
        pads=[0, 1, 2, 1],
    ),
    "conv of groups": one("Conv", IMAGE, weights(4, 3, 3, 3, fan_in=27), group=2, auto_pad="SAME_UPPER"),
    "conv depthwise": one("Conv", IMAGE, weights(12, 1, 3, 3, fan_in=9), group=6),
    "conv over one axis": one(
        "Conv", (1, 6, 17), weights(5, 6, 4, fan_in=24), weights(5, fan_in=9), strides=[2], pads=[1, 2]
    ),
    "conv over one axis, dilated": one(
        "Conv", (1, 6, 17), weights(4, 3, 3, fan_in=9), group=2, dilations=[2]
    ),
    "transposed": one("ConvTranspose", IMAGE, weights(6, 4, 3, 3, fan_in=27), strides=[2, 2]),
    "transposed, output_padding": one(
        "ConvTranspose",
        IMAGE,
        weights(6, 4, 3, 3, fan_in=27),
        strides=[3, 2],
        output_padding=[2, 1],
        pads=[1, 0, 0, 2],
    ),
    "transposed, groups": one(
        "ConvTranspose",
        IMAGE,
        weights(6, 4, 3, 2, fan_in=9),
        weights(8, fan_in=9),
        strides=[2, 1],
        group=2,
        pads=[1, 1, 0, 0],
    ),
    "transposed, dilated": one(
        "ConvTranspose",
        IMAGE,
        weights(6, 4, 3, 3, fan_in=27),
        dilations=[2, 3],
        strides=[1, 2],
        pads=[2, 0, 1, 3],
    ),
    "transposed, cropped": one("ConvTranspose", IMAGE, weights(6, 4, 2, 2, fan_in=24), pads=[2, 1, 1, 2]),
    "transposed depthwise": one(
        "ConvTranspose", IMAGE, weights(6, 1, 4, 4, fan_in=8), group=6, strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "transposed over one axis": one(
        "ConvTranspose", (1, 6, 11), weights(6, 4, 3, fan_in=9), strides=[2], output_padding=[1]
    ),
    "transposed to a shape": one(
        "ConvTranspose", IMAGE, weights(6, 4, 3, 3, fan_in=27), strides=[2, 2], output_shape=[18, 20]
    ),
}

DEEP = (1, 4, 5, 6, 7)
VOLUMES = {
    "conv in volumes": one(
        "Conv",
        DEEP,
        weights(5, 4, 3, 3, 2, fan_in=72),
        weights(5, fan_in=9),
        strides=[2, 1, 2],
        pads=[1, 0, 1, 0, 1, 0],
    ),
    "conv in volumes, dilated, groups": one(
        "Conv", DEEP, weights(6, 2, 2, 3, 3, fan_in=36), group=2, dilations=[3, 2, 1], pads=[1, 2, 0, 0, 1, 1]
    ),
    "transposed in volumes": one(
        "ConvTranspose", DEEP, weights(4, 3, 3, 2, 3, fan_in=24), strides=[2, 2, 1], pads=[1, 0, 1, 0, 1, 0]
    ),
    "maximum in volumes": one(
        "MaxPool", DEEP, kernel_shape=[2, 3, 2], strides=[1, 2, 2], pads=[0, 1, 1, 1, 0, 0]
    ),
    "average in volumes": one("AveragePool", DEEP, kernel_shape=[2, 3, 2], strides=[1, 2, 2]),
}

POOLS = {
    f"average ceil {ceil} padding counts {count}": one(
        "AveragePool",
        IMAGE,
        **KERNEL,
        strides=[2, 2],
        pads=[1, 0, 1, 1],
        ceil_mode=ceil,
        count_include_pad=count,
    )
    for ceil in (0, 1)
    for count in (0, 1)
} | {
    "average over one axis": one("AveragePool", (1, 6, 17), kernel_shape=[4], strides=[3], ceil_mode=1),
    "average dilated": one("AveragePool", IMAGE, **KERNEL, dilations=[2, 1]),
    "maximum dilated": one("MaxPool", IMAGE, **KERNEL, dilations=[2, 3], pads=[1, 2, 0, 1]),
    "maximum ceil": one("MaxPool", IMAGE, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
    "maximum over one axis": one("MaxPool", (1, 6, 17), kernel_shape=[3], strides=[2], pads=[1, 0]),
    "global average": one("GlobalAveragePool"),
    "global maximum": one("GlobalMaxPool"),
}

MATRICES = {
    f"matmul {left} {right}": two("MatMul", left, right)
    for left, right in (
        ((1, 12), (12, 5)),
        ((1, 3, 4, 12), (12, 5)),
        ((1, 3, 4, 12), (1, 1, 12, 5)),
        ((1, 1, 4, 12), (1, 3, 12, 5)),
        ((1, 4, 12), (12,)),
        ((12,), (1, 12, 5)),
        ((4, 12), (1, 3, 12, 5)),
    )
} | {
    "matmul constant": one("MatMul", (1, 3, 4, 12), weights(12, 5, fan_in=12)),
    "matmul constant heads": one("MatMul", (1, 3, 4, 12), weights(3, 12, 5, fan_in=12)),
    "matmul constant heads of a shared operand": one("MatMul", (1, 1, 4, 12), weights(3, 12, 5, fan_in=12)),
    "matmul constant vector": one("MatMul", (1, 4, 12), weights(12, fan_in=12)),
    "matmul constant left": Case(
        [("MatMul", "c,x", "y", {})], {"x": (1, 3, 12, 5)}, {"c": weights(7, 12, fan_in=12)}
    ),
    "matmul constant vector left": Case(
        [("MatMul", "c,x", "y", {})], {"x": (1, 12, 5)}, {"c": weights(12, fan_in=12)}
    ),
    "matmul constant heads left": Case(
        [("MatMul", "c,x", "y", {})], {"x": (1, 3, 12, 5)}, {"c": weights(3, 7, 12, fan_in=12)}
    ),
    "gemm": one(
        "Gemm", (1, 12), weights(5, 12, fan_in=12), weights(5, fan_in=4), transB=1, alpha=0.5, beta=2.0
    ),
}

ELEMENTWISE = {
    "clip from below": one("Clip", IMAGE, np.array(-0.5)),
    "clip from above": one("Clip", IMAGE, None, np.array(0.5)),
    "clip from above only positive": drawn(one("Clip", IMAGE, None, np.array(1.2)), near_one),
    "maximum of three": Case([("Max", "a,b,c", "y", {})], {"a": IMAGE, "b": IMAGE, "c": (1, 6, 1, 1)}),
    "minimum of three": Case(
        [("Min", "a,b,c", "y", {})], {"a": IMAGE, "b": (1, 6, 9, 1)}, {"c": np.array(0.5)}
    ),
    "maximum of one": Case([("Max", "a", "y", {})], {"a": IMAGE}),
    "sum of three": Case([("Sum", "a,b,c", "y", {})], {"a": IMAGE, "b": IMAGE, "c": (1, 1, 9, 10)}),
    "mean of three": Case([("Mean", "a,b,c", "y", {})], {"a": IMAGE, "b": IMAGE, "c": IMAGE}),
    "quotient": drawn(two("Div", IMAGE, IMAGE), near_one),
    "quotient by channels": drawn(two("Div", IMAGE, (1, 6, 1, 1)), near_one),
    "quotient of a constant": drawn(
        Case([("Div", "c,x", "y", {})], {"x": IMAGE}, {"c": weights(6, 1, 1, fan_in=1)}), near_one
    ),
    "quotient by a constant": one("Div", IMAGE, near_one(np.random.default_rng(3), (6, 1, 1))),
    "difference from a constant": Case(
        [("Sub", "c,x", "y", {})], {"x": IMAGE}, {"c": weights(1, 10, fan_in=1)}
    ),
    "product with columns": two("Mul", IMAGE, (1, 1, 1, 10)),
}

SLOPES = {
    f"prelu {shape}": one("PRelu", IMAGE, np.random.default_rng(2).uniform(low, high, shape))
    for shape, low, high in (
        ((1,), 0.1, 0.4),
        ((6, 1, 1), -0.5, 0.5),
        ((10,), -0.5, 0.5),
        ((9, 1), 0.1, 0.9),
        ((6, 1, 10), 0.1, 0.9),
        ((6, 9, 10), -0.5, 1.0),
        ((9, 10), 1.0, 1.5),
        ((6, 9, 1), 0.5, 1.5),
    )
}

MOVES = {
    "expand": one("Expand", (1, 6, 1, 10), ints(1, 1, 9, 10)),
    "expand by axes": one("Expand", (1, 10), ints(3, 2, 10)),
    "tile": one("Tile", IMAGE, ints(1, 2, 1, 3)),
    "depth to space": one("DepthToSpace", (1, 12, 4, 5), blocksize=2, mode="DCR"),
    "depth to space by columns": one("DepthToSpace", (1, 12, 4, 5), blocksize=2, mode="CRD"),
    "space to depth": one("SpaceToDepth", (1, 3, 8, 6), blocksize=2),
    "transpose": one("Transpose", IMAGE, perm=[0, 2, 1, 3]),
    "split": Case([("Split", "x,s", "y0,y1,y2", {"axis": 1})], {"x": IMAGE}, {"s": ints(1, 3, 2)}),
    "split unevenly": Case([("Split", "x", "y0,y1,y2", {"axis": -1, "num_outputs": 3})], {"x": IMAGE}),
    "split rows": Case([("Split", "x,s", "y0,y1", {"axis": 2})], {"x": IMAGE}, {"s": ints(7, 2)}),
    "concat": Case([("Concat", "a,b", "y", {"axis": -2})], {"a": IMAGE, "b": (1, 6, 4, 10)}),
    **{
        f"concat of channels at odd offsets, {sizes}": Case(
            [("Concat", "a,b,c", "t", {"axis": 1}), ("Conv", "t,w", "y", {})],
            {name: (1, size, 7, 5) for name, size in zip("abc", sizes, strict=True)},
            {"w": weights(6, sum(sizes), 1, 1, fan_in=sum(sizes))},
        )
        for sizes in ((3, 1, 5), (33, 7, 30), (31, 34, 1))
    },
    "concat of rows at odd offsets": Case(
        [("Concat", "a,b", "t", {"axis": 3}), ("Relu", "t", "y", {})], {"a": (1, 5, 3, 3), "b": (1, 5, 3, 8)}
    ),
    "squeeze": Case(
        [("Squeeze", "x,a", "t", {}), ("Relu", "t", "y", {})], {"x": (1, 6, 1, 10)}, {"a": ints(2)}
    ),
    "flatten": Case([("Flatten", "x", "t", {"axis": 2}), ("Relu", "t", "y", {})], {"x": IMAGE}),
}

NORMALIZATIONS = {
    f"layer norm axis {axis} bias {bias}": one(
        "LayerNormalization",
        shape,
        np.random.default_rng(4).uniform(0.5, 1.5, shape[axis:]),
        *([np.random.default_rng(5).uniform(-0.5, 0.5, shape[axis:])] if bias else []),
        axis=axis,
    )
    for shape, axis, bias in (
        ((1, 7, 24), -1, True),
        ((1, 7, 24), -2, True),
        ((1, 4, 6, 8), -2, False),
        ((1, 4, 6, 8), 1, True),
        ((1, 3, 20), 0, False),
    )
} | {
    "layer norm of a convolution": Case(
        [("Conv", "x,w", "t", {}), ("LayerNormalization", "t,s", "y", {"axis": 1})],
        {"x": IMAGE},
        {"w": weights(4, 6, 3, 3, fan_in=54), "s": np.ones((4, 7, 8))},
    ),
    "layer norm with one scale": one("LayerNormalization", (1, 4, 6, 8), np.ones((6, 1)) * 0.75, axis=2),
}

CASES: dict[str, Case] = {
    **SOFTMAX,
    **REDUCTIONS,
    **PRODUCTS,
    **GATHERS,
    **SLICES,
    **PADS,
    **RESIZES,
    **CONVOLUTIONS,
    **VOLUMES,
    **POOLS,
    **MATRICES,
    **ELEMENTWISE,
    **SLOPES,
    **MOVES,
    **NORMALIZATIONS,
}


def made(case: Case, dtype: DType) -> tuple[Network, onnx.ModelProto]:
    model = case.model()
    return Network.of(model, case.samples(), dtype), model


def feeds_of(case: Case) -> list[dict[str, Array]]:
    """The samples one by one, each in the shape the model takes."""
    samples = case.samples()
    return [
        {name: array[i].reshape(case.inputs[name]) for name, array in samples.items()} for i in range(SAMPLES)
    ]


@pytest.mark.parametrize("dtype", slow_except(["int8", "float16"], LEAST))
@pytest.mark.parametrize("name", CASES)
@pytest.mark.feature("MSC-19")
def test_every_operator_gives_the_same_bits_at_every_level(name: str, dtype: DType) -> None:
    case = CASES[name]
    network, model = made(case, dtype)
    original, level = FloatSession(model), GraphLevel(network.graph)
    for feed in feeds_of(case):
        found = level.run(feed)
        for output, wanted in original.run(feed).items():
            assert found[output].shape == wanted.shape
            least = case.least.get(dtype, LEAST[dtype])
            assert similarity(wanted, found[output]).sqnr >= least, output
    programs = [network.compile(MACHINE, optimization) for optimization in LEVELS]
    for codes in network.feeds(programs[0], (0,)):
        expected = network.expected(codes)
        for program in programs:
            run = _core.simulate(program, list(codes.values()))
            for output, stored, wanted in zip(network.outputs, run.outputs, expected, strict=True):
                assert_same(stored, wanted, f'level {program.level}, output "{output}"')
