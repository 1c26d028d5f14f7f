"""`tpuflow compare-statistics`: what the float network's tensors reach beside the ranges they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import options
from tpuflow.cli.commands.console import say, table

__all__ = ["compare_statistics"]


def compare_statistics(
    statistics: Annotated[
        Path, typer.Argument(metavar="STATISTICS.json", help="Statistics of the original model.")
    ],
    ranges: Annotated[
        Path, typer.Argument(metavar="RANGES.json", help="Ranges, or thresholds, it was calibrated to.")
    ],
    json: options.JsonFile = None,
) -> None:
    """Show what the tensors of the original model reach beside their ranges, and how much lies beyond."""
    from tpuflow.calibration import Ranges, load_statistics
    from tpuflow.io.files import write_json
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
        wide=True,
    )
    say(f"{len(found)} tensors, {sum(each.beyond for each in found)} values beyond their ranges")
    if json is not None:
        write_json(json, rows)
