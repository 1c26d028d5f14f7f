"""One network at every level of the pipeline, and what has to agree between them.

    reference (NumPy)  =  interpreter (`Graph.run`)  =  program of level 1  =  program of level 5

Every comparison is of stored integers, with `==`, or of the bits of floats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from tpuflow import _core, reference
from tpuflow.calibration import calibrate
from tpuflow.compiler.parameters import parameters_of
from tpuflow.compiler.program import LEVELS
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.schedule import Schedule
from tpuflow.config import Config, ScheduleConfig
from tpuflow.execution.simulation import program_ports
from tpuflow.frontend import FloatModel, load
from tpuflow.lowering import lower

Array = NDArray[Any]
Codes = dict[str, Array]
DType = Literal["int8", "int16", "float16", "bfloat16", "float32"]

SMALL = Path(__file__).parent / "small.toml"
"""A machine on which little fits: layers are cut into pieces and tensors spill."""
BRIEF_SEARCH = parameters_of(5, ScheduleConfig(insertion_time_limit=1))
"""Level 5 with 20 steps of its search instead of 200."""
MACHINES: tuple[str | Path, ...] = ("128x128_asic", "32x32_fpga", SMALL)


def config(dtype: DType) -> Config:
    """Everything of one type; extrema, so that calibration is quick."""
    return Config.parse({"quantize": {"dtype": dtype}, "calibrate": {"strategy": "extrema"}})


@dataclass(frozen=True)
class Network:
    """A quantised network.

    Attributes:
        graph: Its integers.
        float_samples: What it was calibrated on, `[samples, ...]` by the model's names.
    """

    graph: _core.Graph
    float_samples: Mapping[str, Array]

    @classmethod
    def of(
        cls, model: onnx.ModelProto | FloatModel, float_samples: Mapping[str, Array], dtype: DType
    ) -> Network:
        """Loads, calibrates and quantises."""
        model = load(model) if isinstance(model, onnx.ModelProto) else model
        settings = config(dtype)
        ranges = calibrate(model, float_samples, settings.calibrate)
        return cls(lower(model, ranges, settings), float_samples)

    @property
    def outputs(self) -> list[str]:
        """Names of the stored outputs, in order."""
        return [self.graph.tensors[tensor].name for tensor in self.graph.outputs]

    def looks_up(self) -> bool:
        """Whether addresses, and with them cycles, depend on values."""
        return any(layer.op == "embedding" for layer in self.graph.layers)

    def compile(self, machine: str | Path, level: int) -> _core.Program:
        """The program; falling back to a lower level is a failure.

        Programs of the small machine are long, and most of a test's time would be the search for a better
        order: it has a tenth of its steps there, and all of them on the presets.
        """
        brief = BRIEF_SEARCH if (machine, level) == (SMALL, 5) else None
        return compile_graph(self.graph, machine, level, schedule=Schedule(brief), strict=True)

    def feeds(self, program: _core.Program, samples: Sequence[int], seed: int = 0) -> list[Codes]:
        """Codes by stored name: of some samples, and once codes drawn evenly, which clip and saturate."""
        ports, _ = program_ports(program)
        names = [self.graph.tensors[tensor].name for tensor in self.graph.inputs]
        feeds = [
            {
                name: port.encode(self.float_samples[port.name][[sample]])
                for name, port in zip(names, ports, strict=True)
            }
            for sample in samples
        ]
        generator = np.random.default_rng(seed)
        drawn = {name: port.random_codes(generator) for name, port in zip(names, ports, strict=True)}
        return [*feeds, drawn]

    def expected(self, feed: Codes) -> list[Array]:
        """Outputs of the NumPy reference; the interpreter has to agree with it on every tensor."""
        wanted = reference.run(self.graph, feed)
        found = self.graph.run(feed, all_tensors=True)
        assert set(found) == set(wanted)
        for name, array in wanted.items():
            assert_same(found[name], array, f'interpreter, tensor "{name}"')
        return [wanted[name] for name in self.outputs]

    def interpreted(self, feed: Codes) -> list[Array]:
        """Outputs of the interpreter alone."""
        found = self.graph.run(feed)
        return [found[name] for name in self.outputs]


def assert_same(found: Array, wanted: Array, what: str) -> None:
    """Equal in type, shape and every bit; else the first difference is named."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), what
    if found.dtype.kind not in "iu":
        bits = np.dtype(f"uint{8 * found.dtype.itemsize}")
        found, wanted = found.view(bits), wanted.view(bits)
    if not np.array_equal(found, wanted):
        differ = np.argwhere(found != wanted)
        at = tuple(int(index) for index in differ[0])
        raise AssertionError(
            f"{what}: {len(differ)} of {found.size} integers differ, first at {at}: "
            f"{found[at]} instead of {wanted[at]}"
        )


def bounds(program: _core.Program) -> dict[str, int]:
    """The lower bounds a program states, by name."""
    stated: dict[str, int] = json.loads(program.metadata())["bounds"]
    return stated


def check_programs(
    network: Network,
    machines: Sequence[str | Path],
    feeds: Sequence[Codes],
    expected: Sequence[Sequence[Array]],
) -> None:
    """Programs of every level on some machines compute what is expected, and their cycles make sense.

    Level 5 is never slower than level 1; counting alone gives the cycles of a run with values; no bound is
    above the cycles it bounds; values do not change cycles unless the network looks rows up.
    """
    for machine in machines:
        cycles: dict[int, int] = {}
        for level in LEVELS:
            where = f"{Path(machine).stem}, level {level}"
            program = network.compile(machine, level)
            counted = _core.simulate(program, [], values=False).cycles
            for feed, wanted in zip(feeds, expected, strict=True):
                run = _core.simulate(program, list(feed.values()))
                for name, found, array in zip(network.outputs, run.outputs, wanted, strict=True):
                    assert_same(found, array, f'{where}, output "{name}"')
                if not network.looks_up():
                    assert run.cycles == counted, where
                for bound, least in bounds(program).items():
                    assert least <= run.cycles, f"{where}: beats its {bound} bound"
            cycles[level] = counted
        assert cycles[5] <= cycles[1], Path(machine).stem


def check(network: Network, machines: Sequence[str | Path] = MACHINES, samples: Sequence[int] = (0,)) -> None:
    """Everything agrees on some of the samples and on codes drawn evenly."""
    feeds = network.feeds(network.compile(machines[0], 1), samples)
    check_programs(network, machines, feeds, [network.expected(feed) for feed in feeds])
