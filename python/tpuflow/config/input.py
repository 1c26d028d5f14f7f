"""The section `input`: what a build starts from, where its command does not say."""

from __future__ import annotations

from typing import Annotated, Literal

from tpuflow.config.section import Aliases, Section

__all__ = ["InputConfig"]


Rewrite = Literal[
    "collapse_linear",
    "collapse_residual",
    "split_projections",
    "expand_powers",
    "resize_by_convolution",
    "parallel_batch",
]


class InputConfig(Section):
    """The inputs of a build; options of the command win."""

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
    rewrites: tuple[Rewrite, ...] = ()
    """Rewrites applied before anything else is done; in floats they change nothing. `collapse_linear`:
    two linear layers in a row become one where that takes no more products. `collapse_residual`: the operand
    of a convolution that is added to its result is added within the kernel. `split_projections`: parts of a
    product become products with scales of their own. `expand_powers`: whole powers become products.
    `resize_by_convolution`: bilinear resizing by whole factors becomes a transposed convolution.
    `parallel_batch`: the samples of a batch become branches, each computed by itself."""

    @property
    def source(self) -> str:
        """The calibration samples as commands name them: a file, or `PLUGIN(file)`; empty without any."""
        if not self.calibration or not self.calibration_dataset:
            return self.calibration
        return f"{self.calibration_dataset}({self.calibration})"
