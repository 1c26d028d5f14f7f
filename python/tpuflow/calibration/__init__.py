"""Calibration: a float model and samples give the range of every activation.

```text
 model + samples --activations--> arrays --statistics--> extrema, histograms --tpuflow.strategies--> Ranges
```

`activations` runs the model and yields every intermediate tensor, in batches of bounded size. `statistics`
keeps the extrema of every batch and one histogram of each tensor, never its values. `tpuflow.strategies`
turns them into a range. One pass over the samples is enough, and shards of the samples merge to the very
same statistics (see `crates/statistics`).

This package chooses no bit widths and changes no weights.
"""

from tpuflow.calibration.artifacts import Artifacts, save_artifacts
from tpuflow.calibration.collect import calibrate, collect, fit, ranges_of, without_warnings
from tpuflow.calibration.config import CalibrationConfig
from tpuflow.calibration.ranges import Means, Range, Ranges
from tpuflow.calibration.statistics import Statistics, TensorStatistics, summarize_channels
from tpuflow.calibration.statistics_file import load_statistics, save_statistics
from tpuflow.strategies import STRATEGIES, Strategy

__all__ = [
    "STRATEGIES",
    "Artifacts",
    "CalibrationConfig",
    "Means",
    "Range",
    "Ranges",
    "Statistics",
    "Strategy",
    "TensorStatistics",
    "calibrate",
    "collect",
    "fit",
    "load_statistics",
    "ranges_of",
    "save_artifacts",
    "save_statistics",
    "summarize_channels",
    "without_warnings",
]
