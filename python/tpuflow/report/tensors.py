"""Single tensors as rows of a page: similarity of levels, distribution, thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuflow.report.histograms import TensorHistogram

__all__ = ["similarity_summaries", "tensor_rows"]

Json = dict[str, Any]
BARS = 96


def tensor_rows(
    comparisons: Sequence[Mapping[str, Any]], histograms: Sequence[TensorHistogram] = ()
) -> list[Json]:
    """One row per tensor; of what is not known a row has no entry.

    Args:
        comparisons: `Comparison.to_json()` of each run of the page, in which null stands for what is no
            finite number; a row's measures are a list in this order, `compared`.
        histograms: Distributions of calibrated tensors.
    """
    rows: dict[str, Json] = {}
    for number, comparison in enumerate(comparisons):
        for tensor in comparison["tensors"]:
            row = rows.setdefault(tensor["name"], {"name": tensor["name"]})
            if tensor["normalized"] is not None:
                row.setdefault("imported", _number(tensor["normalized"]["cosine"]))
            measures = row.setdefault("compared", [{} for _ in comparisons])
            measures[number] = _measures(tensor)
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


def similarity_summaries(rows: Sequence[Json]) -> list[Json]:
    """The main figures of each comparison.

    Returns:
        For each comparison `count` of tensors compared with floats; `cosine`, `euclid` and `sqnr`: the lowest
        number and the tensor that has it, None where every tensor equals the float network's; `checked`
        tensors of graph and program, and `different` ones of these.
    """
    known = [(row["name"], row["compared"]) for row in rows if "compared" in row]
    count = len(known[0][1]) if known else 0
    return [_summary([(name, branches[number]) for name, branches in known]) for number in range(count)]


def _summary(found: Sequence[tuple[str, Json]]) -> Json:
    compared = [(name, measures) for name, measures in found if "cosine" in measures]

    def lowest(key: str) -> tuple[float | str, str] | None:
        values = [(measures[key], name) for name, measures in compared if measures[key] != "equal"]
        # What is no number is worse than any.
        return min(values, key=lambda pair: (not isinstance(pair[0], str), pair[0]), default=None)

    checked = [measures["equal"] for _, measures in found if "equal" in measures]
    return {
        "count": len(compared),
        **{key: lowest(key) for key in ("cosine", "euclid", "sqnr")},
        "checked": len(checked),
        "different": checked.count(False),
    }


def _measures(tensor: Mapping[str, Any]) -> Json:
    found: Json = {}
    if tensor["quantized"] is not None:
        pair = tensor["quantized"]
        alike = pair["sqnr"] is None and pair["max_error"] == 0
        found = {
            "cosine": _number(pair["cosine"]),
            "euclid": _number(pair["euclid"]),
            "sqnr": "equal" if alike else _number(pair["sqnr"]),
            "error": _number(pair["max_error"]),
        }
    return found if tensor["equal"] is None else found | {"equal": tensor["equal"]}


def _number(value: float | None) -> float | str:
    return "NaN" if value is None or not abs(value) < float("inf") else _short(value)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
