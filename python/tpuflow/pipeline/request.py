"""Requests for a build: model, data, machine, level and options."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tpuflow.calibration import Ranges
from tpuflow.compiler.machine import Machine
from tpuflow.config import Config, InputConfig, OutputConfig, ScheduleConfig
from tpuflow.errors import ModelError
from tpuflow.plugins import Registry
from tpuflow.report.tensorboard import log_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike
    from typing import Any

    from numpy.typing import NDArray

    from tpuflow.calibration import Range
    from tpuflow.frontend import Phase
    from tpuflow.io.samples import Dataset, Samples

__all__ = ["Request", "forbid_float_options", "forbid_ranges"]


@dataclass(frozen=True)
class Request:
    """A request for a build.

    Attributes:
        model: `.onnx`, or `.tpuq` to start from a quantised graph.
        level: Optimisation level, 1 or 5.
        machine: Preset, TOML file, or a machine.
        calibration: Samples: `.npz` or a directory of them, a dataset plugin, `NAME(data_file)`, or in
            memory.
        plugins: What plugins registered.
        qconfig: The plugin that gives settings by layer.
        ranges: Saved ranges; they make samples superfluous.
        config: What to quantise how.
        batch: Size of the batch; the model's own, or 1, by default.
        input_shapes: Shapes of inputs the model leaves open.
        phase: The part of a decoder computed at once; None: the model is no decoder, or has static shapes.
        set_ranges: Ranges by name that take the place of calibrated ones, such as those all phases share.
        cut_inputs: Tensors that become the inputs.
        cut_outputs: Tensors that become the outputs.
        cut_preset: Name of a known cut instead.
        time_limit: Seconds after which the scheduler takes the best plan it has.
        seed: Seed of generated samples and searches.
        strict: A level that had to fall back to a lower one is an error.
        host: Let the host compute what the machine cannot; else that is an error.
        verify: Compare original and normalised model on a sample.
        excepts: Outputs that may differ there.
        stages: Folder for what lies between the stages.
        cache: Folder of programs compiled before; None: everything is compiled.
        log: Folder for TensorBoard's event files; that of `set_log_folder` by default.
    """

    model: Path
    level: int = 1
    machine: str | PathLike[str] | Machine = "128x128_asic"
    calibration: Path | Samples | Mapping[str, NDArray[Any]] | Dataset | None = None
    plugins: Registry = field(default_factory=Registry)
    qconfig: str | None = None
    ranges: Path | None = None
    config: Config = field(default_factory=Config)
    batch: int | None = None
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    phase: Phase | None = None
    set_ranges: Mapping[str, Range] = field(default_factory=dict)
    cut_inputs: Sequence[str] = ()
    cut_outputs: Sequence[str] = ()
    cut_preset: str | None = None
    time_limit: float | None = None
    seed: int = 0
    strict: bool = False
    host: bool = True
    verify: bool = True
    excepts: Sequence[str] = ()
    stages: Path | None = None
    cache: Path | None = None
    log: Path | None = field(default_factory=log_folder)

    @cached_property
    def saved(self) -> Ranges | None:
        """The saved ranges, read once."""
        return None if self.ranges is None else Ranges.load(self.ranges)


def for_machine(config: Config, machine: str | PathLike[str] | Machine) -> Config:
    """The configuration for a machine's array, unless it states another one."""
    found = machine if isinstance(machine, Machine) else Machine.load(machine)
    return config.for_array(int(found.parameters["array.columns"]))


UNQUANTIZED = {"input": InputConfig(), "schedule": ScheduleConfig(), "output": OutputConfig()}
"""Sections that say nothing of a float model."""


def forbid_float_options(request: Request) -> None:
    """Refuses what says something of a float model, beside a quantised graph.

    Raises:
        ModelError: An option would have no effect.
    """
    given = {
        "--calib": request.calibration is not None,
        "--ranges": request.ranges,
        "--batch": request.batch,
        "--input-shape": request.input_shapes,
        "--cut-inputs": request.cut_inputs,
        "--cut-outputs": request.cut_outputs,
        "--cut-preset": request.cut_preset,
        "--config or --dtype": request.config.model_copy(update=UNQUANTIZED) != Config(),
        "--save-stages": request.stages,
        "--log-dir": request.log,
    }
    for option, value in given.items():
        if value:
            raise ModelError(
                f"{request.model}: is quantised already, {option} would have no effect: leave it out"
            )


def forbid_ranges(request: Request) -> None:
    """Refuses ranges where all layers are floats.

    Samples are no mistake: one command builds a network in integers and in floats. Nor are ranges where
    floats are only preferred.

    Raises:
        ModelError: Ranges would have no effect.
    """
    if request.ranges is not None and not request.config.takes_ranges:
        dtype = request.config.quantize.dtype
        raise ModelError(
            f"{request.model}: {dtype} needs no ranges, --ranges would have no effect: leave it out"
        )
