"""Listings of the documents this package follows, read from the shared material as a person would type them.

The text of the documents has lost the indentation of Python: blocks are indented again by the colons that
open them, and by a table of the lines where a block ends, which no text shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

DOCUMENTS = {
    "metrics": "000_", "stages": "001_", "tensorboard": "002_", "cfg": "003_", "framework": "004_",
}  # fmt: skip

QUOTES = re.compile(r'"""|\'\'\'')
BROKEN_PREFIX = re.compile(r"\bf '")


def document(shared: Path, name: str) -> str:
    """The text of a document."""
    (path,) = (shared / "seeds").glob(f"{DOCUMENTS[name]}*")
    return path.read_text(encoding="utf-8")


def numbered(text: str) -> list[str]:
    """Lines behind consecutive numbers, as listings are printed; what stands between them is left out."""
    found: list[str] = []
    for line in text.splitlines():
        number, _, rest = line.partition(" ")
        if number == str(len(found) + 1):
            found.append(rest)
    return found


def indented(lines: Iterable[str], ends: Mapping[int, int]) -> str:
    """Python whose indentation was lost.

    Args:
        lines: Its lines.
        ends: By number of a line, the depth it stands at where no colon and no two empty lines tell.
    """
    result, depth, opens, blank, brackets, quote = [], 0, False, 0, 0, ""
    for number, raw in enumerate(lines, 1):
        line = BROKEN_PREFIX.sub("f'", raw.strip())
        begins = not brackets and not quote
        if begins and (not line or line.startswith("#")):
            blank += not line
            result.append("")
            continue
        if begins:
            depth = ends.get(number, depth + 1 if opens else 0 if blank > 1 else depth)
            blank = 0
        result.append("    " * depth + line if begins else f"    {line}" if brackets else line)
        for mark in QUOTES.findall(line):
            quote = "" if quote == mark else quote or mark
        if not quote:
            code = re.sub(r"""f?'[^']*'|f?"[^"]*"|#.*""", "''", line) if not QUOTES.search(line) else ""
            brackets += sum(code.count(each) for each in "([{") - sum(code.count(each) for each in ")]}")
            opens = not brackets and code.rstrip().endswith(":")
    return "\n".join(result) + "\n"
