"""Options several commands share: how they are declared, and the words that need reading."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from tpuflow.cli.commands import paths
from tpuflow.errors import TpuflowError

if TYPE_CHECKING:
    from tpuflow.config import Config
    from tpuflow.executors import Executor

__all__ = [
    "Batch",
    "Calib",
    "ConfigFile",
    "CutInputs",
    "CutOutputs",
    "CutPreset",
    "DType",
    "DTypeOption",
    "Host",
    "IgnoredTensors",
    "InputShapes",
    "JsonFile",
    "Lenient",
    "Level",
    "Opening",
    "OptionError",
    "Plugins",
    "QConfig",
    "RangesFile",
    "Ray",
    "SeedOption",
    "Workers",
    "configuration",
    "executor",
    "names",
    "opening",
    "positive",
    "shapes",
    "size",
    "sizes",
    "valid_machine",
]


class OptionError(TpuflowError):
    """The value of an option makes no sense, or options contradict each other."""


class Level(StrEnum):
    """Optimisation level."""

    sequential = "1"
    parallel = "5"


class DType(StrEnum):
    """Element type of activations and weights."""

    int8 = "int8"
    int16 = "int16"
    f16 = "f16"
    bf16 = "bf16"
    f32 = "f32"


NAMES = {
    DType.int8: "int8",
    DType.int16: "int16",
    DType.f16: "float16",
    DType.bf16: "bfloat16",
    DType.f32: "float32",
}
"""Their names in configurations."""

Batch = Annotated[
    int | None,
    typer.Option(min=1, max=2**31 - 1, metavar="N", help="Batch size. [the model's; 1 if symbolic]"),
]
Calib = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz|DIR|PLUGIN",
        help="Calibration samples, one array per input by its name; or a dataset plugin, NAME(FILE).",
        callback=paths.sample_input,
    ),
]
ConfigFile = Annotated[
    list[Path] | None,
    typer.Option(
        "-c",
        "--config",
        "--cfg",
        metavar="FILE.toml|.cfg|.json",
        help="Configuration; `tpuflow fields` lists every key. Repeatable: later files win.",
        callback=paths.each_readable,
    ),
]
CutInputs = Annotated[str | None, typer.Option(metavar="A,B", help="Tensors that become the inputs.")]
CutPreset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Cut a well-known network where its published form ends; `tpuflow cuts`."
    ),
]
CutOutputs = Annotated[str | None, typer.Option(metavar="C,D", help="Tensors that become the outputs.")]
DTypeOption = Annotated[DType | None, typer.Option(help="Element type of the whole network. [int8]")]
Host = Annotated[
    bool,
    typer.Option(
        "--host/--no-host", help="Run unsupported operators on the host; otherwise they are an error."
    ),
]
IgnoredTensors = Annotated[
    str | None,
    typer.Option("--ignore-tensors", metavar="A,B*", help="Tensors excluded from the tolerance check."),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape", metavar="NAME=1,3,224,224", help="Shape of an input with symbolic axes; repeatable."
    ),
]
Lenient = Annotated[
    bool,
    typer.Option("--lenient", help="Settings for layers that have no effect are warnings, not errors."),
]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="Write all figures as JSON; -: to standard output.",
        callback=paths.figures_target,
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugins",
        metavar="DIR",
        help="Execute the plugins in this folder; repeatable. [TPUFLOW_PLUGINS]",
        callback=paths.each_folder,
    ),
]
QConfig = Annotated[str | None, typer.Option(metavar="NAME", help="Plugin that gives settings by layer.")]
RangesFile = Annotated[
    Path | None,
    typer.Option(
        "--ranges", metavar="FILE.json", help="Ranges saved by `calibrate`.", callback=paths.readable
    ),
]
Workers = Annotated[
    int, typer.Option(min=1, metavar="N", help="Processes; the result is the same for any number.")
]
Ray = Annotated[
    str | None, typer.Option(metavar="ADDRESS|local", help="Run on a Ray cluster instead: tpuflow[ray].")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, metavar="N", help="Random seed.")]


def valid_machine(machine: str | None) -> str | None:
    """Checks that a machine is known, or its file makes sense.

    Raises:
        MachineError: It is not, or does not.
    """
    if machine is not None:
        if machine.endswith(".toml"):
            paths.readable(Path(machine))
        from tpuflow.compiler import Machine

        Machine.load(machine)
    return machine


def positive(number: float | None) -> float | None:
    """Checks that a number is more than 0; NaN is none.

    Raises:
        typer.BadParameter: It is not.
    """
    if number is not None and not number > 0:
        raise typer.BadParameter(f"{number:g} is not more than 0")
    return number


def names(text: str | None) -> tuple[str, ...]:
    """The words of a comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def shapes(words: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Input shapes by name, from `NAME=1,3,224,224`.

    Raises:
        OptionError: A word is no such assignment.
    """
    found: dict[str, tuple[int, ...]] = {}
    for word in words or ():
        name, equals, sizes = word.rpartition("=")
        numbers = [size.strip() for size in sizes.split(",")] if sizes.strip() else []
        if not equals or not name or not all(number.isdecimal() and int(number) > 0 for number in numbers):
            raise OptionError(f'--input-shape "{word}": write NAME=1,3,224,224 with positive numbers')
        if name in found:
            raise OptionError(f'--input-shape: input "{name}" is given twice')
        found[name] = tuple(int(number) for number in numbers)
    return found


class Opening(TypedDict):
    """The part of a model file that becomes the network: arguments of `frontend.load`."""

    input_shapes: dict[str, tuple[int, ...]]
    batch: int | None
    cut_inputs: tuple[str, ...]
    cut_outputs: tuple[str, ...]
    cut_preset: str | None


def opening(
    input_shape: list[str] | None,
    batch: int | None,
    cut_inputs: str | None,
    cut_outputs: str | None,
    cut_preset: str | None,
) -> Opening:
    """Reads the options that choose the part of a model file that becomes the network.

    Raises:
        OptionError: A shape makes no sense.
    """
    return {
        "input_shapes": shapes(input_shape),
        "batch": batch,
        "cut_inputs": names(cut_inputs),
        "cut_outputs": names(cut_outputs),
        "cut_preset": cut_preset,
    }


def configuration(files: list[Path] | None, dtype: DType | None, *, lenient: bool = False) -> Config:
    """The configuration of files, or the default one, with the element type asked for.

    Raises:
        OptionError: The element type is not available.
        ConfigError: The file is wrong.
    """
    from tpuflow.config import Config, load_config

    config = load_config(*files) if files else Config()
    changes: dict[str, object] = {"lenient": True} if lenient else {}
    if dtype is not None:
        # The width of a grid in a file is not that of another type.
        changes |= {"dtype": NAMES[dtype], "activation_bits": None}
    if not changes:
        return config
    return config.model_copy(update={"quantize": config.quantize.model_copy(update=changes)})


def sizes(option: str, text: str) -> list[int]:
    """Positive whole numbers, separated by commas.

    Raises:
        OptionError: They are none.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 0 < int(word) < 2**31 for word in words):
        raise OptionError(f'{option} "{text}": write positive numbers, separated by commas')
    return [int(word) for word in words]


def size(option: str, text: str) -> int:
    """Bytes of a size such as `4G`.

    Raises:
        OptionError: It is none.
    """
    factor = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1:].upper(), 0)
    digits = text[:-1] if factor else text
    if not digits.isascii() or not digits.isdigit() or int(digits[:20]) << factor >= 1 << 63:
        raise OptionError(f"{option} {text}: expected a number of bytes, or one with K, M, G or T behind it")
    return int(digits) << factor


def executor(workers: int, ray: str | None) -> Executor:
    """Where independent work of a command runs: here, in processes of this computer, or on a cluster.

    Raises:
        ExecutorError: Ray is not installed.
    """
    if ray is not None:
        from tpuflow.ray_cluster import RayCluster

        return RayCluster(ray, workers)
    from tpuflow.executors import InProcess, LocalProcesses

    return InProcess() if workers == 1 else LocalProcesses(workers)
