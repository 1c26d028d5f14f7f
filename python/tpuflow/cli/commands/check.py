"""`tpuflow check`: whether a program obeys the rules, or a model can be built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import say, write_figures
from tpuflow.cli.commands.programs import show_segments
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.config import Config
    from tpuflow.errors import Finding

__all__ = ["check"]


def check(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Program (.tpu), or model (.onnx).", callback=paths.model_input),
    ],
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.tpuq",
            help="Graph the program must compute. [next to the program]",
            callback=paths.graph_input,
        ),
    ] = None,
    batch: options.Batch = None,
    input_shape: options.InputShapes = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    config: options.ConfigFile = None,
    machine: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.toml", help="Models: target machine.", callback=options.valid_machine
        ),
    ] = ("128x128_asic"),
    ranges: options.RangesFile = None,
    host: Annotated[
        bool,
        typer.Option("--host/--no-host", help="Models: run unsupported operators on the host."),
    ] = True,
    json: options.JsonFile = None,
) -> None:
    """Check a program, or a model before it is built.

    Of a model the segments of machine and host are listed, as `build` makes them, with the reasons; with
    --no-host every node that the machine cannot compute, which is an error. Nothing is built.
    """
    from tpuflow.frontend import is_model_file

    if not is_model_file(file):
        _check_program(file, graph, json)
        return
    opening = options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset)
    settings = options.configuration(config, None)
    if host:
        _check_with_host(file, opening, settings, ranges, machine, json)
    else:
        _check_alone(file, opening, settings, ranges, machine, json)


def _check_with_host(
    file: Path,
    opening: options.Opening,
    settings: Config,
    ranges: Path | None,
    machine: str,
    json: Path | None,
) -> None:
    """Shows the segments of machine and host that `build` makes of a model.

    Raises:
        UnsupportedModelError: Something other than a node prevents a build.
    """
    from tpuflow.calibration import Ranges
    from tpuflow.errors import UnsupportedModelError
    from tpuflow.frontend import load
    from tpuflow.pipeline.preflight import obstacles, segments

    found = obstacles(file, machine, settings, opening["input_shapes"])
    if found:
        write_figures(json, {"file": str(file), "passed": False, "findings": _plain(found)})
        raise UnsupportedModelError(str(file), found)
    with progress("check"):
        model = load(file, **opening, **settings.loading, host=True)
        divided = segments(model, settings, None if ranges is None else Ranges.load(ranges))
    show_segments(divided)
    hosted = [
        {"name": part.name, "nodes": len(part.nodes), "reason": part.reason, "inputs": list(part.inputs)}
        for part in divided.host
    ]
    write_figures(
        json,
        {"file": str(file), "passed": True, "findings": [], "host": hosted, "device": len(divided.device)},
    )
    say(f"{file}: every node can be compiled{', or run on the host' if hosted else ''}")


def _check_alone(
    file: Path,
    opening: options.Opening,
    settings: Config,
    ranges: Path | None,
    machine: str,
    json: Path | None,
) -> None:
    """Lists every node that the machine cannot compute.

    Raises:
        UnsupportedModelError: There are some.
    """
    from tpuflow.calibration import Ranges
    from tpuflow.errors import UnsupportedModelError
    from tpuflow.pipeline.preflight import audit

    saved = None if ranges is None else Ranges.load(ranges)
    found = audit(file, machine=machine, config=settings, ranges=saved, **opening)
    findings = _plain(found.findings)
    write_figures(
        json,
        {
            "file": str(file),
            "passed": not findings,
            "findings": findings,
            "cut_points": list(found.cut_points),
        },
    )
    if found.findings:
        raise UnsupportedModelError(str(file), found.findings, found.cut_points)
    say(f"{file}: every node can be compiled")


def _check_program(file: Path, graph: Path | None, json: Path | None) -> None:
    """Checks a program against the rules of its machine, and its graph.

    Raises:
        ProgramError: It breaks one.
    """
    from tpuflow.errors import ProgramError
    from tpuflow.partitioning.storage import (
        broken_rules,
        graph_beside,
        load_graph,
        load_program,
        require_pair,
    )

    program = load_program(file)
    beside = graph_beside(file)
    source = graph if graph is not None else beside if beside.is_file() else None
    if source is not None:
        require_pair(file, source)
    with progress("check"):
        broken = broken_rules(program, None if source is None else load_graph(source))
    write_figures(
        json,
        {
            "file": str(file),
            "passed": not broken,
            "broken": [str(rule) for rule in broken],
            "graph": None if source is None else str(source),
        },
    )
    if broken:
        raise ProgramError(f"{file}: {len(broken)} broken rules:", [str(rule) for rule in broken])
    meaning = (
        f"; without {beside} its values were not followed" if source is None else f" and computes {source}"
    )
    say(f"{file}: obeys every rule of its machine{meaning}")


def _plain(findings: Sequence[Finding]) -> list[dict[str, str | None]]:
    return [
        {"node": each.node, "operator": each.operator, "attribute": each.attribute, "reason": each.reason}
        for each in findings
    ]
