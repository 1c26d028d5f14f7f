"""Statistics of calibration kept for further strategies: a model runs once over samples, for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuflow.calibration import calibrate, ranges_of
from tpuflow.ptq.confirmation import parts_of

if TYPE_CHECKING:
    from tpuflow.calibration import Ranges, Statistics
    from tpuflow.config import Config
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples

__all__ = ["KeptStatistics"]


@dataclass
class KeptStatistics:
    """Statistics by model and samples; neither may change while they are kept."""

    _counted: list[tuple[FloatModel, Samples, Config, Statistics]] = field(default_factory=list)

    def ranges(self, model: FloatModel, samples: Samples, config: Config) -> Ranges:
        """As `calibrate`, of a model whole or in segments; it runs only where nothing was counted before."""
        for known, seen, counting, statistics in self._counted:
            if known is model and seen is samples and counting == _counting(config):
                return ranges_of(parts_of(model), statistics, config)

        def count(found: Statistics) -> None:
            self._counted.append((model, samples, _counting(config), found))

        return calibrate(parts_of(model), samples, config, counted=count)


def _counting(config: Config) -> Config:
    """The settings that decide what is counted; the strategy does not matter."""
    neutral = config.calibrate.model_copy(update={"strategy": ""})
    return config.model_copy(update={"calibrate": neutral})
