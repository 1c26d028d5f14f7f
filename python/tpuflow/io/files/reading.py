"""Text, JSON and TOML files as strangers made them: whatever is wrong is one error that names the file."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuflow.errors import TpuflowError

__all__ = ["parse_json", "parse_toml", "read_text"]

DEEPEST = 100
"""Levels a document may be nested: more than any form of file has, far from what overflows a stack."""
TOML_TEXT = re.compile(
    r"""'''.*?(?:'''|\Z)|\"{3}(?:\\.|[^\\])*?(?:\"{3}|\Z)|'[^'\n]*'?|"(?:\\.|[^"\\\n])*"?|\#[^\n]*""",
    re.DOTALL,
)
"""Strings and comments of TOML, also those without an end, so that each character is read once."""


def read_text(path: str | Path, error: type[TpuflowError]) -> str:
    """The text of a file.

    Raises:
        TpuflowError: As `error`: it cannot be read, or is not text in UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as reason:
        raise error(f"{path}: cannot be read: {(reason.strerror or str(reason)).lower()}") from None
    except UnicodeDecodeError:
        raise error(f"{path}: not a text file: not UTF-8") from None
    except ValueError as reason:  # a null byte in the name
        raise error(f"{path}: cannot be read: {reason}") from None


def parse_json(text: str, source: str | Path, error: type[TpuflowError]) -> Any:
    """The content of a JSON document; `source` names it in errors.

    Raises:
        TpuflowError: As `error`: it is not JSON, or nested too deep.
    """
    try:
        content = _require_shallow(json.loads(text))
        if "\\ud" in text or "\\uD" in text:  # halves of characters, which no other text can hold
            json.dumps(content, ensure_ascii=False).encode()
        return content
    except (ValueError, RecursionError) as reason:
        raise error(f"{source}: not a JSON file: {_reason(reason)}") from None


def parse_toml(text: str, source: str | Path, error: type[TpuflowError]) -> dict[str, Any]:
    """The content of a TOML document; `source` names it in errors.

    Raises:
        TpuflowError: As `error`: it is not TOML, or nested too deep.
    """
    try:
        # Parsing takes time with the square of a key's parts: minutes for a key of 100 kB.
        if any(part.count(".") > DEEPEST for part in re.split(r"[\n=,{}\[\]]", TOML_TEXT.sub("", text))):
            raise RecursionError
        found: dict[str, Any] = _require_shallow(tomllib.loads(text))
    except (ValueError, RecursionError) as reason:
        raise error(f"{source}: not a TOML file: {_reason(reason)}") from None
    return found


def _require_shallow(content: Any) -> Any:
    """The content, unless it is nested too deep."""
    level = [content]
    for _ in range(DEEPEST):
        level = [
            value
            for each in level
            if isinstance(each, dict | list)
            for value in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return content
    raise RecursionError


def _reason(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
