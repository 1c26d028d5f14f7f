"""SavedModels and TFLite models, through tf2onnx: the extra `tf`, imported when it is needed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

from tpuflow.errors import ModelError

__all__ = ["from_saved_model", "from_tflite"]

OPSET = 18


def from_saved_model(folder: Path) -> onnx.ModelProto:
    """Converts a SavedModel.

    Raises:
        ModelError: If tf2onnx is not installed, or cannot convert it.
    """
    return _run_tf2onnx("--saved-model", folder)


def from_tflite(file: Path) -> onnx.ModelProto:
    """Converts a TFLite model.

    Raises:
        ModelError: If tf2onnx is not installed, or cannot convert it.
    """
    return _run_tf2onnx("--tflite", file)


def _run_tf2onnx(option: str, path: Path) -> onnx.ModelProto:
    """Runs tf2onnx in a process of its own: TensorFlow takes hold of more than this one should give away."""
    missing = [name for name in ("tensorflow", "tf2onnx") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"{path}: {' and '.join(missing)} not installed, which reads such models: "
            'pip install "tpuflow[tf]"'
        )
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "model.onnx"
        words = [option, str(path), "--output", str(output), "--opset", str(OPSET)]
        quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, "-m", "tf2onnx.convert", *words],
            env=quiet,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not output.is_file():
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise ModelError(
                f"{path}: tf2onnx cannot convert it: {lines[-1] if lines else 'it says nothing'}"
            )
        return onnx.load(output)
