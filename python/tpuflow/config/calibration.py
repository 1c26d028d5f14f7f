"""The section `calibrate`: how ranges of activations are found, and what refines them once they are known."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from tpuflow.config.chain import GlobalMethod, parsed_chain
from tpuflow.config.section import Aliases, PerLayer, Section
from tpuflow.config.strategies import known_strategy, parsed_strategy, parsed_trim

__all__ = ["CalibrationConfig", "power_of_two_bins"]


class CalibrationConfig(Section):
    """How ranges of activations are found."""

    strategy: Annotated[
        str, PerLayer(), Aliases("calibration_strategy_for_activation", "q_strategy_activation")
    ] = "mse"
    """Calibration strategy, which may carry numbers: `extrema`, `mean`, `mse`, `mae` (least magnitudes of
    errors), `lp[p]` (least p-th powers of them), `[R]percentile` (R times the extrema), `pct[p]` (a true
    percentile), `[N]std`, `[N]kld`, `[R]aciq_laplace`, `[R]aciq_gauss`, `weighted_scale_param[r1,r2,r3,r4]`,
    `in_ir` (ranges the model states in its metadata). None weighs errors by second derivatives."""
    percentile: Annotated[float, PerLayer(), Field(gt=0, le=100)] = 99.99
    """Share of a tensor's values, in percent of all, that stay unclipped (`pct` without a number). Any
    other share than the default turns the strategy `percentile`, which multiplies extrema, into `pct`."""
    momentum: Annotated[float, PerLayer(), Aliases("running_statistic_momentum"), Field(ge=0, lt=1)] = 0.9
    """Weight of the past in a running range, `run = m * run + (1 - m) * batch` (`mean`)."""
    batch_size: Annotated[int, Aliases("calibration_batch_size"), Field(ge=1)] = 1
    """Batches of the model that make one step of a running range (`mean`)."""
    trim_infinity: Annotated[str, PerLayer(), Aliases("trim_infinity_before_statistic")] = ""
    """Changes of values before they count: `clip(a,b)` holds them within a and b; `second(a,b)` holds
    them within the extrema of those strictly between a and b. Unset: nothing."""
    z_threshold: Annotated[float, PerLayer(), Field(ge=0, allow_inf_nan=False)] = 0
    """Values further from a tensor's mean than so many of its standard deviations are left out before its
    range is chosen; 0: none are."""
    bins: Annotated[int, PerLayer(), Aliases("histc_bins"), Field(ge=2, le=65536)] = 2048
    """Least number of histogram bins from zero to the largest magnitude, a power of two."""
    count_all: bool = False
    """Histograms count every value. Else, of a tensor with more than 65536 values a batch, a quarter at
    fixed places stands for all but the largest; extrema are always those of all values, and so is what `pct`
    reads."""
    bits: int = Field(default=8, ge=2, le=16)
    """Width of the codes the range is meant for (`mse`, `kld`); unset in a whole configuration: that of the
    tensor's `dtype`."""
    symmetric: bool = False
    """Whether the zero point will be fixed at 0 (`mse`); unset in a whole configuration: whether the tensor's
    grid is symmetric."""
    unsigned: bool = False
    """Whether symmetric grids of tensors that are never negative have positive codes only (`mse`); unset in a
    whole configuration: as for the tensor's grid."""
    clip_weight: Annotated[float, PerLayer(), Field(ge=1, allow_inf_nan=False)] = 16
    """How often squared errors of clipped values count (`mse`); 1 is the plain mean."""
    headroom: Annotated[float, PerLayer(), Field(ge=0, le=8, allow_inf_nan=False)] = 0
    """By what share, over the number of samples, ranges of fewer than 32 samples reach beyond them (`mse`);
    0: as far as what was seen."""
    statistic_file: str = ""
    """Ranges come from the statistics saved in this file; samples are not read, unless
    `ignore_missing_statistic` is set and it lacks tensors."""
    ignore_missing_statistic: bool = False
    """Tensors that file lacks are watched in samples, with a warning; else they are an error."""
    save_statistic_info: str = ""
    """File to save the statistics of every tensor in, to be edited and read again with `statistic_file`."""
    shuffle: Annotated[bool, Aliases("calibration_shuffe", "calibration_shuffle")] = False
    """Samples are taken in another order, which running ranges depend on."""
    shuffle_seed: int = Field(default=0, ge=0)
    """Seed of that order."""
    no_data: Literal["generated", "zeros"] = "generated"
    """Made-up samples where there are none."""
    equalize: bool = True
    """Channels are scaled within the float network, which computes the same, where that brings the outputs of
    samples closer to float. It needs samples: of ranges alone nothing is equalised."""
    tune: bool = True
    """Ranges are tuned on what their readers make of them (`auto_tune`) where that brings outputs closer to
    float on samples held out. It needs samples, and that neither a strategy nor methods are chosen."""
    shift_negative: float = Field(default=0, ge=0, allow_inf_nan=False)
    """Tensors behind smooth functions whose negative part is at most this share of the positive one get a
    constant that makes them unsigned, which the biases of their readers correct; 0: none. It helps
    symmetric grids with `unsigned`; asymmetric ones need no constant."""
    global_calibration: str = "none"
    """Methods that follow once ranges are known, joined by `&`: `equalize`, `smooth_quant[alpha]`,
    `awq[n_grid]`, `second_moment`, `easy_quant[batches,epochs,alpha,beta,nsteps,ngroups]`,
    `auto_tune[batches,candidates]`, `svd_quant[mode,alpha,beta,nsteps,thresh]`, `gptq`, `adaround[Conv]`,
    `adaround[batches,epochs,batch_size,lr,reg_param,beta_start,beta_end,warm_start]` (0 batches: all of
    them), `adaquant_zy{blocks.*}`; each with its numbers and its scope in brackets, or names in braces. One
    that brings outputs no closer to float is undone."""
    memory_mib: int = Field(default=512, ge=1)
    """Activations held at a time; a model with more of them is run in segments."""

    @classmethod
    def complete(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Takes `percentile` for what it is called where a share is stated with it."""
        share = content.get("percentile", cls.model_fields["percentile"].default)
        if content.get("strategy") == "percentile" and share != cls.model_fields["percentile"].default:
            return content | {"strategy": "pct"}
        return content

    @field_validator("strategy")
    @classmethod
    def _require_known(cls, name: str) -> str:
        return known_strategy(name)

    @field_validator("global_calibration")
    @classmethod
    def _chain(cls, text: str) -> str:
        parsed_chain(text)
        return text

    @property
    def chain(self) -> tuple[GlobalMethod, ...]:
        """The methods of global calibration, in order."""
        return parsed_chain(self.global_calibration)

    @field_validator("trim_infinity")
    @classmethod
    def _trims(cls, text: str) -> str:
        parsed_trim(text)
        return text

    @property
    def method(self) -> tuple[str, tuple[float, ...]]:
        """The strategy without its numbers, and its numbers."""
        return parsed_strategy(self.strategy)

    @field_validator("bins")
    @classmethod
    def _halves(cls, bins: int) -> int:
        return power_of_two_bins(bins)

    @property
    def codes(self) -> tuple[int, int]:
        """Smallest and largest signed code of `bits`."""
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1


def power_of_two_bins(bins: int) -> int:
    """`bins`, if it is a power of two.

    Raises:
        ValueError: It is not.
    """
    if bins & (bins - 1):
        raise ValueError(f"{bins} is not a power of two, which bins must be to widen without loss")
    return bins
