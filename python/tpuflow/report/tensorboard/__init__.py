"""Event files of a build for TensorBoard (the extra `tensorboard`).

    logs/original               graph of the imported model
    logs/normalised             graph after normalisation
    logs/calibrated             graph of the float model that is quantised: channels scaled, weights on grids
    logs/quantised              graph of layers with the grids of what they store
    logs/program                the same layers with the cycles they take
    logs/statistics             histogram of every activation; `min_per_channel`, `max_per_channel` and
                                `mean_per_channel` below it: scalars whose step is the channel
    logs/similarity             cosine similarity of every tensor, a figure per sample
    logs/configuration          bits of every layer, as figure and table

Every graph carries bytes by node under the tag `Resources`. `set_log_folder` makes every later build, and
every `tpuflow.quantize` with samples, write there; `tpuflow build --log-dir` and `Request.log` ask for one.
"""

from __future__ import annotations

from pathlib import Path

from tpuflow.report.tensorboard.stages import log_stages
from tpuflow.report.tensorboard.writer import RunLog, require

__all__ = ["RunLog", "log_folder", "log_stages", "require", "set_log_folder"]

_folder: Path | None = None


def set_log_folder(folder: str | Path | None) -> None:
    """Later builds and quantisations write TensorBoard's event files below this folder; None ends that."""
    global _folder  # noqa: PLW0603 - one setting of the process, as the name says
    _folder = None if folder is None else Path(folder)


def log_folder() -> Path | None:
    """Where builds write that name no folder of their own."""
    return _folder
