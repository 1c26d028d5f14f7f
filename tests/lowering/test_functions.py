"""Functions of 16-bit operands: how far they lie from the exact function, and that everything agrees on them.

python tests/lowering/test_functions.py      # the table of docs/arithmetic.md, section 5, again
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowering.quantized import Quantized
from models.builder import Builder
from tpuflow import kernels, reference
from tpuflow.calibration import Range, Ranges
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config
from tpuflow.execution.levels import GraphLevel, ProgramLevel
from tpuflow.frontend import load
from tpuflow.lowering import lower
from tpuflow.lowering.functions import FUNCTIONS, PERIODS
from tpuflow.lowering.scheme import DType, Format, Quant, activation, floating
from tpuflow.lowering.tables import EVERY_CODE, SampledFunction, sample

PAGE = Path(__file__).resolve().parents[2] / "docs" / "arithmetic.md"
BEGIN, END = (f"<!-- {mark} -->" for mark in (
    "functions: made and checked by tests/lowering/test_functions.py", "/functions",
))  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A function of numbers of a range, from 16-bit codes to 16-bit codes.

    Attributes:
        name: Operator.
        low: Least operand.
        high: Largest operand.
    """

    name: str
    low: float
    high: float

    def sampled(self) -> SampledFunction:
        """Between grids that hold the range of the operand and of the results."""
        function = FUNCTIONS[self.name](ir.Node("", self.name, []))
        results = function(np.linspace(self.low, self.high, 100_001))
        source, target = (
            activation(float(low), float(high), Format("int16"), unsigned=True)
            for low, high in ((self.low, self.high), (results.min(), results.max()))
        )
        return SampledFunction(function, source, target, PERIODS.get(self.name))


CASES = [
    Case("Sin", -3, 3),
    Case("Sin", 0, 1000),
    Case("Cos", -30000, 30000),
    Case("Tan", -1.4, 1.4),
    Case("Exp", -20, 20),
    Case("Log", 1e-3, 1000),
    Case("Reciprocal", 0.01, 100),
    Case("Sqrt", 0, 100),
    Case("Tanh", -4, 4),
    Case("Tanh", -30, 30),
    Case("Sigmoid", -100, 100),
    Case("Softplus", -50, 50),
    Case("Gelu", -10, 10),
    Case("Silu", -40, 40),
    Case("Mish", -8, 8),
    Case("HardSwish", -8, 8),
    Case("Erf", -20, 20),
    Case("Elu", -5, 5),
    Case("Atan", -200, 200),
    Case("Asinh", -1000, 1000),
    Case("Acosh", 1, 100),
    Case("Acos", -1, 1),
    Case("Atanh", -0.9999, 0.9999),
    Case("Sinh", -8, 8),
]


@dataclass(frozen=True)
class Quality:
    """What becomes of a function.

    Attributes:
        words: Of its table.
        form: Of its table.
        error: Largest over all codes, in codes of the output, beside the exact function.
        equal: The same of 2^10 equal steps.
        decibels: SQNR over uniform operands.
        possible: The same of exact results of the operands' codes, rounded to the output's.
    """

    words: int
    form: str
    error: float
    equal: float
    decibels: float
    possible: float

    def row(self, case: Case) -> str:
        """The line of the page."""
        cells: list[object] = [
            case.name, f"{case.low:g} to {case.high:g}", self.words, self.form, f"{self.error:.2f}",
            f"{self.equal:.1f}", f"{self.decibels:.1f}", f"{self.possible:.1f}",
        ]  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


def form(words: np.ndarray[Any, np.dtype[np.int32]]) -> str:
    if len(words) % 2:
        return "equal steps"
    reduced = "" if words[1] == 1 << 24 and words[2] == 0 else ", by period"
    return f"segments: {1 << int(words[0] & 255)}{reduced}"


