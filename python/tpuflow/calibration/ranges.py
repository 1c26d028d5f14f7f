"""Ranges of tensors, and the file they are kept in.

```json
{
  "format": 1,
  "samples": 64,
  "strategy": "mse",
  "tensors": {
    "conv1_out": {"min": -2.5, "max": 3.75, "axis": null},
    "fc.weight": {"min": [-0.5, -0.25], "max": [0.5, 0.125], "axis": 0}
  },
  "means": {
    "conv1_out": {"axis": 1, "mean": [0.25, 0.5]}
  },
  "errors": {
    "logits": {"axis": 1, "error": [0.125, -0.0625]}
  },
  "errors_of": "int8, 8-bit weights, 1f3a5b7d"
}
```

The file is meant to be edited by hand: one tensor per line, and whatever is wrong is told with file, tensor
and field. A tensor may have a "margin" (`Range`). `samples` and `strategy` say where the numbers come from
and may be missing, and so may `means`, the averages by channel of what linear layers read: without them
biases are not corrected. `errors` are what the network in integers adds to sums of its last layers on
average, which their biases correct, and `errors_of` says which network that is: errors of another are left
alone. `factors`, written like means with a list "factor", say what channels of the network were divided by
before it was calibrated.
A file whose name ends in `.table` is a calibration table (`table.py`): ranges alone, one per tensor.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tpuflow.calibration.table import from_table, to_table
from tpuflow.config import fingerprint
from tpuflow.errors import RangesError
from tpuflow.io.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuflow.config import Config

__all__ = ["Means", "Range", "Ranges"]

FORMAT = 1
TABLE = ".table"
LARGEST_MARGIN = 8.0
_LARGEST = 3.4028234663852886e38


@dataclass(frozen=True)
class Range:
    """Smallest and largest value a tensor is expected to take; `min <= 0 <= max`, finite, within float32.

    Attributes:
        min: One number, or one per index of `axis`.
        max: Likewise.
        axis: The axis ranges differ along; None for one range of the whole tensor.
        margin: How many times as far beyond the range as configured (`headroom_16`) a 16-bit grid reaches.

    Raises:
        RangesError: The numbers are not such a range; the text names the field.
    """

    min: float | tuple[float, ...]
    max: float | tuple[float, ...]
    axis: int | None = None
    margin: float = dataclass_field(default=1.0, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.min, tuple) != isinstance(self.max, tuple):
            raise RangesError('fields "min" and "max" must both be numbers or both be lists')
        if isinstance(self.min, tuple) and isinstance(self.max, tuple):
            if self.axis is None:
                raise RangesError('field "axis" is null, lists of "min" and "max" need an axis')
            if len(self.min) != len(self.max) or not self.min:
                raise RangesError(
                    f'fields "min" and "max" have {len(self.min)} and {len(self.max)} entries, '
                    "they need the same number, at least one"
                )
        elif self.axis is not None:
            raise RangesError(f'field "axis" is {self.axis}, single numbers "min" and "max" need null')
        if not 0 <= self.margin <= LARGEST_MARGIN:
            raise RangesError(f'field "margin" is {self.margin}, it must be from 0 to {LARGEST_MARGIN:g}')
        if self.axis is not None and self.axis < 0:
            raise RangesError(f'field "axis" is {self.axis}, it must not be negative')
        for low, high in self.pairs:
            _check_pair(low, high)

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """`(min, max)` of every channel, or the only one."""
        if isinstance(self.min, tuple) and isinstance(self.max, tuple):
            return tuple(zip(self.min, self.max, strict=True))
        assert isinstance(self.min, float | int)
        assert isinstance(self.max, float | int)
        return ((self.min, self.max),)


def _check_pair(low: float, high: float) -> None:
    for field, value in (("min", low), ("max", high)):
        if math.isnan(value):
            raise RangesError(f'field "{field}" is NaN')
        if abs(value) > _LARGEST:
            raise RangesError(f'field "{field}" is {value:g}, beyond the largest float32')
    if low > high:
        raise RangesError(f'field "min" is {low:g}, above "max" {high:g}')
    if low > 0:
        raise RangesError(f'field "min" is {low:g}, a range contains 0')
    if high < 0:
        raise RangesError(f'field "max" is {high:g}, a range contains 0')


@dataclass(frozen=True)
class Means:
    """Average of every channel of a tensor.

    Attributes:
        axis: The axis of channels.
        values: One number per channel.
    """

    axis: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class Ranges:
    """The range of every calibrated tensor.

    Attributes:
        tensors: By tensor name, in the order of the graph.
        samples: Number of samples really used; None if unknown.
        strategy: Name of the strategy; None if unknown or edited.
        means: Averages by channel of what linear layers read, by tensor name.
        factors: What channels were divided by, by tensor name: the ranges are those of what is left.
        errors: Mean error by channel of last layers' sums, by tensor name, to be corrected.
        errors_of: The fingerprint of the configuration that made the network with these errors.
    """

    tensors: Mapping[str, Range]
    samples: int | None = None
    strategy: str | None = None
    means: Mapping[str, Means] = dataclass_field(default_factory=dict)
    factors: Mapping[str, Means] = dataclass_field(default_factory=dict)
    errors: Mapping[str, Means] = dataclass_field(default_factory=dict)
    errors_of: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))
        object.__setattr__(self, "means", MappingProxyType(dict(self.means)))
        object.__setattr__(self, "factors", MappingProxyType(dict(self.factors)))
        object.__setattr__(self, "errors", MappingProxyType(dict(self.errors)))

    def __getstate__(self) -> dict[str, object]:
        views = {key: dict(own) for key, own in self.__dict__.items() if isinstance(own, MappingProxyType)}
        return self.__dict__ | views

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def without_foreign_errors(self, config: Config, remark: Callable[[str], None]) -> Ranges:
        """The ranges without errors where those are of another network than a configuration makes.

        Args:
            config: What the ranges are for.
            remark: Told what was left out and why.
        """
        own = fingerprint(config)
        if not self.errors or self.errors_of == own:
            return self
        remark(
            f"mean errors kept with the ranges are those of another network ({self.errors_of or 'unknown'}), "
            f"this one is {own}: they are not corrected, calibrate anew to have its own"
        )
        return replace(self, errors={}, errors_of=None)

    @property
    def thresholds(self) -> dict[str, float]:
        """The largest magnitude of every range, by tensor name: all a symmetric grid must know."""
        return {
            name: max(max(-low, high) for low, high in found.pairs) for name, found in self.tensors.items()
        }

    @classmethod
    def load(cls, path: str | Path) -> Ranges:
        """Reads a file written by `save`, or by hand.

        Raises:
            RangesError: The file is missing or wrong; the text names file, tensor and field.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise RangesError(f"{path}: not a ranges file: not UTF-8 text") from None
        except OSError as error:
            raise RangesError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
        if path.suffix == TABLE:
            return cls({name: Range(*pair) for name, pair in from_table(text, str(path)).items()})
        return cls.from_json(text, source=str(path))

    @classmethod
    def from_json(cls, text: str, source: str = "ranges") -> Ranges:
        """Reads the JSON text; `source` names it in errors.

        Raises:
            RangesError: As for `load`.
        """
        try:
            document = json.loads(text, object_pairs_hook=_unique)
        except json.JSONDecodeError as error:
            raise RangesError(
                f"{source}: not JSON: line {error.lineno}, column {error.colno}: {error.msg.lower()}"
            ) from None
        except RecursionError:
            raise RangesError(f"{source}: not a ranges file: nested too deep") from None
        except RangesError as error:
            raise RangesError(f"{source}: {error}") from None
        return _parse(document, source)

    def to_json(self) -> str:
        """The text of the file; the same ranges give the same text."""
        head: dict[str, Any] = {"format": FORMAT}
        if self.samples is not None:
            head["samples"] = self.samples
        if self.strategy is not None:
            head["strategy"] = self.strategy
        lines = [f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()]
        rows = [
            f"    {json.dumps(name)}: " + json.dumps(_fields(entry), allow_nan=False)
            for name, entry in self.tensors.items()
        ]
        tail = ""
        for key, word, entries in (
            ("means", "mean", self.means),
            ("factors", "factor", self.factors),
            ("errors", "error", self.errors),
        ):
            lists = [
                f"    {json.dumps(name)}: "
                + json.dumps({"axis": entry.axis, word: entry.values}, allow_nan=False)
                for name, entry in entries.items()
            ]
            tail += f',\n  "{key}": {_block(lists)}' if lists else ""
        if self.errors and self.errors_of is not None:
            tail += f',\n  "errors_of": {json.dumps(self.errors_of)}'
        return "{\n" + "".join(lines) + f'  "tensors": {_block(rows)}{tail}\n}}\n'

    def save(self, path: str | Path) -> None:
        """Writes the file.

        Raises:
            FileError: The file cannot be written.
            RangesError: They cannot be said in a table.
        """
        path = Path(path)
        write_text(path, self._table(path) if path.suffix == TABLE else self.to_json())

    def _table(self, path: Path) -> str:
        if self.factors:
            raise RangesError(
                f"{path}: channels were divided before these ranges were found, which a table cannot say: "
                'write .json, or calibrate with "equalize = false"'
            )
        for name, entry in self.tensors.items():
            if entry.axis is not None:
                raise RangesError(
                    f'{path}: tensor "{name}" has ranges along an axis, a table has one each: write .json'
                )
        return to_table({name: next(iter(entry.pairs)) for name, entry in self.tensors.items()})


