"""Which samples a search calibrates with, and which it evaluates by.

Two kinds of samples are held out. Typical ones tell how finely what is usual is stored. Every other of those
whose values reach furthest stands for what a network meets later and was not calibrated with; without them
the narrowest ranges that hold the bulk would always win. All of this is done in `FOLDS` ways, of which the
mean decides: one way alone moves decibels by about as much as what is tried.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.calibration import collect
from tpuflow.errors import SampleError
from tpuflow.io.samples import Samples
from tpuflow.ptq.confirmation import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tpuflow.config import Config
    from tpuflow.frontend import FloatModel

__all__ = ["sample_folds"]

FOLDS = 2
"""Ways to hold out samples."""

HELD_OUT = 8
"""One of so many typical samples is held out, and one of as many with the largest values."""

MOST = 32
"""Samples of each kind that are evaluated by, at most."""


def sample_folds(
    model: FloatModel, samples: Samples, config: Config
) -> list[tuple[Samples, tuple[Samples, ...]]]:
    """By fold, samples to calibrate with and groups to evaluate with: typical ones, large ones."""
    count = samples.count
    if count < 2:
        raise SampleError(f"{count} sample: a search needs at least two, one to evaluate with")
    order = np.argsort(-_reach(model, samples, config), kind="stable").tolist()
    rows = list(samples.rows())

    def chosen(places: Iterable[int]) -> Samples:
        return Samples.of(_stack([rows[at] for at in places]), model.inputs)

    found = []
    for fold in range(min(FOLDS, count // HELD_OUT) or 1):
        far = sorted(order[fold : FOLDS * (count // HELD_OUT) : FOLDS])
        near = sorted(set(range(count)).difference(far))
        typical = near[HELD_OUT - 2 - fold * HELD_OUT // FOLDS :: HELD_OUT - 1] or near[-1:]
        shown = chosen(sorted(set(near).difference(typical)))
        found.append((shown, tuple(chosen(places).spread(MOST) for places in (typical, far) if places)))
    return found


def _reach(model: FloatModel, samples: Samples, config: Config) -> NDArray[np.float64]:
    """How far the values of each sample reach, `[samples]`: the mean over tensors of a logarithm."""
    tensors = collect(parts_of(model), samples, config.calibration()).tensors.values()
    batches = math.ceil(samples.count / samples.batch)
    total = np.zeros(batches)
    for tensor in tensors:
        if len(tensor.batches) == batches:
            reach = np.abs(np.array(tensor.batches)).max(axis=1)
            total += np.log(np.maximum(reach, 1e-30) / max(float(np.median(reach)), 1e-30))
    return np.repeat(total / max(1, len(tensors)), samples.batch)[: samples.count]


def _stack(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
