"""Importers: models of other formats -> ONNX models.

    frozen TensorFlow graph (.pb, .pbtxt)          graphdef/       read directly
    SavedModel (folder), TFLite (.tflite)          tensorflow.py   by tf2onnx, the extra `tf`
    PyTorch module                                 torch.py        by torch.onnx, the extra `torch`

The frontend calls this package for files that are not ONNX.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuflow.errors import ModelError
from tpuflow.importers.graphdef import from_graphdef, is_graphdef
from tpuflow.importers.tensorflow import from_saved_model, from_tflite
from tpuflow.importers.torch import from_torch

if TYPE_CHECKING:
    import onnx

__all__ = ["SUFFIXES", "from_graphdef", "from_saved_model", "from_tflite", "from_torch", "open_foreign"]

SUFFIXES = (".pb", ".pbtxt", ".tflite")
"""Of files this package converts; it also takes folders."""


def open_foreign(path: Path) -> onnx.ModelProto | None:
    """Converts a model file (or folder) of another kind; None if it looks like ONNX.

    Raises:
        ModelError: If it cannot be read or converted, or needs an extra that is not installed.
    """
    if path.is_dir() and (path / "saved_model.pb").is_file():
        return from_saved_model(path)
    if path.name == "saved_model.pb" and path.is_file():
        return from_saved_model(path.parent)
    if not path.is_file() or path.suffix not in SUFFIXES:
        return None
    if path.suffix == ".tflite":
        return from_tflite(path)
    try:
        content = path.read_bytes()
        if path.suffix == ".pbtxt":
            return from_graphdef(content.decode("utf-8"), str(path))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not a TensorFlow graph as text") from error
    return from_graphdef(content, str(path)) if is_graphdef(content) else None