def _fields(entry: Range) -> dict[str, Any]:
    margin = {} if entry.margin == 1.0 else {"margin": entry.margin}
    return {"min": entry.min, "max": entry.max, "axis": entry.axis} | margin


def _block(rows: list[str]) -> str:
    return "{\n" + ",\n".join(rows) + "\n  }" if rows else "{}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise RangesError(f'"{key}" occurs twice')
        entries[key] = value
    return entries


def _of_thresholds(document: dict[str, Any], source: str) -> Ranges:
    """Ranges around zero from magnitudes by tensor name."""
    try:
        return Ranges({name: Range(-abs(float(each)), abs(float(each))) for name, each in document.items()})
    except RangesError as error:
        raise RangesError(f"{source}: {error}") from None


def _parse(document: Any, source: str) -> Ranges:
    if not isinstance(document, dict):
        raise RangesError(f"{source}: not a ranges file: an object is needed, this is {_kind(document)}")
    if document and all(isinstance(each, int | float) and key != "format" for key, each in document.items()):
        return _of_thresholds(document, source)
    for key in document:
        if key not in ("format", "samples", "strategy", "tensors", "means", "factors", "errors", "errors_of"):
            raise RangesError(f'{source}: unknown key "{key}"')
    if "format" not in document or "tensors" not in document:
        missing = "format" if "format" not in document else "tensors"
        raise RangesError(f'{source}: key "{missing}" is missing')
    if isinstance(document["format"], bool) or document["format"] != FORMAT:
        raise RangesError(
            f'{source}: key "format" is {json.dumps(document["format"])}, {FORMAT} is understood'
        )
    samples, strategy = document.get("samples"), document.get("strategy")
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise RangesError(f'{source}: key "samples" must be a positive number, it is {_kind(samples)}')
    if strategy is not None and not isinstance(strategy, str):
        raise RangesError(f'{source}: key "strategy" must be text, it is {_kind(strategy)}')
    errors_of = document.get("errors_of")
    if errors_of is not None and not isinstance(errors_of, str):
        raise RangesError(f'{source}: key "errors_of" must be text, it is {_kind(errors_of)}')
    tensors = document["tensors"]
    if not isinstance(tensors, dict):
        raise RangesError(f'{source}: key "tensors" must be an object, it is {_kind(tensors)}')
    parsed = {}
    for name, entry in tensors.items():
        try:
            parsed[name] = _parse_range(entry)
        except RangesError as error:
            raise RangesError(f'{source}: tensor "{name}": {error}') from None
    means = _parse_means(document.get("means", {}), source, "means", "mean")
    factors = _parse_means(document.get("factors", {}), source, "factors", "factor")
    errors = _parse_means(document.get("errors", {}), source, "errors", "error")
    if any(value <= 0 for each in factors.values() for value in each.values):
        raise RangesError(f'{source}: key "factors" must hold positive numbers')
    return Ranges(parsed, samples, strategy, means, factors, errors, errors_of)


