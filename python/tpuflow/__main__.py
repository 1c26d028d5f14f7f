"""The start of the command line: `tpuflow`, `python -m tpuflow`.

An interrupt ends the process quietly also while modules are imported, before there is anything to clean up.
"""

from __future__ import annotations

import os
import signal

__all__ = ["main"]


def main() -> None:
    """Imports the command line and runs it."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from tpuflow.cli import main as run  # noqa: PLC0415 - interrupts are handled first

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
