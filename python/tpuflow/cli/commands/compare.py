"""`tpuflow compare`: the one way to the first tensor that differs, in networks, programs and files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import options, paths

__all__ = ["compare"]


class Kind(StrEnum):
    """The kinds of comparison."""

    networks = "a model with its program"
    branches = "a model with two programs"
    steps = "a program with its graph"
    files = "two files of tensors"


ALWAYS = {"first", "second", "third", "json", "help"}
BRANCHES = frozenset(
    [
        "inputs",
        "validation",
        "count",
        "tolerance",
        "least_sqnr",
        "ignored_tensors",
        "input_shape",
        "batch",
        "cut_inputs",
        "cut_outputs",
        "cut_preset",
        "config",
        "seed",
    ]
)
OPTIONS: dict[Kind, frozenset[str]] = {
    Kind.networks: BRANCHES | {"graph", "picture", "histograms"},
    Kind.branches: BRANCHES,
    Kind.steps: frozenset(["inputs", "graph", "fail_fast", "dump", "seed"]),
    Kind.files: frozenset(
        [
            "stage",
            "tolerance",
            "ignored_tensors",
            "network",
            "axis",
            "sample",
            "failed_only",
            "csv",
            "picture",
        ]
    ),
}
"""The options that have an effect, by kind."""


def compare(
    context: typer.Context,
    first: Annotated[
        Path,
        typer.Argument(metavar="A", help="Model, program, or tensors (.npz).", callback=paths.file_or_folder),
    ],
    second: Annotated[
        Path | None,
        typer.Argument(
            metavar="[B]",
            help="Models: the program or graph. Tensors: a second file.",
            callback=paths.file_or_folder,
        ),
    ] = None,
    third: Annotated[
        Path | None,
        typer.Argument(
            metavar="[C]",
            help="Models: a second program or graph, side by side with B.",
            callback=paths.file_or_folder,
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="X.npz", help="Samples. [one is generated]", callback=paths.sample_input),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.tpuq", help="The quantised graph. [beside the program]", callback=paths.graph_input
        ),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            metavar="V.npz",
            help="Networks: further samples, compared and reported separately.",
            callback=paths.sample_input,
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--samples", min=1, metavar="N", help="Networks: compare on the first N.")
    ] = 1,
    tolerance: Annotated[
        str | None,
        typer.Option(
            metavar="COS,EUCLID", help="Minimum similarities, such as 0.8,0.5; for files also ,SQNR."
        ),
    ] = None,
    least_sqnr: Annotated[
        float,
        typer.Option(metavar="DB", help="Networks: minimum SQNR of every output against float; -inf: none."),
    ] = 6.0,
    ignored_tensors: options.IgnoredTensors = None,
    input_shape: options.InputShapes = None,
    batch: options.Batch = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    config: options.ConfigFile = None,
    seed: options.SeedOption = 0,
    json: options.JsonFile = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|.dot",
            help="Draw the network, failures in red; for files .dot, with --network.",
            callback=paths.output,
        ),
    ] = None,
    histograms: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Networks: draw the distributions of every tensor, float and dequantised.",
            callback=paths.folder,
        ),
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Programs: stop at the first wrong instruction.")
    ] = False,
    dump: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="Programs: write every tensor the instructions computed.",
            callback=paths.output,
        ),
    ] = None,
    stage: Annotated[
        str,
        typer.Option(metavar="NAME", help="Files: default tolerance of stage import, quantize or program."),
    ] = "import",
    network: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Files: graph (.tpuq) or model, for order, operators and the first failing tensor.",
            callback=paths.model_input,
        ),
    ] = None,
    axis: Annotated[
        int | None, typer.Option("--axis", metavar="N", help="Files: also compare each index of this axis.")
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--tensors", min=1, metavar="N", help="Files: compare N tensors only, evenly chosen."),
    ] = None,
    failed_only: Annotated[
        bool, typer.Option("--failed-only", help="Files: list failing tensors only.")
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Files: write a line per tensor.", callback=paths.output),
    ] = None,
) -> None:
    """Find the first tensor that differs, and why.

    MODEL PROGRAM: original, normalised network, integer graph and program, tensor by tensor. MODEL F32 INT8:
    two programs of a model, such as its float and its integer form, in one table. PROGRAM: every instruction
    against the integers of its graph. A.npz B.npz: two files of tensors; EQUAL, CLOSE and SIMILAR pass,
    NOT_SIMILAR and NOT_MATCH fail. Exit status 3 when something differs by more than it may.
    """
    from tpuflow.cli.commands.compare_files import FileComparison, compare_two_files
    from tpuflow.cli.commands.compare_networks import NetworkComparison, compare_branches, compare_networks
    from tpuflow.cli.commands.compare_steps import compare_steps

    kind = _kind(first, second, third)
    _refuse_others(context, kind)
    if kind is Kind.files:
        assert second is not None, "files come in pairs"
        compare_two_files(first, second, FileComparison(
            stage=stage, tolerance=tolerance, ignored_tensors=ignored_tensors, network=network, axis=axis,
            sample=sample, failed_only=failed_only, csv=csv, picture=picture, json=json,
        ))  # fmt: skip
    elif second is None:
        compare_steps(first, graph=graph, inputs=inputs, fail_fast=fail_fast, dump=dump, seed=seed, json=json)
    else:
        asked = NetworkComparison(
            inputs=inputs, graph=graph, validation=validation, count=count, seed=seed, tolerance=tolerance,
            least_sqnr=least_sqnr, ignored_tensors=ignored_tensors, json=json, picture=picture,
            histograms=histograms,
        )  # fmt: skip
        opening = options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset)
        settings = options.configuration(config, None)
        if third is None:
            compare_networks(first, second, opening, settings, asked)
        else:
            compare_branches(first, [second, third], opening, settings, asked)


def _kind(first: Path, second: Path | None, third: Path | None) -> Kind:
    """The kind of comparison that the arguments ask for.

    Raises:
        OptionError: The second one is missing, or there is one too many.
        ProgramError: What has to be a program is none.
    """
    if first.suffix in (*paths.MODELS, ".tpu", ".tpuq") and second is not None and second.suffix == ".npz":
        raise options.OptionError(f"{second}: samples are given with --inputs {second}")
    if first.suffix == ".npz" or (second is not None and second.suffix == ".npz"):
        if second is None:
            raise options.OptionError(f"{first}: name a second file of tensors to compare with")
        if third is not None:
            raise options.OptionError(f"{third}: is one too many: two files of tensors are compared")
        for file in (first, second):
            paths.readable(file)
        return Kind.files
    if second is not None:
        paths.model_input(first)
        paths.program_or_graph(second)
        if third is None:
            return Kind.networks
        paths.program_or_graph(third)
        return Kind.branches
    if first.suffix in paths.MODELS:
        raise options.OptionError(f"{first}: name the program or graph to compare the model with")
    paths.program_input(first)
    return Kind.steps


def _refuse_others(context: typer.Context, kind: Kind) -> None:
    """Refuses options that were given and have no effect.

    Raises:
        OptionError: There is one.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in ALWAYS | OPTIONS[kind]:
            continue
        if any(name in others for others in OPTIONS.values()):
            raise options.OptionError(
                f"{parameter.opts[-1]} has no effect where {kind.value} is compared: leave it out"
                if kind is not Kind.files
                else f"{parameter.opts[-1]} has no effect where {kind.value} are compared: leave it out"
            )
