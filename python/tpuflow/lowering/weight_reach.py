"""How far grids of weights reach: calibration strategies on the weights of a channel, or of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpuflow.calibration import STRATEGIES, Statistics, fit
from tpuflow.config import CalibrationConfig
from tpuflow.errors import RangesError

if TYPE_CHECKING:
    from tpuflow.calibration import Range
    from tpuflow.config import QuantizeConfig

__all__ = ["weight_reach"]


def weight_reach(
    array: npt.NDArray[np.floating[Any]],
    axis: int | None,
    config: QuantizeConfig,
    stated: Range | None = None,
) -> npt.NDArray[np.float64] | None:
    """The magnitude each grid shall reach, one per channel or one; None for the largest ones.

    Args:
        array: Weights.
        axis: The axis of output channels, or None for one grid.
        config: Its `weight_strategy` is one of those of activations, and works as it does there.
        stated: The range the model states, for `in_ir`.

    Raises:
        RangesError: It states none, or another number of channels.
    """
    if config.weight_strategy == "extrema":
        return None
    if config.weight_strategy == "in_ir":
        return _stated_reach(stated, 1 if axis is None else array.shape[axis])
    bits = config.weight_bits or (8 if config.dtype == "int8" else 16)
    settings = CalibrationConfig(strategy=config.weight_strategy, bits=bits, symmetric=True)
    rows = (
        array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    )
    statistics = Statistics(settings.bins if STRATEGIES[settings.method[0]].histogram else None)
    statistics.observe({str(i): np.ascontiguousarray(row, np.float32) for i, row in enumerate(rows)})
    found = fit(statistics, settings).tensors
    reach = [max(max(-low, high) for low, high in found[str(i)].pairs) for i in range(len(rows))]
    return np.array(reach, np.float64)


def _stated_reach(stated: Range | None, channels: int) -> npt.NDArray[np.float64]:
    if stated is None:
        raise RangesError("the model states no range of its weights (in_ir)")
    reach = np.array([max(-low, high) for low, high in stated.pairs], np.float64)
    if len(reach) not in {1, channels}:
        raise RangesError(f"the model states {len(reach)} ranges of weights for {channels} channels (in_ir)")
    return np.broadcast_to(reach, channels)
