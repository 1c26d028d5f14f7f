"""Files: written complete or not at all, whatever happens to the process, and read as untrusted.

`atomic` replaces files and publishes those of one command together; `temporary` makes what they are written
to first; `documents` writes text, JSON and arrays with it; `reading` reads text, JSON and TOML.
`digests` lets files of one command know each other.
"""

from tpuflow.io.files.atomic import (
    Publication,
    file_stem,
    make_folder,
    new_folder,
    publication,
    replace_atomically,
    require_unused,
)
from tpuflow.io.files.digests import digest_lines, require_listed
from tpuflow.io.files.documents import json_text, write_arrays, write_json, write_text
from tpuflow.io.files.reading import parse_json, parse_toml, read_text
from tpuflow.io.files.temporary import temporary_folder

__all__ = [
    "Publication",
    "digest_lines",
    "file_stem",
    "json_text",
    "make_folder",
    "new_folder",
    "parse_json",
    "parse_toml",
    "publication",
    "read_text",
    "replace_atomically",
    "require_listed",
    "require_unused",
    "temporary_folder",
    "write_arrays",
    "write_json",
    "write_text",
]