def _parse_means(entries: Any, source: str, key: str, word: str) -> dict[str, Means]:
    if not isinstance(entries, dict):
        raise RangesError(f'{source}: key "{key}" must be an object, it is {_kind(entries)}')
    found = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict) or entry.keys() != {"axis", word}:
            raise RangesError(f'{source}: {key} of "{name}": an object with "axis" and "{word}" is needed')
        axis, mean = entry["axis"], entry[word]
        if isinstance(axis, bool) or not isinstance(axis, int) or axis < 0:
            raise RangesError(f'{source}: {key} of "{name}": field "axis" must be a whole number')
        if not isinstance(mean, list) or not mean:
            raise RangesError(f'{source}: {key} of "{name}": field "{word}" must be a list of numbers')
        try:
            found[name] = Means(
                axis, tuple(_parse_number(item, f"{word}[{at}]") for at, item in enumerate(mean))
            )
        except RangesError as error:
            raise RangesError(f'{source}: {key} of "{name}": {error}') from None
    return found


def _parse_range(entry: Any) -> Range:
    if not isinstance(entry, dict):
        raise RangesError(f'an object with "min", "max" and "axis" is needed, this is {_kind(entry)}')
    for key in entry:
        if key not in ("min", "max", "axis", "margin"):
            raise RangesError(f'unknown field "{key}"')
    for key in ("min", "max"):
        if key not in entry:
            raise RangesError(f'field "{key}" is missing')
    axis = entry.get("axis")
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
        raise RangesError(f'field "axis" must be a whole number or null, it is {_kind(axis)}')
    margin = _parse_number(entry.get("margin", 1.0), "margin")
    return Range(_parse_bound(entry["min"], "min"), _parse_bound(entry["max"], "max"), axis, margin)


def _parse_bound(value: Any, field: str) -> float | tuple[float, ...]:
    if isinstance(value, list):
        return tuple(_parse_number(item, f"{field}[{at}]") for at, item in enumerate(value))
    return _parse_number(value, field)


def _parse_number(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise RangesError(f'field "{field}" must be a number, it is {_kind(value)}')
    try:
        return float(value)
    except OverflowError:
        raise RangesError(f'field "{field}" is beyond the largest float32') from None


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    names = {dict: "an object", list: "a list", str: "text", int: str(value)[:20], float: str(value)}
    return names[type(value)]
