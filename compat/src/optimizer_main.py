"""The command users of cfg files know: `optimizer_main.py --cfg opt.cfg`, `optimizer_main.py -field`.

It is `tpuflow build --cfg opt.cfg` and `tpuflow fields`; whatever else is given goes there as it is.
"""

from __future__ import annotations

import sys

from tpuflow.__main__ import main as tpuflow

__all__ = ["main"]


def main() -> None:
    """Runs the command."""
    words = sys.argv[1:]
    if words and words[0].lstrip("-") in {"field", "fields"}:
        sys.argv = ["tpuflow", "fields", "--markdown", *words[1:]]
    else:
        sys.argv = ["tpuflow", "build", *words]
    tpuflow()


if __name__ == "__main__":
    main()
