"""The file by which files of one command know each other: names and SHA-256, in the format of `sha256sum`.

```text
9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  model.tpu
60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752  model.tpuq
```

It is published before the files it names: whatever is killed on the way leaves a listing that does not fit.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from tpuflow.errors import FileError
from tpuflow.io.files.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["SUFFIX", "digest_lines", "require_listed"]

SUFFIX = ".sha256"
LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def digest_lines(digests: Mapping[str, str]) -> str:
    """The text of the file: one line per name."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def require_listed(listing: Path, paths: tuple[Path, ...], remedy: str) -> None:
    """Makes sure that files are those a listing names; of files it does not name nothing is known.

    Args:
        listing: The file of digests; without it nothing is known of any.
        paths: Files in the same folder.
        remedy: What makes them fit, for the error.

    Raises:
        FileError: A file is another than the listing says, or the listing is damaged.
    """
    if not listing.is_file():
        return
    stated = {}
    for line in read_text(listing, FileError).splitlines():
        found = LINE.fullmatch(line)
        if found is None:
            raise FileError(f"{listing}: not a list of SHA-256 and names: {remedy}")
        stated[found[2]] = found[1]
    for path in paths:
        if path.name in stated and _digest(path) != stated[path.name]:
            others = ", ".join(name for name in stated if name != path.name)
            raise FileError(
                f"{path}: is not of the same run as {others}: {listing} states another SHA-256; {remedy}"
            )


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
