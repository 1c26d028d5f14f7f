"""How messages about an unknown word of a configuration list the words that are allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["choices"]


def choices(word: str, known: Iterable[str]) -> str:
    """All words that may stand for one that is not known, with the nearest of them if one is near."""
    words = list(known)
    near = difflib.get_close_matches(word, words, n=1)
    return f"choose one of {', '.join(words)}" + (f'; did you mean "{near[0]}"?' if near else "")
