"""Runs a published script as it is: `python -m tpu_framework script.py [ARGUMENT ...]`.

The import names of the framework are those of this distribution; `tensorflow` is `tpu_framework.tensorflow`,
also where TensorFlow is installed, because graphs are of that module's kind.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

from tpu_framework import tensorflow
from tpuflow.errors import TpuflowError


def main() -> None:
    """Runs the script; a wrong request ends with one line."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tpu_framework SCRIPT [ARGUMENT ...]")
    script = Path(sys.argv[1])
    if not script.is_file():
        sys.exit(f"error: {script}: no such file")
    sys.argv = sys.argv[1:]
    sys.path[0] = str(script.resolve().parent)
    sys.modules["tensorflow"] = tensorflow
    # TensorBoard takes an installed TensorFlow for its files, unless there is a module of this name.
    sys.modules["tensorboard.compat.notf"] = ModuleType("notf")
    try:
        runpy.run_path(str(script), run_name="__main__")
    except TpuflowError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
