"""Defaults of a text file (`.cfg`), and its keys that have no effect here.

Such files come from the users of another tool, whose manual states a default for every key. These hold
wherever a `.cfg` file is read, in place of the defaults of this package, which are better but other ones:
stating a default in the file changes nothing. What that tool does not do at all is left out, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tpuflow.config.quantization import FLOATS
from tpuflow.config.section import translate_keys
from tpuflow.config.spellings import COMPOUNDS

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = ["DEFAULTS", "with_defaults"]

logger = logging.getLogger(__name__)

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "quantize": {
        "activation_bits": 8,
        "activation_mode": "symmetric_full",
        "unsigned": True,
        "weight_bits": 8,
        "weight_mode": "symmetric_restricted",
        "weight_strategy": "extrema",
        "per_channel": False,
        "bias_bits": 32,
        "table_bits": 8,
        # What that tool has no counterpart of.
        "output_dtype": "int8",
        "int16_normalization": False,
        "int16_softmax": False,
        "int16_heads": False,
        "bias_correction": False,
        "headroom_16": 1.0,
        "lenient": True,
    },
    "calibrate": {
        "strategy": "mean",
        "momentum": 0.9,
        "bins": 2048,
        "no_data": "zeros",
        "equalize": False,
        "tune": False,
    },
    "output": {"layer_settings": "values"},
}
"""By section and field."""

NEEDS = {
    "unify_scales_for_concat_threshold": "unify_scales_for_concat",
    "unify_scales_for_concat_max_depth": "unify_scales_for_concat",
}
"""Fields that say something only where another one is true."""


def with_defaults(
    content: Mapping[str, Any],
    fields: Mapping[str, Mapping[str, FieldInfo]],
    source: str,
    tell: Callable[..., None] = logger.warning,
) -> dict[str, Any]:
    """Plain values of a configuration with the defaults beneath, and without what has no effect.

    Args:
        content: By section, in any of their names.
        fields: The fields of every section by name.
        source: The file, for notes.
        tell: Takes notes.
    """
    found = {key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    _samples(found, source, tell)
    _without_effect(found, source, tell)
    for section, defaults in DEFAULTS.items():
        own = found.setdefault(section, {})
        try:
            given = translate_keys(own, fields[section])
        except ValueError:
            continue  # told where the whole is checked
        wide = given.get("dtype") in FLOATS
        if section == "quantize" and wide:
            own = _with_fallback(own, given)
        skipped = {"activation_bits"} if wide or given.get("dtype") else set()
        missing = {key: value for key, value in defaults.items() if key not in given and key not in skipped}
        found[section] = missing | own
    return found


def _with_fallback(own: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A width of codes beside a type of floats is that of the layers which cannot have it."""
    bits = given.get("activation_bits")
    kept = {key: value for key, value in own.items() if key not in {"activation_bits", "q_bits_activation"}}
    if isinstance(bits, int) and bits > 8 and given.get("fallback") is not None:
        kept.pop("trigger_float_op", None)
        kept |= {key: given[key] for key in ("dtype", "weight_only") if key in given} | {"fallback": "int16"}
    return kept


def _samples(found: dict[str, Any], source: str, tell: Callable[..., None]) -> None:
    """One dataset reads the files of calibration and of judging; what lacks its file says nothing."""
    scored, given = found.get("evaluate", {}), found.get("input", {})
    dataset = scored.get("dataset")
    if dataset and ("calibration" in given or "calibration_data" in given):
        given.setdefault("calibration_dataset", dataset)
    data = scored.get("data")
    lacking = {}
    searched = str(scored.get("mixed_precision_auto_search", "0")).partition(",")[0].strip() != "0"
    if not data and not searched:
        lacking = dict.fromkeys(("metric", "label", "dataset"), "data")
    else:
        if not dataset and str(data).endswith(".npy"):
            scored["dataset"] = dataset = "NumpyDataset"
        if not dataset:
            lacking["label"] = "dataset"
    for key, other in lacking.items():
        told = key in scored and not (key == "dataset" and given.get("calibration_dataset"))
        scored.pop(key, None)
        if told:
            tell("%s: %s has no effect without %s", source, key, other)


def _without_effect(found: dict[str, Any], source: str, tell: Callable[..., None]) -> None:
    own = found.get("quantize", {})
    for key, other in NEEDS.items():
        if key in own and own.get(other) is not True:
            del own[key]
    entries = found.get("layers", [])
    winograd = [each for each in (own, *entries) if each.get("with_winograd") is True]
    for each in winograd:
        del each["with_winograd"]
    if winograd:
        tell("%s: with_winograd changes nothing: the machine computes products as they are", source)
    if entries:
        # An entry that says nothing else is none.
        found["layers"] = [each for each in entries if len(each) > 1]
    calibrate = found.get("calibrate", {})
    if isinstance(calibrate.get("save_statistic_info"), bool):
        folder = found.get("output", {}).get("folder") or found.get("output", {}).get("output_dir")
        name = f"{folder}/statistics.json" if folder else "statistics.json"
        calibrate["save_statistic_info"] = name if calibrate["save_statistic_info"] else ""
    for each in (calibrate, *entries):
        for key in ("trim_infinity", "trim_infinity_before_statistic"):
            if isinstance(each.get(key), bool):
                each[key] = "second(-inf,inf)" if each[key] else ""
    for key in COMPOUNDS:
        if own.get(key) == "disable":
            del own[key]
