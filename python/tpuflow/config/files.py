"""Configurations in files: TOML, the text form (`cfg`), and settings by layer as JSON or as a table.

Later files, and what they name as `opt_config`, win over earlier ones; their entries of `layers` come after.
Beneath a text form lie the defaults of `published`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpuflow.config import published
from tpuflow.config.cfg import assignments, parse_cfg
from tpuflow.config.models import SECTIONS, Config, LayerConfig
from tpuflow.config.section import ConfigError
from tpuflow.config.table import parse_table
from tpuflow.io.files import parse_json, parse_toml, read_text

__all__ = ["SHOWN", "load_config"]

SHOWN = "just_for_display"
"""Fields of a file of settings by layer that are for readers and not read back."""

WHOLE = frozenset({"q_mode_activation", "q_bits_activation", "q_strategy_activation"})
"""Keys by which an entry of such a file states all values (`layer_settings = "values"`)."""

RESTATED = "restated"
"""Where such entries stand while files are read."""


def load_config(*paths: Path | str) -> Config:
    """Reads files by their suffixes: `.json` by layer, `.cfg` as text, `.table` as a table, others as TOML.

    Raises:
        ConfigError: If one cannot be read, is not of its kind, or holds unknown keys or impossible values.
    """
    content: dict[str, Any] = {}
    for path in map(Path, paths):
        _add(content, path)
    restated = content.pop(RESTATED, [])
    source = ", ".join(map(str, paths))
    if any(path.suffix == ".cfg" for path in map(Path, paths)):
        fields = {name: model.model_fields for name, model in SECTIONS.items()}
        content = published.with_defaults(content, fields, source)
    try:
        config = Config.parse(content, source)
    except ConfigError:
        for path in map(Path, paths):
            if path.suffix == ".cfg":
                _check_lines(path)
        raise
    if not restated:
        return config
    entries = Config.parse({"layers": restated}, source).layers
    changes = [change for entry in entries if (change := _changes(entry, config)) is not None]
    return config.model_copy(update={"layers": (*config.layers, *changes)})


def _check_lines(path: Path) -> None:
    """Names the first line of a text file that is wrong by itself.

    Raises:
        ConfigError: There is one.
    """
    fields = {name: model.model_fields for name, model in SECTIONS.items()}
    for number, name, value in assignments(read_text(path, ConfigError), str(path)):
        line = parse_cfg(f"[Common]\n{name} = {value}", str(path))
        line.pop("opt_config", None)
        alone = published.with_defaults(line, fields, str(path), tell=lambda *_: None)
        Config.parse(alone, f"{path}:{number}: {name}")


def _changes(entry: LayerConfig, config: Config) -> LayerConfig | None:
    """The values in which an entry differs from those that hold for a layer; None if in none."""
    names = entry.names or ()
    quantize = config.quantization(*names)
    holds = config.calibration(*names).model_dump() | quantize.model_dump()
    holds |= {"activation_bits": quantize.grid_bits, "weight_bits": quantize.weight_width}
    asked = {key: value for key, value in entry.overrides().items() if value != holds[key]}
    return LayerConfig.model_validate({"names": names, **asked}) if asked else None


def _add(content: dict[str, Any], path: Path) -> None:
    """Lays the content of a file over what is there."""
    found = _read(path)
    by_layer = found.pop("opt_config", None)
    for key, value in found.items():
        if key in {"layers", RESTATED} and isinstance(value, list):
            content[key] = [*content.get(key, []), *value]
        elif isinstance(value, Mapping) and isinstance(content.get(key), Mapping):
            content[key] = {**content[key], **value}
        else:
            content[key] = value
    if by_layer is not None:
        _add(content, path.parent / str(by_layer))


def _read(path: Path) -> dict[str, Any]:
    text = read_text(path, ConfigError)
    if path.suffix == ".cfg":
        return parse_cfg(text, str(path))
    if path.suffix == ".table":
        return parse_table(text, str(path))
    if path.suffix == ".json":
        return _by_layer(parse_json(text, path, ConfigError), path)
    return parse_toml(text, path, ConfigError)


def _by_layer(found: Any, path: Path) -> dict[str, Any]:
    """Settings by layer name as entries of `layers`; a layer that sets nothing has none.

    Entries of all values that hold stand apart: of these only what differs from them is asked for.
    """
    if not isinstance(found, Mapping) or not all(isinstance(each, Mapping) for each in found.values()):
        raise ConfigError(f"{path}: write one object of settings per layer name")
    entries: dict[str, list[dict[str, Any]]] = {"layers": [], RESTATED: []}
    for name, settings in found.items():
        own = {key: value for key, value in settings.items() if key != SHOWN and value is not None}
        if own:
            kind = RESTATED if own.keys() >= WHOLE else "layers"
            entries[kind].append({"names": [name], **own})
    return {key: found for key, found in entries.items() if found or key == "layers"}
