"""What can be chosen about calibration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tpuflow.calibrate.strategies import STRATEGIES

__all__ = ["CalibrationConfig"]


class CalibrationConfig(BaseModel):
    """How ranges of activations are found.

    Attributes:
        strategy: Name of an entry of `STRATEGIES`.
        percentile: Share of a tensor's values, in percent of all, that stay unclipped (`percentile`).
        momentum: Weight of the past in a running range, `run = m * run + (1 - m) * batch` (`mean`).
        bins: Least number of histogram bins from zero to the largest magnitude, a power of two.
        bits: Width of the codes the range is meant for (`mse`, `kld`).
        symmetric: Whether the zero point will be fixed at 0 (`mse`).
        memory_mib: Activations held at a time; a model with more of them is run in segments.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    strategy: str = "mse"
    percentile: float = Field(default=99.99, gt=0, le=100)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    bins: int = Field(default=2048, ge=2, le=65536)
    bits: int = Field(default=8, ge=2, le=16)
    symmetric: bool = False
    memory_mib: int = Field(default=512, ge=1)

    @field_validator("strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in STRATEGIES:
            raise ValueError(f'"{name}" is not a calibration strategy, choose one of {", ".join(STRATEGIES)}')
        return name

    @field_validator("bins")
    @classmethod
    def _halves(cls, bins: int) -> int:
        if bins & (bins - 1):
            raise ValueError(f"{bins} is not a power of two, which bins must be to widen without loss")
        return bins

    @property
    def codes(self) -> tuple[int, int]:
        """Smallest and largest signed code of `bits`."""
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
