r"""The text form of a configuration: keys under `[Common]`, exceptions in the same line as the value.

    [Common]
    # weights of 8 bits, but 16 in layers 0 to 3 and in all products
    weight_bits = 8 & <[(0,3)]:16> <[MatMul]:16>
    quantize_method_for_activation = per_tensor_asymmetric
    calibrate.unsigned = true

After the value of the whole network come exceptions, each `<where:value>`: ranges of layers by number
`[(i,j),(k,l)]`, operator types `[Conv,MatMul]`, or a regular expression on names `{blocks\.[0-3]\..*}`. Of
several that fit a layer a range wins over a type, a type over an expression, each over the whole network;
of two of one kind the later one. A key that two sections have is written `section.key`.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from tpuflow.config.models import SECTIONS
from tpuflow.config.section import ConfigError, also, is_per_layer
from tpuflow.config.spellings import COMPOUNDS, PRESETS

__all__ = ["assignments", "parse_cfg"]

KINDS = ("regex", "operators", "ids")
"""Kinds of exceptions, the weakest first."""

EXCEPTIONS = re.compile(r"\s*<\s*(\[[^\]]*\]|\{.*?\})\s*:\s*([^<>]*?)\s*>")
RANGE = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*\)")
WORD = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Key:
    """Where a key of the text stands in the configuration, and whether layers may differ in it."""

    section: str
    name: str
    per_layer: bool
    is_list: bool
    is_text: bool = False


def _keys() -> dict[str, list[Key]]:
    """Every key of the text by each of its names, foreign ones included."""
    found: dict[str, list[Key]] = {}
    for section, model in SECTIONS.items():
        if section == "layers":
            continue
        for name, field in model.model_fields.items():
            listed = any(
                get_origin(part) is tuple for part in (field.annotation, *get_args(field.annotation))
            )
            kinds = {field.annotation, *get_args(field.annotation)}
            text = not listed and str in kinds and kinds.isdisjoint({int, float})
            key = Key(section, name, is_per_layer(field), listed, text)
            for spelling in (name, f"{section}.{name}", *also(field)):
                found.setdefault(spelling, []).append(key)
    for name in (*COMPOUNDS, *PRESETS):
        found[name] = [Key("quantize", name, per_layer=True, is_list=False)]
    return found


def parse_cfg(text: str, source: str) -> dict[str, Any]:
    """The text as nested plain values, such as `Config.parse` takes.

    Besides keys of the configuration there may be `opt_config`, the file of settings by layer.

    Raises:
        ConfigError: Naming line and key.
    """
    known = _keys()
    content: dict[str, Any] = {}
    exceptions: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    seen: dict[tuple[str, str], int] = {}
    for number, name, written in assignments(text, source):
        where = f"{source}:{number}"
        if name == "opt_config":
            content[name] = written
            continue
        key = _known_key(name, known, where)
        if (before := seen.setdefault((key.section, key.name), number)) != number:
            raise ConfigError(f"{where}: {name} is given in line {before} already")
        value, rest = written, ""
        if match := re.search(r"&\s*(?=<)", written):
            value, rest = written[: match.start()].strip(), written[match.end() :]
            if not key.per_layer:
                raise ConfigError(f"{where}: {name} holds for the whole network, layers cannot differ in it")
        elif key.per_layer and (behind := re.search(r"&\s*\[.*", written)):
            raise ConfigError(
                f"{where}: {name}: write & <[(0,3)]:value> or & <[Conv]:value>, not {behind[0]}"
            )
        if value:
            content.setdefault(key.section, {})[key.name] = _value(value, key)
        elif not rest:
            raise ConfigError(f"{where}: {name} has no value")
        for kind, selected, exception in _exceptions(rest, f"{where}: {name}"):
            exceptions[kind].append({kind: selected, key.name: _value(exception, key)})
    entries = [entry for kind in KINDS for entry in exceptions[kind]]
    return content | ({"layers": entries} if entries else {})


def assignments(text: str, source: str) -> Iterator[tuple[int, str, str]]:
    """Line number, key and value of every assignment under `[Common]`."""
    inside = False
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            if line != "[Common]":
                raise ConfigError(f"{source}:{number}: unknown section {line}: keys belong to [Common]")
            inside = True
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not WORD.fullmatch(name):
            raise ConfigError(f"{source}:{number}: write KEY = VALUE, not {line}")
        if not inside:
            raise ConfigError(f"{source}:{number}: {name} stands before [Common]")
        yield number, name, value.partition(" #")[0].strip()


def _known_key(name: str, known: dict[str, list[Key]], where: str) -> Key:
    found = known.get(name, [])
    if len(found) > 1:
        choices = " or ".join(f"{key.section}.{key.name}" for key in found)
        raise ConfigError(f"{where}: {name} may be several keys: write {choices}")
    if not found:
        near = difflib.get_close_matches(name, [*known, "opt_config"], n=1, cutoff=0.5)
        hint = f'did you mean "{near[0]}"?' if near else "tpuflow fields lists all keys"
        raise ConfigError(f'{where}: unknown key "{name}", {hint}')
    return found[0]


def _exceptions(text: str, where: str) -> Iterator[tuple[str, Any, str]]:
    """Kind, selection and value of every `<where:value>`."""
    position = 0
    while text[position:].strip():
        match = EXCEPTIONS.match(text, position)
        if match is None:
            wrong = text[position:].strip()
            raise ConfigError(
                f"{where}: write <[(0,3)]:value>, <[Conv]:value> or <{{name}}:value>, not {wrong}"
            )
        position = match.end()
        selected, value = match[1], match[2]
        if not value:
            raise ConfigError(f"{where}: {selected} has no value")
        yield *_split_selection(selected, where), value


def _split_selection(text: str, where: str) -> tuple[str, Any]:
    inner = text[1:-1].strip()
    if text[0] == "{" and inner:
        return "regex", inner
    if "(" in inner:
        ranges = [(int(low), int(high)) for low, high in RANGE.findall(inner)]
        if RANGE.sub("", inner).replace(",", "").strip():
            raise ConfigError(f"{where}: {text} is not a list of ranges such as [(0,3),(7,7)]")
        return "ids", ranges
    names = [name.strip() for name in inner.split(",")]
    if not all(WORD.fullmatch(name) for name in names):
        raise ConfigError(f"{where}: {text} is not a list of operator types such as [Conv,MatMul]")
    return "operators", names


def _value(text: str, key: Key) -> Any:
    """A word as a plain value: a number, a truth value, a list, else the text itself; quotes do not count."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if key.is_text:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = [word.strip() for word in text.split(",")] if key.is_list and "," in text else text
    return [value] if key.is_list and not isinstance(value, list | tuple) else value
