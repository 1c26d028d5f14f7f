"""Text to tokens and back: by a file of the `tokenizers` library, a list of characters, or code points."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from tpuflow.errors import FileError, SampleError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Tokenizer", "open_tokenizer"]


class Tokenizer(Protocol):
    """Text to tokens and back."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""


class _CodePoints:
    def encode(self, text: str) -> list[int]:
        """Every character's code point."""
        return [ord(character) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """The characters of code points."""
        return "".join(map(chr, tokens))


@dataclass(frozen=True)
class _Characters:
    characters: tuple[str, ...]

    def encode(self, text: str) -> list[int]:
        """Every character's place in the list."""
        places = {character: at for at, character in enumerate(self.characters)}
        missing = [character for character in text if character not in places]
        if missing:
            raise SampleError(
                f'the text holds "{missing[0]}", which is none of the {len(places)} characters known'
            )
        return [places[character] for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """The characters at places."""
        return "".join(self.characters[token] for token in tokens)


@dataclass(frozen=True)
class _Library:
    held: Any

    def encode(self, text: str) -> list[int]:
        """As the library does."""
        return list(self.held.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """As the library does."""
        return str(self.held.decode(list(tokens)))


def open_tokenizer(path: Path | None) -> Tokenizer:
    """The tokenizer of a file; without one tokens are code points.

    Raises:
        FileError: The file is none, or needs a library that is not installed.
    """
    if path is None:
        return _CodePoints()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise FileError(f"{path}: cannot be read as JSON ({' '.join(str(error).split())[:80]})") from None
    characters = content.get("chars") if isinstance(content, dict) else None
    if isinstance(characters, list) and all(isinstance(each, str) and len(each) == 1 for each in characters):
        return _Characters(tuple(characters))
    try:
        Library = import_module("tokenizers").Tokenizer
    except ImportError:
        raise FileError(
            f"{path}: is read by the library tokenizers, which is not installed: pip install tokenizers"
        ) from None
    try:
        return _Library(Library.from_file(str(path)))
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        raise FileError(f"{path}: not a tokenizer: {' '.join(str(error).split())[:120]}") from None
