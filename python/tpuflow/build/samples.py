"""The samples a request is built with: given ones, those of a plugin, or generated ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend import FloatModel, generate_samples
from tpuflow.plugins import dataset_samples, is_dataset
from tpuflow.samples import Samples, load_samples

if TYPE_CHECKING:
    from tpuflow.build.request import Request

__all__ = ["GENERATED", "made_up", "samples_of"]

GENERATED = 8
"""Samples made up where none are given."""


def samples_of(model: FloatModel, request: Request) -> Samples:
    """The samples of a request, or what its configuration says of samples that are not there."""
    workers = request.config.evaluate.dataloader_workers
    if request.calibration is None and request.config.calibrate.no_data == "zeros":
        feed = {port.name: np.zeros(port.shape, port.dtype) for port in model.inputs}
        return Samples.of_feeds([feed], model.inputs)
    if request.calibration is None:
        return made_up(model, GENERATED, request.seed)
    if is_dataset(str(request.calibration)) and not request.calibration.exists():
        return dataset_samples(request.plugins, str(request.calibration), model.inputs, workers)[0]
    return load_samples(request.calibration, model.inputs, workers)


def made_up(model: FloatModel, count: int, seed: int) -> Samples:
    """Generated samples of a float model."""
    return Samples.of_feeds(generate_samples(model, count, seed), model.inputs)
