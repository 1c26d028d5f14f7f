"""Files of calibration for inspection: thresholds, statistics and histograms.

```text
 DIR/thresholds.json             the ranges
 DIR/statistics.json             what was counted of the original model (see `statistics_file`)
 DIR/histograms/TENSOR.npz       counts, edges, zeros, thresholds
```
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibration.collect import collect
from tpuflow.calibration.statistics_file import save_statistics
from tpuflow.config import CalibrationConfig
from tpuflow.io.files import file_stem, make_folder, write_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.calibration.ranges import Ranges
    from tpuflow.calibration.statistics import Statistics
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning import PartitionedModel

__all__ = ["Artifacts", "save_artifacts"]


@dataclass(frozen=True)
class Artifacts:
    """The artifacts to keep.

    Attributes:
        folder: Where; an empty text writes nothing but statistics whose name is a path of its own.
        histograms: Keep the histogram of every tensor.
        samples: How many samples, from the first, histograms and statistics are of; 0 for all.
        statistics: Name of the file of statistics, within `folder`; None for none.
    """

    folder: str | Path = ""
    histograms: bool = False
    samples: int = 0
    statistics: str | Path | None = None

    @property
    def statistics_path(self) -> Path | None:
        """The file of statistics."""
        return None if self.statistics is None else Path(self.folder) / self.statistics


def save_artifacts(
    float_model: FloatModel | PartitionedModel, samples: Samples, ranges: Ranges, wanted: Artifacts
) -> list[Path]:
    """Writes what is wanted and returns the files; without a folder or a name for statistics there are none.

    Raises:
        FileError: A file cannot be written.
        SampleError: A value becomes NaN or infinite for a sample.
    """
    written: list[Path] = []
    to_folder = str(wanted.folder) != ""
    if to_folder:
        folder = Path(wanted.folder)
        make_folder(folder)
        written.append(folder / "thresholds.json")
        ranges.save(written[-1])
    if wanted.statistics is None and not (to_folder and wanted.histograms):
        return written
    shown = samples.first(wanted.samples) if wanted.samples else samples
    statistics = collect(float_model, shown, CalibrationConfig(), histograms=True)
    if wanted.statistics_path is not None:
        written.append(wanted.statistics_path)
        save_statistics(statistics, written[-1])
    if to_folder and wanted.histograms:
        written += _save_histograms(statistics, ranges, Path(wanted.folder) / "histograms")
    return written


def _save_histograms(statistics: Statistics, ranges: Ranges, folder: Path) -> list[Path]:
    make_folder(folder)
    written = []
    taken: set[str] = set()
    for name, tensor in statistics.tensors.items():
        counts = tensor.counts
        found = ranges.tensors.get(name)
        pairs = [(np.nan, np.nan)] if found is None else found.pairs
        arrays: dict[str, NDArray[Any]] = {
            "counts": np.concatenate([counts.negative[::-1], counts.positive]),
            "edges": np.arange(-counts.bins * 2, counts.bins * 2 + 1) * counts.width,
            "zeros": np.array(counts.zeros),
            "thresholds": np.array([min(low for low, _ in pairs), max(high for _, high in pairs)]),
        }
        written.append(folder / f"{file_stem(name, taken)}.npz")
        write_arrays(written[-1], arrays)
    return written
