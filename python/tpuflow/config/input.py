"""The section `input`: what a build starts from, where its command does not say."""

from __future__ import annotations

from typing import Annotated

from tpuflow.config.section import Aliases, Section

__all__ = ["InputConfig"]


class InputConfig(Section):
    """What a build starts from; the command's own words win."""

    model: Annotated[str, Aliases("graph")] = ""
    """The model; unset: the command names it."""
    constants: Annotated[str, Aliases("bin")] = ""
    """File of the model's constants, which it names itself: it has to be there."""
    calibration: Annotated[str, Aliases("calibration_data")] = ""
    """Calibration samples, or the data file of `calibration_dataset`; unset: what `no_data` says."""
    calibration_dataset: str = ""
    """The dataset plugin that reads `calibration`. In a text file `dataset` is meant for both."""
    without_batch_dim: bool = False
    """No input of the network has a batch axis, and samples stand one behind the other in files. It is said
    for readers: shapes tell as much."""

    @property
    def source(self) -> str:
        """The calibration samples as commands name them: a file, or `PLUGIN(file)`; empty without any."""
        if not self.calibration or not self.calibration_dataset:
            return self.calibration
        return f"{self.calibration_dataset}({self.calibration})"