def quality(case: Case) -> Quality:
    """Samples and measures a function."""
    sampled = case.sampled()
    words, equal = sample(sampled, 10, lookup), equal_steps(sampled)
    exact = sampled.at(sampled.real(EVERY_CODE))
    lo, hi = sampled.target.lo, sampled.target.hi
    found, simple = (kernels.lookup(w.tolist(), EVERY_CODE, lo=lo, hi=hi) for w in (words, equal))
    error, other = (float(np.abs(codes - np.clip(exact, lo, hi)).max()) for codes in (found, simple))

    x = np.random.default_rng(0).uniform(case.low, case.high, 50_000)
    index = sampled.source.codes(x).astype(int) + 32768
    real = sampled.function(x) / sampled.target.scale + sampled.target.zero_point
    size = np.linalg.norm(real - sampled.target.zero_point)
    best = np.rint(np.clip(exact, lo, hi))[index]
    decibels, possible = (20 * math.log10(size / np.linalg.norm(real - y)) for y in (found[index], best))
    return Quality(len(words), form(words), error, other, decibels, possible)


def lookup(
    words: np.ndarray[Any, np.dtype[np.int32]], codes: np.ndarray[Any, np.dtype[np.int16]], lo: int, hi: int
) -> np.ndarray[Any, np.dtype[np.int16]]:
    return kernels.lookup(words.tolist(), codes, lo=lo, hi=hi)


def equal_steps(sampled: SampledFunction) -> np.ndarray[Any, np.dtype[np.int32]]:
    """2^10 equal steps, as docs/arithmetic.md has them."""
    knots = -32768 + 64 * np.arange(1025)
    return np.rint(sampled.at(sampled.real(knots))).astype(np.int32)


def page() -> str:
    """The table of the page."""
    head = [
        "| function | operand | words | form | largest error | of equal steps | SQNR, dB | possible |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(quality(case).row(case) for case in CASES)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.low:g} to {case.high:g}")
def test_functions_are_as_near_as_the_page_says(case: Case) -> None:
    """Errors at all 65536 codes; 2 dB of what the operand's grid allows is asked of all."""
    found = quality(case)
    rows = PAGE.read_text().split(BEGIN)[1].split(END)[0].splitlines()
    start = "| ".join(found.row(case).split("| ")[:3])
    (row,) = (row for row in rows if row.startswith(start))
    assert row.split("|")[3:5] == found.row(case).split("|")[3:5]
    error, equal, decibels, possible = (float(cell) for cell in row.split("|")[5:9])
    assert found.error == pytest.approx(error, abs=0.011)
    assert found.equal == pytest.approx(equal, abs=0.11)
    assert found.decibels == pytest.approx(decibels, abs=0.11)
    assert found.possible == pytest.approx(possible, abs=0.11)
    assert found.error <= 0.76
    assert found.decibels >= found.possible - 2


@pytest.mark.parametrize("dtype", ["int16", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("Sin", -30, 30), ("Sin", 0, 1000), ("Exp", -9, 9), ("Log", 1e-3, 1000),
        ("Reciprocal", 0.01, 100), ("Sqrt", 0, 100), ("Tanh", -30, 30),
    ],
)  # fmt: skip
def test_networks_lose_nothing_beyond_the_grids_of_their_tensors(
    name: str, low: float, high: float, dtype: DType
) -> None:
    """Numbers in and out, beside the exact function of the stored operand, rounded to the result's grid."""
    graph = network(name, low, high, fused=False, dtype=dtype).graph
    x = np.random.default_rng(1).uniform(low, high, (1, 1, 256, 256)).astype(np.float32)
    (found,) = GraphLevel(graph).run({"x": x}).values()
    grids = [
        Quant("int16", t.scale[0], t.zero_point, -32768, 32767) if t.scale else floating(dtype)
        for t in (graph.tensors[i] for i in (*graph.inputs, *graph.outputs))
    ]
    function = FUNCTIONS[name](ir.Node("", name, []))
    stored = [x.astype(np.float64)]
    for grid in grids:
        codes = grid.codes(stored[-1]).astype(np.float64)
        stored.append((codes - grid.zero_point) * grid.scale)
        if len(stored) == 2:
            with np.errstate(divide="ignore"):
                stored[-1] = function(stored[-1])
    exact = function(x.astype(np.float64))
    lost, least = (np.linalg.norm(exact - y.astype(np.float64)) for y in (found, stored[-1]))
    assert 20 * math.log10(lost / least) <= 0.5


