"""What is known of single tensors, as rows of a page: similarity of levels, distribution, thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuflow.report.histograms import TensorHistogram

__all__ = ["tensor_rows"]

Json = dict[str, Any]
BARS = 96


def tensor_rows(
    comparison: Mapping[str, Any] | None, histograms: Sequence[TensorHistogram] = ()
) -> list[Json]:
    """One row per tensor; of what is not known a row has no entry.

    Args:
        comparison: `Comparison.to_json()`, in which null stands for what is no finite number.
        histograms: Distributions of calibrated tensors.
    """
    rows: dict[str, Json] = {}
    for tensor in [] if comparison is None else comparison["tensors"]:
        row: Json = {"name": tensor["name"]}
        if tensor["normalized"] is not None:
            row["imported"] = _number(tensor["normalized"]["cosine"])
        if tensor["quantized"] is not None:
            found = tensor["quantized"]
            row |= {"cosine": _number(found["cosine"]), "euclid": _number(found["euclid"])}
            alike = found["sqnr"] is None and found["max_error"] == 0
            row |= {
                "sqnr": "equal" if alike else _number(found["sqnr"]),
                "error": _number(found["max_error"]),
            }
        if tensor["equal"] is not None:
            row["equal"] = tensor["equal"]
        rows[tensor["name"]] = row
    for each in histograms:
        rows.setdefault(each.name, {"name": each.name})
        rows[each.name] |= {
            "path": each.path(BARS),
            "marks": [round(each.place(value), 4) for value in each.thresholds],
            "low": _short(each.thresholds[0]),
            "high": _short(each.thresholds[1]),
            "least": _short(each.extrema[0]),
            "most": _short(each.extrema[1]),
            "beyond": each.beyond,
            "count": each.count,
        }
    return list(rows.values())


def _number(value: float | None) -> float | str:
    return "NaN" if value is None or not abs(value) < float("inf") else _short(value)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
