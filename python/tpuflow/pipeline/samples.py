"""The samples a request is built with: given ones, those of a plugin, or generated ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.errors import FileError
from tpuflow.frontend import FloatModel, generated
from tpuflow.io.samples import Samples, load_samples
from tpuflow.plugins import dataset_samples, is_dataset
from tpuflow.ptq import CalibrationData

if TYPE_CHECKING:
    from tpuflow.executors import Executor
    from tpuflow.pipeline.request import Request

__all__ = ["GENERATED", "calibration_data", "samples_of"]

GENERATED = 8
"""Samples made up where none are given."""


def calibration_data(
    model: FloatModel, request: Request, executor: Executor | None = None
) -> CalibrationData:
    """The calibration data of a request; samples are read when the first stage asks for them.

    With an executor they are run there, in shards.

    Raises:
        FileError: Samples and saved ranges are both given.
    """
    if request.ranges is not None and request.calibration is not None:
        raise FileError(f"{request.calibration}: not needed beside the ranges of {request.ranges}: give one")
    words = ""
    if request.calibration is None:
        zeros = request.config.calibrate.no_data == "zeros"
        words = "a sample of zeros" if zeros else f"{GENERATED} generated samples"
    return CalibrationData(
        lambda: samples_of(model, request),
        generated=words,
        ranges=request.saved,
        ranges_file=str(request.ranges),
        executor=executor,
    )


def samples_of(model: FloatModel, request: Request) -> Samples:
    """The samples of a request, or what its configuration says of samples that are not there."""
    workers, given = request.config.evaluate.dataloader_workers, request.calibration
    if given is None and request.config.calibrate.no_data == "zeros":
        feed = {port.name: np.zeros(port.shape, port.dtype) for port in model.inputs}
        return Samples.of_feeds([feed], model.inputs)
    if given is None:
        return generated(model, GENERATED, request.seed)
    if isinstance(given, Samples):
        return given
    if not isinstance(given, str | Path):
        return Samples.of(given, model.inputs)
    if is_dataset(str(given)) and not Path(given).exists():
        return dataset_samples(request.plugins, str(given), model.inputs, workers)[0]
    return load_samples(given, model.inputs, workers)
