"""Text, JSON documents and arrays in files that are complete or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.io.files.atomic import replace_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["json_text", "write_arrays", "write_json", "write_text"]

_ENCODE = json.JSONEncoder(allow_nan=False).encode


def write_text(path: str | Path, text: str) -> None:
    """Writes UTF-8 text.

    Raises:
        FileError: The file cannot be written.
    """
    with replace_atomically(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: object) -> None:
    """Writes a JSON document, two spaces a level; infinite numbers and NaN become null, which JSON has.

    Raises:
        FileError: The file cannot be written.
    """
    write_text(path, json_text(content))


def json_text(content: object) -> str:
    """The text of a JSON document as `write_json` writes it."""
    return "".join(_indent(content, "\n")) + "\n"


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes arrays as an uncompressed `.npz`; text as text of fixed length.

    Raises:
        FileError: The file cannot be written.
    """
    import numpy as np  # noqa: PLC0415 - the command line starts without it

    with replace_atomically(path) as beside, beside.open("wb") as stream:
        plain = {
            name: array.astype(str) if array.dtype == object else array for name, array in arrays.items()
        }
        np.savez(stream, allow_pickle=False, **plain)


def _indent(content: Any, line: str) -> Iterator[str]:
    """The parts of a document; numbers of a list stand on one line, `line` begins a new one."""
    if isinstance(content, dict) and content:
        begin = "{"
        for key, value in content.items():
            yield f"{begin}{line}  {_ENCODE(str(key))}: "
            yield from _indent(value, line + "  ")
            begin = ","
        yield line + "}"
    elif isinstance(content, list | tuple) and any(
        isinstance(value, dict | list | tuple) for value in content
    ):
        begin = "["
        for value in content:
            yield f"{begin}{line}  "
            yield from _indent(value, line + "  ")
            begin = ","
        yield line + "]"
    else:
        try:
            yield _ENCODE(content)
        except ValueError:
            yield _ENCODE(_finite(content))


def _finite(content: Any) -> Any:
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not abs(content) < float("inf") else content
