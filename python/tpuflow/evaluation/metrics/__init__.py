"""Task metrics of outputs, by labels or against the float network.

`METRICS` names them; `metric_list` reads words such as `top1,voc_map(0.5,2007)`. A new metric is one function
from the words of its arguments to a `Metric`, and one entry here or in a plugin (see `tpuflow.plugins`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence

from tpuflow.evaluation.metrics.classification import agreement, f1, top
from tpuflow.evaluation.metrics.detection import coco, detection_f1, voc
from tpuflow.evaluation.metrics.metric import Metric, MetricError
from tpuflow.evaluation.metrics.segmentation import mean_iou, mean_pixel_accuracy, pixel_accuracy
from tpuflow.evaluation.metrics.sequences import word_error_rate
from tpuflow.evaluation.metrics.values import cosine, euclid, max_error, psnr, rmse

__all__ = ["ALIASES", "METRICS", "Metric", "MetricError", "metric", "metric_list", "metric_text"]

METRICS: dict[str, Callable[..., Metric]] = {
    "top1": lambda: top("1"),
    "top5": lambda: top("5"),
    "top": top,
    "f1": f1,
    "coco_map": coco,
    "voc_map": voc,
    "f1_boxes": detection_f1,
    "miou": mean_iou,
    "pixel_accuracy": pixel_accuracy,
    "mpa": mean_pixel_accuracy,
    "wer": word_error_rate,
    "rmse": rmse,
    "psnr": psnr,
    "max_error": max_error,
    "cosine": cosine,
    "euclid": euclid,
    "agreement": agreement,
}
"""By name: from the words of the arguments to the metric."""

ALIASES: Mapping[str, str] = {
    "TopKMetric": "top",
    "F1Metric": "f1",
    "mAPMetric": "voc_map",
    "mIoUMetric": "miou",
    "WERMetric": "wer",
    "RMSEMetric": "rmse",
    "PSNRMetric": "psnr",
    "CosDistanceMetric": "cosine",
    "MaxAbsErrorMetric": "max_error",
}
"""Names that configurations of other tools use."""

WORD = re.compile(r"\s*([^\s,()]+)\s*(?:\(([^()]*)\))?\s*")


def metric_text(name: str, words: Sequence[str]) -> str:
    """A metric with its arguments as it is written in lists."""
    return f"{name}({','.join(words)})" if words else name


def metric_list(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Names and arguments of a list; commas within parentheses separate arguments.

    Raises:
        MetricError: It is no such list.
    """
    found = []
    position = 0
    while True:
        match = WORD.match(text, position)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            raise MetricError(f'"{text}" is not a list of metrics such as top1,voc_map(0.5,2007)')
        words = tuple(word.strip() for word in match[2].split(",")) if match[2] and match[2].strip() else ()
        found.append((match[1], words))
        if match.end() == len(text):
            return found
        position = match.end() + 1


def metric(
    name: str, arguments: tuple[str, ...] = (), more: Mapping[str, Callable[..., Metric]] = {}
) -> Metric:
    """A metric by its name; `more` are those of plugins, which come before ours.

    Raises:
        MetricError: There is none of that name, or it takes other arguments.
    """
    known = {**METRICS, **more}
    small = {each.lower(): each for each in (*ALIASES, *known)}
    name = small.get(name.lower(), name)
    maker = known.get(name) or known.get(ALIASES.get(name, ""))
    if maker is None:
        raise MetricError(f'no metric is called "{name}": choose one of {", ".join(known)}')
    try:
        inspect.signature(maker).bind(*arguments)
    except TypeError:
        raise MetricError(
            f"{name} takes the arguments {inspect.signature(maker)}, not ({', '.join(arguments)})".replace(
                "'", ""
            )
        ) from None
    try:
        return maker(*arguments)
    except MetricError as error:
        raise MetricError(f"{name}: {error}") from None