@st.composite
def segmented(draw: st.DrawFn) -> list[int]:
    """Any table with segments; entries of any size."""
    p, g = draw(st.integers(0, 6)), draw(st.integers(0, 8))
    steps = draw(st.lists(st.integers(max(0, 14 - p), 24 - p), min_size=1 << p, max_size=1 << p))
    multiplier = draw(st.one_of(st.just(1 << 24), st.just(1 << 32), st.integers(0, (1 << 40) - 1)))
    offset = draw(st.one_of(st.just(1 << 39), st.integers(0, (1 << 40) - 1)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([300, 70000, 2**31 - 1]))
    count = 1 + sum(1 << (24 - p - step) for step in steps)
    entries = generator.integers(-spread, spread, count, endpoint=True)
    words = [p | g << 8, multiplier & 0xFFFFFFFF, multiplier >> 32, offset & 0xFFFFFFFF, offset >> 32]
    words += steps + entries.tolist()
    words += [0] * (len(words) % 2)
    return [int(word) for word in np.array(words).astype(np.uint32).view(np.int32)]


@given(segmented(), st.sampled_from([np.int8, np.int16]), st.integers(0, 2**32 - 1))
def test_kernels_and_reference_agree_on_segments(words: list[int], dtype: type, seed: int) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    ends = [-(1 << (bits - 1)), -1, 0, 1, (1 << (bits - 1)) - 1]
    drawn = np.random.default_rng(seed).integers(-(1 << (bits - 1)), 1 << (bits - 1), 300)
    codes: np.ndarray[Any, Any] = np.concatenate([ends, drawn]).astype(dtype)
    found = kernels.lookup(words, codes, lo=-30000, hi=32000)
    expected = reference.lookup(np.array(words), codes, bits=bits, lo=-30000, hi=32000)
    assert found.tolist() == expected.tolist()


def network(name: str, low: float, high: float, *, fused: bool, dtype: DType) -> Quantized:
    """A network of one function of 65536 numbers, behind a convolution where `fused`."""
    b = Builder("function")
    x = b.input("x", [1, 1, 256, 256])
    one = b.constant(np.ones((1, 1, 1, 1), np.float32))
    b.output(b.node(name, b.node("Conv", x, one) if fused else x))
    model = load(b.model())
    results = FUNCTIONS[name](ir.Node("", name, []))(np.linspace(low, high, 10_001))
    ranges = {
        str(value.name): Range(min(low, 0.0), high) for node in model.model.graph for value in node.outputs
    }
    ranges |= {
        str(value.name): Range(min(float(results.min()), 0.0), max(float(results.max()), 0.0))
        for value in model.model.graph.outputs
    }
    graph = lower(
        model.model,
        Ranges(ranges | {"x": Range(min(low, 0.0), high)}),
        Config.parse({"quantize": {"dtype": dtype}}),
    )
    return Quantized(model, graph)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("name", "low", "high", "dtype"),
    [
        ("Sin", 0, 1000, "int16"), ("Log", 1e-3, 1000, "int16"), ("Tanh", -30, 30, "int16"),
        ("Sin", -1000, 1000, "int8"), ("Reciprocal", 0.01, 100, "int16"),
    ],
)  # fmt: skip
def test_reference_graph_and_program_agree_on_every_code(
    name: str, low: float, high: float, dtype: DType, *, fused: bool
) -> None:
    graph = network(name, low, high, fused=fused, dtype=dtype).graph
    sizes = [math.prod(t.shape) for t in graph.tensors if t.name.endswith("/table")]
    assert [size % 2 == 0 for size in sizes] == [dtype == "int16" or fused]
    port = graph.tensors[graph.inputs[0]]
    codes = np.resize(EVERY_CODE if dtype == "int16" else EVERY_CODE[:256], port.shape).astype(dtype)
    assert port.scale is not None
    feed = {"x": ((codes.astype(np.float64) - port.zero_point) * port.scale[0]).reshape(1, 1, 256, 256)}
    program = compile_graph(graph, machine="32x32_fpga", level=1)
    interpreted, executed = (
        level.compute({"x": feed["x"].astype(np.float32)}).codes
        for level in (GraphLevel(graph), ProgramLevel(program))
    )
    expected = reference.run(graph, {port.name: codes})
    for output in (graph.tensors[index].name for index in graph.outputs):
        assert np.array_equal(interpreted[output], expected[output])
        assert np.array_equal(executed[output], expected[output])


if __name__ == "__main__":
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{page()}\n{END}{rest.split(END)[1]}")
