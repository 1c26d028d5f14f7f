"""The section `evaluate`: what quantised networks are evaluated by, and the search that needs it."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from tpuflow.config.section import Section

__all__ = ["EvaluateConfig", "parsed_search"]


def parsed_search(text: str) -> tuple[int, float, bool]:
    """Batches, threshold, and whether drops must be at most it (`L`), from `batches,threshold,L|G`.

    Raises:
        ValueError: It is no such text.
    """
    words = [word.strip() for word in text.split(",")]
    try:
        batches, threshold = int(words[0]), float(words[1])
        (side,) = words[2:]
    except (ValueError, IndexError):
        raise ValueError(f'"{text}": write BATCHES,THRESHOLD,L or BATCHES,THRESHOLD,G') from None
    if side not in {"L", "G"} or not math.isfinite(threshold):
        raise ValueError(f'"{text}": the threshold must be a number, followed by L or G')
    return batches, threshold, side == "L"


class EvaluateConfig(Section):
    """How quantised networks are evaluated, and how samples are read."""

    metric: str = ""
    """Metrics, such as `top1,f1(macro)`, see `tpuflow evaluate`; searches use the first."""
    data: str = ""
    """Samples to evaluate with: an `.npz` with the inputs and `labels`, or the data file of `dataset`."""
    dataset: str = ""
    """The dataset plugin that reads `data` and `label`."""
    label: str = ""
    """Label file of `dataset`."""
    eval_original_model: bool = True
    """A build with `metric` and `data` measures the float network."""
    eval_optimized_model: bool = True
    """It measures the quantised network. With neither, nor a search, no sample of `data` is read."""
    metric_batch_size: int = Field(default=1, ge=1)
    """Samples in what `mixed_precision_auto_search` calls a batch."""
    similarity_data_num: int = Field(default=1, ge=0)
    """Feeds by which tensors are compared with float for settings by layer; 0: they are not."""
    dataloader_workers: int = Field(default=0, ge=0, le=256)
    """Threads that read samples ahead; 0: none. Results do not depend on it."""
    mixed_precision_auto_search: Annotated[str, Field(min_length=1)] = "0,0,L"
    """`batches,threshold,L|G`: how many batches to evaluate with, and what the metric of float less that
    of the network must be: at most the threshold (L), or at least (G). As many layers as that needs,
    from the last
    one on, get 16 bits, or else become floats. Fewer than one batch: no search."""

    @field_validator("mixed_precision_auto_search")
    @classmethod
    def _search(cls, text: str) -> str:
        batches, threshold, at_most = parsed_search(text)
        return f"{batches},{threshold:g},{'L' if at_most else 'G'}"

    @model_validator(mode="after")
    def _makes_sense(self) -> EvaluateConfig:
        if self.searches:
            missing = [name for name in ("metric", "data") if not getattr(self, name)]
            if missing:
                raise ValueError(
                    f"mixed_precision_auto_search needs {' and '.join(missing)} to evaluate with"
                )
        if self.metric and not self.data:
            raise ValueError("metric has no effect without data")
        if self.dataset and not self.data:
            raise ValueError("dataset has no effect without data")
        if self.label and not self.dataset:
            raise ValueError("label has no effect without dataset: an .npz has its own labels")
        return self

    @property
    def searches(self) -> bool:
        """Whether a search for precisions is asked for."""
        return parsed_search(self.mixed_precision_auto_search)[0] >= 1

    @property
    def measures(self) -> bool:
        """Whether a build is to measure any network, beside what a search measures."""
        wanted = self.eval_original_model or self.eval_optimized_model
        return bool(self.metric) and wanted and not self.searches

    @property
    def source(self) -> str:
        """The samples as commands name them: a file, or `PLUGIN(data,label)`."""
        if not self.dataset:
            return self.data
        return f"{self.dataset}({self.data}{',' + self.label if self.label else ''})"
