"""`tpuflow compare-statistics`: what the float network's tensors reach beside the ranges they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import say, table, write_figures

__all__ = ["compare_statistics"]


def compare_statistics(
    statistics: Annotated[
        Path,
        typer.Argument(
            metavar="STATISTICS.json", help="Statistics of the original model.", callback=paths.readable
        ),
    ],
    ranges: Annotated[
        Path,
        typer.Argument(
            metavar="RANGES.json",
            help="Its calibrated ranges or thresholds.",
            callback=paths.readable,
        ),
    ],
    json: options.JsonFile = None,
) -> None:
    """Compare statistics of tensors with their ranges."""
    from tpuflow.calibration import Ranges, load_statistics
    from tpuflow.report import tensor_histograms

    found = tensor_histograms(load_statistics(statistics), Ranges.load(ranges))
    rows = [
        {
            "tensor": each.name,
            "min": each.extrema[0],
            "max": each.extrema[1],
            "range": list(each.thresholds),
            "beyond": each.beyond,
            "count": each.count,
        }
        for each in found
    ]
    table(
        (("tensor", "left"), *((each, "right") for each in ("smallest", "largest", "range", "beyond"))),
        [
            (
                each.name,
                f"{each.extrema[0]:.4g}",
                f"{each.extrema[1]:.4g}",
                f"{each.thresholds[0]:.4g} to {each.thresholds[1]:.4g}",
                f"{each.beyond} of {each.count}",
            )
            for each in found
        ],
    )
    say(f"{len(found)} tensors, {sum(each.beyond for each in found)} values beyond their ranges")
    write_figures(json, {"tensors": rows})
