"""Types of the extension module; stubtest compares this file with what the build offers."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, NotRequired, Self, TypedDict, final, type_check_only

import numpy as np
from numpy.typing import NDArray

__version__: str

def memory_limit() -> int: ...
def set_memory_limit(size: int) -> None: ...

# operators: parts with fields of their own

@type_check_only
class WindowFields(TypedDict):
    kernel: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]
    pads: Sequence[int]

@type_check_only
class RequantFields(TypedDict):
    multiplier: Sequence[int]
    shift: Sequence[int]
    zero_point: int
    lo: int
    hi: int

@type_check_only
class TableFields(TypedDict):
    entries: int
    lo: int
    hi: int

@type_check_only
class FinishFields(TypedDict, total=False):
    function: Sequence[Mapping[str, float | Sequence[int]]]
    lo: float
    hi: float

@type_check_only
class FloatFields(TypedDict):
    float: FinishFields

@type_check_only
class EpilogueFields(TypedDict):
    requant: RequantFields
    table: NotRequired[TableFields]
    first_shift: NotRequired[int]

@type_check_only
class DivisorFields(TypedDict):
    area: int
    multiplier: int
    shift: int

@type_check_only
class AverageFields(TypedDict):
    divisors: Sequence[DivisorFields]
    zero_point: int
    lo: int
    hi: int

@type_check_only
class SlopeFields(TypedDict):
    positive: RequantFields
    negative_multiplier: Sequence[int]
    negative_shift: Sequence[int]

@type_check_only
class NegativeSlopeFields(TypedDict):
    negative: Sequence[float]
    finish: NotRequired[FinishFields]

@type_check_only
class FloatSlopeFields(TypedDict):
    float: NegativeSlopeFields

@type_check_only
class ExponentialFields(TypedDict):
    coefficient: int
    multiplier: int
    shift: int
    zero_point: int
    lo: int
    hi: int

@type_check_only
class NormFields(TypedDict):
    epsilon: int
    multiplier: int
    shift: int
    requant: RequantFields

@type_check_only
class EpsilonFields(TypedDict):
    epsilon: float
    finish: NotRequired[FinishFields]

@type_check_only
class FloatNormFields(TypedDict):
    float: EpsilonFields

@type_check_only
class DivisionFields(TypedDict):
    divisor: float
    finish: NotRequired[FinishFields]

@type_check_only
class FloatReductionFields(TypedDict):
    float: DivisionFields

@type_check_only
class LinearTapFields(TypedDict):
    first: int
    second: int
    weight: float

@type_check_only
class ConstantPadFields(TypedDict):
    constant: int

@type_check_only
class ValuePadFields(TypedDict):
    value: float

@final
class Op:
    @staticmethod
    def conv(
        *,
        input: int,
        weights: int,
        bias: int,
        window: WindowFields,
        groups: int,
        epilogue: EpilogueFields | FloatFields,
    ) -> Op: ...
    @staticmethod
    def mat_mul(*, a: int, b: int, epilogue: EpilogueFields | FloatFields, bias: int | None = None) -> Op: ...
    @staticmethod
    def max_pool(*, input: int, window: WindowFields) -> Op: ...
    @staticmethod
    def average_pool(
        *,
        input: int,
        window: WindowFields,
        count_include_pad: bool,
        beyond: Sequence[int],
        average: AverageFields | FloatFields,
    ) -> Op: ...
    @staticmethod
    def binary(
        *, kind: str, a: int, b: int, ka: int, kb: int, requant: RequantFields | FloatFields
    ) -> Op: ...
    @staticmethod
    def unary(*, input: int, function: TableFields | FloatFields) -> Op: ...
    @staticmethod
    def rescale(*, input: int, requant: RequantFields | FloatFields) -> Op: ...
    @staticmethod
    def quantize(*, input: int, scale: float, zero_point: int, lo: int, hi: int) -> Op: ...
    @staticmethod
    def dequantize(*, input: int, scale: float, finish: FinishFields) -> Op: ...
    @staticmethod
    def p_relu(*, input: int, slopes: SlopeFields | FloatSlopeFields) -> Op: ...
    @staticmethod
    def softmax(
        *, input: int, exponentials: ExponentialFields | FloatFields, mask: int | None = None
    ) -> Op: ...
    @staticmethod
    def layer_norm(
        *, input: int, gamma: int, beta: int, center: bool, norm: NormFields | FloatNormFields
    ) -> Op: ...
    @staticmethod
    def reduce(
        *, input: int, kind: str, axes: Sequence[int], requant: RequantFields | FloatReductionFields
    ) -> Op: ...
    @staticmethod
    def arg_max(*, input: int, largest: bool, select_last: bool) -> Op: ...
    @staticmethod
    def concat(*, inputs: Sequence[int], axis: int, requants: Sequence[RequantFields | None]) -> Op: ...
    @staticmethod
    def pad(
        *,
        input: int,
        before: Sequence[int],
        after: Sequence[int],
        mode: ConstantPadFields | ValuePadFields | Literal["reflect", "edge"],
    ) -> Op: ...
    @staticmethod
    def rearrange(*, input: int, dims: Sequence[int], strides: Sequence[int], offset: int) -> Op: ...
    @staticmethod
    def gather(*, input: int, axis: int, indices: Sequence[int]) -> Op: ...
    @staticmethod
    def embedding(*, table: int, indices: int, entry: str | Mapping[str, int] | None = None) -> Op: ...
    @staticmethod
    def resize_linear(
        *, input: int, rows: Sequence[LinearTapFields], columns: Sequence[LinearTapFields]
    ) -> Op: ...
    @staticmethod
    def insert_zeros(*, input: int, stride: Sequence[int]) -> Op: ...
    @staticmethod
    def select(*, condition: int, a: int, b: int) -> Op: ...

# graph

@final
class GraphBuilder:
    def __new__(cls, name: str) -> Self: ...
    def input(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        scale: float | Sequence[float] | None = None,
        zero_point: int = 0,
        source_json: str | None = None,
    ) -> int: ...
    def constant(
        self,
        name: str,
        array: NDArray[Any],
        scale: float | Sequence[float] | None = None,
        zero_point: int = 0,
    ) -> int: ...
    def packed_constant(
        self,
        name: str,
        codes: NDArray[np.uint8],
        scales: NDArray[np.uint8],
        zero_points: NDArray[np.uint8] | None = None,
        *,
        block: int,
        scale: float | Sequence[float] | None = None,
        is_float: bool = False,
    ) -> int: ...
    def layer(
        self,
        name: str,
        op: Op,
        output_name: str,
        shape: Sequence[int],
        dtype: str,
        scale: float | Sequence[float] | None = None,
        zero_point: int = 0,
        source_json: str | None = None,
        nodes: Sequence[str] = ...,
    ) -> int: ...
    def terms(self, terms: int) -> None: ...
    def output(self, tensor: int) -> None: ...
    def state(self, past: int, new: int, axis: int) -> None: ...
    def finish(self) -> Graph: ...

@final
class Tensor:
    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def scale(self) -> list[float] | None: ...
    @property
    def zero_point(self) -> int: ...
    @property
    def is_constant(self) -> bool: ...
    @property
    def source_json(self) -> str | None: ...

@final
class Layer:
    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def op_json(self) -> str: ...
    @property
    def operands(self) -> list[int]: ...
    @property
    def output(self) -> int: ...
    @property
    def nodes(self) -> list[str]: ...
    @property
    def macs(self) -> int: ...

@final
class Graph:
    @property
    def name(self) -> str: ...
    @property
    def tensors(self) -> list[Tensor]: ...
    def repeated(self, runs: int) -> Graph: ...
    @property
    def states(self) -> list[tuple[int, int]]: ...
    @property
    def exchanges(self) -> list[tuple[int, list[int]]]: ...
    @property
    def layers(self) -> list[Layer]: ...
    @property
    def inputs(self) -> list[int]: ...
    @property
    def outputs(self) -> list[int]: ...
    @property
    def macs(self) -> int: ...
    def constant(self, tensor: int) -> NDArray[Any]: ...
    def packed(
        self, tensor: int
    ) -> tuple[int, NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8] | None, bool] | None: ...
    def to_json(self) -> str: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    @staticmethod
    def load(path: str | PathLike[str]) -> Graph: ...
    def prepare(self) -> None: ...
    def release(self) -> None: ...
    def run(
        self,
        inputs: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]],
        *,
        all_tensors: bool = False,
        tensors: Sequence[str] | None = None,
    ) -> dict[str, NDArray[Any]]: ...
    def step(
        self,
        inputs: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]],
        state: GraphState,
        position: int,
    ) -> dict[str, NDArray[Any]]: ...
    def run_apart(
        self, given: Mapping[str, NDArray[Any]], tensors: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]: ...

@final
class GraphState:
    def __new__(cls, graphs: Sequence[Graph]) -> Self: ...
    @property
    def rows_written(self) -> int: ...
    def write(self, arrays: Sequence[NDArray[Any]], count: int) -> None: ...
    def reset(self) -> None: ...

# scheduler

def schedule(
    graph: Graph,
    machine_toml: str,
    level: int,
    *,
    parameters_json: str | None = None,
    tiling_json: str | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    origin: str = "machine",
    stream: bool = False,
) -> Program: ...
def in_parts(graph: Graph, program: Program) -> tuple[Graph, list[tuple[int, list[tuple[int, int]]]]]: ...
def divide(
    graph: Graph, devices: int
) -> tuple[
    list[tuple[Graph, list[tuple[int, list[tuple[int, int]]]], list[tuple[int, list[tuple[int, int]]]]]],
    Graph,
]: ...
def check(graph: Graph | None, program: Program) -> list[str]: ...
def lower_bounds(graph: Graph, machine_toml: str, *, origin: str = "machine") -> str: ...
def allocate(
    items: Sequence[tuple[int, int, int]],
    alignments: Sequence[int],
    *,
    enough: int,
    steps: int,
    seed: int,
    go_on: Callable[[int], bool],
) -> tuple[list[int], int, int]: ...
def check_allocation(
    items: Sequence[tuple[int, int, int]],
    alignments: Sequence[int],
    offsets: Sequence[int],
    capacity: int,
) -> str | None: ...
def machine_text(name: str) -> str: ...
def machine_json(origin: str, toml: str) -> str: ...
def machine_presets() -> list[str]: ...

# kernels

def approximate(factor: float, bits: int = 15, max_shift: int = 31) -> tuple[int, int] | None: ...
def requantize(
    accumulators: NDArray[np.int64],
    multiplier: Sequence[int],
    shift: Sequence[int],
    zero_point: int,
    lo: int,
    hi: int,
) -> NDArray[np.int32]: ...
def lookup(entries: NDArray[np.int32], codes: NDArray[Any], lo: int, hi: int) -> NDArray[np.int16]: ...
def gemm(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]: ...

# simulator

@final
class Program:
    @property
    def name(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def fallback(self) -> str | None: ...
    @property
    def last_position(self) -> int | None: ...
    def at(self, position: int) -> Program: ...
    def is_like(self, other: Program) -> bool: ...
    def unrolled(self, runs: int) -> Program: ...
    def __len__(self) -> int: ...
    def metadata(self) -> str: ...
    def cache_in_use(self) -> int: ...
    def digest(self) -> str: ...
    def to_json(self) -> str: ...
    def on_machine(self, machine_toml: str) -> Program: ...
    def to_raw(self) -> Program: ...
    def relocated(self, io_address: int | None = None, addresses: dict[str, int] = ...) -> Program: ...
    @property
    def is_raw(self) -> bool: ...
    def constants(self) -> list[bytes]: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    @staticmethod
    def load(path: str | PathLike[str]) -> Program: ...
    def to_text(self, *, constants: bool = True) -> str: ...
    @staticmethod
    def from_text(text: str) -> Program: ...

@final
class Run:
    @property
    def outputs(self) -> list[NDArray[Any]]: ...
    @property
    def cycles(self) -> int: ...
    def to_json(self) -> str: ...
    def trace_json(self) -> str: ...

def simulate(
    program: Program,
    inputs: Sequence[NDArray[Any]],
    *,
    values: bool = True,
    trace: bool = False,
    array: str = "closed",
    stepped: bool = False,
) -> Run: ...

@final
class Devices:
    def __new__(cls, programs: Sequence[Program]) -> Self: ...
    def at(self, position: int) -> Devices: ...
    def run(self, inputs: Sequence[Sequence[NDArray[Any]]]) -> list[list[NDArray[Any]]]: ...

@final
class Signals:
    @property
    def ports(self) -> list[str]: ...
    @property
    def stalls(self) -> list[str]: ...
    @property
    def states(self) -> NDArray[np.uint64]: ...
    @property
    def requests(self) -> NDArray[np.uint64]: ...
    @property
    def channels(self) -> NDArray[np.uint64]: ...

def signals(program: Program, inputs: Sequence[NDArray[Any]], begin: int, end: int, most: int) -> Signals: ...

# runtime

@final
class Codec:
    def __new__(cls, metadata: str) -> Self: ...
    def pack(self, number: int, array: NDArray[np.uint8]) -> NDArray[np.uint8]: ...
    def unpack(self, number: int, words: NDArray[np.uint8]) -> NDArray[np.uint8]: ...

@final
class Session:
    def __new__(cls, program: Program) -> Self: ...
    def run(
        self, arrays: Sequence[NDArray[np.uint8]], exact: bool
    ) -> tuple[list[NDArray[np.uint8]], tuple[int, str] | None, str | None, float]: ...
    def state(self) -> State: ...
    def step(
        self, arrays: Sequence[NDArray[np.uint8]], state: State, position: int, exact: bool
    ) -> tuple[list[NDArray[np.uint8]], tuple[int, str] | None, str | None, float]: ...

@final
class State:
    @property
    def rows(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
    def truncate(self, rows: int) -> None: ...
    def read(self, session: Session, name: str) -> tuple[list[int], NDArray[np.uint8]]: ...
    def write(self, session: Session, rows: int, arrays: Sequence[NDArray[np.uint8]]) -> None: ...
    def save(self) -> bytes: ...
    def restore(self, saved: bytes) -> None: ...

@final
class Stepper:
    def __new__(cls, program: Program, inputs: Sequence[NDArray[Any]]) -> Self: ...
    def execute(self, position: int) -> None: ...
    def read(self, space: str, start: int, length: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]: ...
    def accumulators(self, position: int) -> NDArray[np.int64]: ...

# statistics

@final
class Histogram:
    def __new__(cls, bins: int) -> Self: ...
    @staticmethod
    def of_counts(
        bins: int,
        *,
        width: float,
        zeros: int,
        negative: Sequence[int],
        positive: Sequence[int],
        extrema: tuple[float, float] | None,
    ) -> Histogram: ...
    def merge(self, other: Histogram) -> None: ...
    @property
    def extrema(self) -> tuple[float, float] | None: ...
    @property
    def bins(self) -> int: ...
    @property
    def width(self) -> float: ...
    @property
    def count(self) -> int: ...
    @property
    def zeros(self) -> int: ...
    @property
    def negative(self) -> NDArray[np.uint64]: ...
    @property
    def positive(self) -> NDArray[np.uint64]: ...
    @property
    def range(self) -> tuple[float, float]: ...
    def percentile_range(self, percentile: float) -> tuple[float, float]: ...
    def mse_range(
        self, *, qmin: int, qmax: int, symmetric: bool, clip_weight: float
    ) -> tuple[float, float]: ...
    def kld_range(self, levels: int) -> tuple[float, float]: ...

MANY_VALUES: int

def observe(
    arrays: Sequence[NDArray[np.float32]],
    histograms: Sequence[Histogram],
    axes: Sequence[int | None],
    *,
    whole: bool = True,
) -> list[tuple[tuple[float, float] | None, int, int, NDArray[np.float64]]]: ...
def moments(values: NDArray[np.float32]) -> tuple[int, float, float]: ...
def by_channel(
    arrays: Sequence[NDArray[np.float32]], kept: Sequence[Sequence[bool]]
) -> list[NDArray[np.float64]]: ...
def channel_extrema(values: NDArray[np.float32], axis: int) -> NDArray[np.float64]: ...
def channel_mse_ranges(
    values: NDArray[np.float32], axis: int, *, qmin: int, qmax: int, symmetric: bool
) -> NDArray[np.float64]: ...

# units

@final
class UnitSpec:
    @property
    def name(self) -> str: ...
    @property
    def short(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def is_dma(self) -> bool: ...
    @property
    def colors(self) -> tuple[str, str]: ...

def units() -> list[UnitSpec]: ...
