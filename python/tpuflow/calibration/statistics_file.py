"""Statistics of calibration in a file: ranges by another strategy then need no samples.

```json
{
  "format": 1,
  "samples": 64,
  "bins": 2048,
  "tensors": {
    "conv1_out": {"extrema": [-2.5, 3.75], "mean": 0.1, "std": 0.8, "mad": 0.6, "left_out": 0,
                  "batches": [[-2.5, 3.0], [-2.0, 3.75]],
                  "histogram": {"bins": 2048, "width": 0.001, "extrema": [-2.5, 3.75], "zeros": 12,
                                "negative": [5, 4, 3], "positive": [7, 6]}}
  },
  "means": {
    "conv1_out": {"axis": 1, "mean": [0.25, 0.5]}
  }
}
```

The file is meant to be edited by hand, one tensor per line; what it says holds, whatever follows from the
rest of it. `extrema` is read by extrema and multiples of them, `batches` by running ranges, `mean`, `std`
and `mad` by deviations and analytic clipping, the histogram by all others. `step` says that all values of an
input are multiples of it, which `mse` makes its scale. `"part": true` says that the histogram counts a part
of a large tensor's values (`count_all`), from which no percentiles are taken.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibration.means import ChannelSums
from tpuflow.calibration.statistics import Histogram, Moments, Statistics, TensorStatistics
from tpuflow.errors import RangesError
from tpuflow.io.files import parse_json, read_text, write_text
from tpuflow.strategies import extrema_of, moments_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["load_statistics", "save_statistics"]

MOST_BINS = 1 << 20
"""More than any histogram has; memory is taken for all of them."""
FORMAT = 1


def save_statistics(statistics: Statistics, path: str | Path) -> None:
    """Writes statistics; the same ones give the same bytes.

    Raises:
        FileError: The file cannot be written.
    """
    head = {"format": FORMAT, "samples": statistics.samples, "bins": statistics.bins}
    tensors = [
        f"    {json.dumps(name)}: {json.dumps(_tensor_entry(each), allow_nan=False)}"
        for name, each in statistics.tensors.items()
    ]
    means = [
        f"    {json.dumps(name)}: "
        + json.dumps({"axis": each.axis, "count": each.count, "mean": found}, allow_nan=False)
        for name, each in statistics.sums.items()
        if (found := each.means()) is not None
    ]
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, rows in (("tensors", tensors), ("means", means)):
        block = "{\n" + ",\n".join(rows) + "\n  }" if rows else "{}"
        lines.append(f'  "{key}": {block}')
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _tensor_entry(tensor: TensorStatistics) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if tensor.batches:
        found["extrema"] = list(extrema_of(tensor))
    if tensor.step is not None:
        found["step"] = tensor.step
    histogram = tensor.histogram
    if histogram is not None:
        mean, deviation, absolute = moments_of(tensor)
        found |= {"mean": mean, "std": deviation, "mad": absolute}
    found |= {"left_out": tensor.left_out, "batches": [list(pair) for pair in tensor.batches]}
    if tensor.part:
        found["part"] = True
    if histogram is not None:
        extrema = histogram.extrema
        found["histogram"] = {
            "bins": histogram.bins,
            "width": histogram.width,
            "extrema": None if extrema is None else list(extrema),
            "zeros": histogram.zeros,
            "negative": _without_trailing_zeros(histogram.negative),
            "positive": _without_trailing_zeros(histogram.positive),
        }
    return found


def _without_trailing_zeros(counts: NDArray[np.uint64]) -> list[int]:
    """Counts up to the last one above zero."""
    found: list[int] = np.trim_zeros(counts, "b").tolist()
    return found


def load_statistics(path: str | Path) -> Statistics:
    """Reads a file written by `save_statistics`, or by hand.

    Raises:
        RangesError: The file is missing or wrong; the text names file, tensor and field.
    """
    path = Path(path)
    document = parse_json(read_text(path, RangesError), path, RangesError)
    if not isinstance(document, dict) or not isinstance(document.get("tensors"), dict):
        raise RangesError(f'{path}: not a file of statistics: key "tensors" is missing')
    if document.get("format") != FORMAT:
        raise RangesError(
            f'{path}: key "format" is {json.dumps(document.get("format"))}, {FORMAT} is understood'
        )
    samples = document.get("samples", 1)
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise RangesError(f'{path}: key "samples" must be a positive number')
    bins = document.get("bins")
    if bins is not None and not _is_count(bins):
        raise RangesError(f'{path}: key "bins" must be a whole number from 1 to {MOST_BINS}')
    statistics = Statistics(bins, samples=samples)
    for name, entry in document["tensors"].items():
        try:
            statistics.tensors[name] = _read(entry)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            told = f'field "{error.args[0]}" is missing' if isinstance(error, KeyError) else str(error)
            raise RangesError(f'{path}: tensor "{name}": {told}') from None
    means = document.get("means", {})
    if not isinstance(means, dict):
        raise RangesError(f'{path}: key "means" must be an object')
    for name, entry in means.items():
        try:
            statistics.sums[name] = _sums(entry)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RangesError(
                f'{path}: means of "{name}": axis, count and mean are needed: {error}'
            ) from None
    return statistics


def _read(entry: dict[str, Any]) -> TensorStatistics:
    if not isinstance(entry, dict):
        raise TypeError("an object is needed")
    tensor = TensorStatistics([_pair(each, "batches") for each in entry.get("batches", [])], None)
    tensor.left_out = int(entry.get("left_out", 0))
    tensor.part = entry.get("part") is True
    if "extrema" in entry:
        stated = _pair(entry["extrema"], "extrema")
        # What follows from the rest was not written by hand, and may change with it.
        if not tensor.batches or stated != extrema_of(tensor):
            tensor.stated_extrema = stated
        # Where only extrema were written by hand, there was one batch of them.
        tensor.batches = tensor.batches or [stated]
    if entry.get("step") is not None:
        tensor.stated_step = _number(entry["step"], "step")
        if tensor.stated_step <= 0:
            raise ValueError(f'field "step" must be positive, it is {tensor.stated_step:g}')
    if entry.get("histogram") is not None:
        tensor.histogram = _histogram(entry["histogram"])
    if {"mean", "std", "mad"} <= entry.keys():
        moments = Moments(*(_number(entry[key], key) for key in ("mean", "std", "mad")))
        if tensor.histogram is None or moments != moments_of(tensor):
            tensor.stated_moments = moments
    return tensor


def _histogram(entry: dict[str, Any]) -> Histogram:
    if not isinstance(entry, dict):
        raise TypeError('field "histogram" must be an object')
    bins = entry["bins"]
    if not _is_count(bins):
        raise ValueError(f'field "bins" must be a whole number from 1 to {MOST_BINS}')
    sides = [_counts(entry[side], 2 * bins, side) for side in ("negative", "positive")]
    return Histogram.of_counts(
        bins,
        width=_number(entry["width"], "width"),
        zeros=int(entry["zeros"]),
        negative=sides[0],
        positive=sides[1],
        extrema=None if entry.get("extrema") is None else _pair(entry["extrema"], "extrema"),
    )


def _is_count(bins: object) -> bool:
    return isinstance(bins, int) and not isinstance(bins, bool) and 1 <= bins <= MOST_BINS


def _counts(listed: Sequence[Any], size: int, side: str) -> list[int]:
    if (
        not isinstance(listed, list)
        or len(listed) > size
        or any(isinstance(each, bool) or not isinstance(each, int) for each in listed)
    ):
        raise ValueError(f'field "{side}" must be at most {size} whole numbers')
    return [*listed, *([0] * (size - len(listed)))]


def _pair(value: Any, field: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f'field "{field}" must be pairs of a smallest and a largest value')
    low, high = (_number(each, field) for each in value)
    if low > high:
        raise ValueError(f'field "{field}": {low:g} is above {high:g}')
    return low, high


def _number(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise ValueError(f'field "{field}" must be a finite number, it is {json.dumps(value)}')
    return float(value)


def _sums(entry: dict[str, Any]) -> ChannelSums:
    means = np.array([_number(each, "mean") for each in entry["mean"]])
    # A number for each channel times a count is the sum again: what is lost is far below a float32.
    return ChannelSums(
        int(entry["axis"]), int(entry["count"]), means * int(entry["count"]), np.zeros(len(means))
    )
