"""The trained networks of the shared material and the three figures a quantised one is scored by.

The material lies in the folder `TPUFLOW_SHARED` names, else in `shared` beside the repository; see its
README for the networks, their data and the metrics, which its own `evalnets.py` computes.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.frontend import FloatModel, FloatSession, load

__all__ = ["Figures", "Network", "decision", "imported", "shared_data"]

REPOSITORY = Path(__file__).resolve().parent.parent.parent
Array = NDArray[Any]
Outputs = list[list[Array]]
"""Of every sample every output, without its batch axis or with it, as the network gives it."""


def shared_data() -> Path:
    """The folder of trained networks."""
    named = os.environ.get("TPUFLOW_SHARED")
    folder = (Path(named) if named else REPOSITORY.parent / "shared") / "data"
    if not (folder / "evalnets.py").is_file():
        sys.exit(f"{folder}: no trained networks here; TPUFLOW_SHARED names their parent folder")
    return folder


def imported(path: Path) -> Any:
    """A module of the shared material, by path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def decision(name: str, nets: Any) -> Callable[[Outputs], Array] | None:
    """One class per sample from the outputs of a network; None if it finds any number of things."""
    if name.startswith("ultraface"):
        return None
    if name == "fastestdet":
        return lambda outputs: np.array([nets.top_class(sample[0]) for sample in outputs])
    return lambda outputs: np.array([sample[0].argmax() for sample in outputs])


@dataclass(frozen=True)
class Figures:
    """A quantised network beside float, on the same samples.

    Attributes:
        metric: Name of the score.
        floating: Score of the float network.
        quantized: Score of the quantised one.
        lost: Samples right in float only; None where a sample is neither right nor wrong.
        won: Samples right only when quantised.
        sqnr_db: First output against float, over all samples.
        agreement: Share of samples with the same decision; None where a sample has no one decision.
    """

    metric: str
    floating: float
    quantized: float
    lost: int | None
    won: int | None
    sqnr_db: float
    agreement: float | None


class Network:
    """A trained network with its samples and, if it is to be scored, what float makes of them.

    Args:
        folder: Of all networks.
        name: Of this one.
        floats: Whether it is to be scored.
        most: Evaluation samples at most, evenly spread; 0: all.
    """

    def __init__(self, folder: Path, name: str, *, floats: bool = True, most: int = 0) -> None:
        nets = imported(folder / "evalnets.py")
        self.name = name
        self.path = folder / name / "model.onnx"
        self.model: FloatModel = load(self.path)
        self.port = self.model.inputs[0].name
        self.outputs = [output.name for output in self.model.outputs]
        self.calibration: Array = nets.load(name, "calib")[0]
        self._nets = nets
        images, labels = nets.load(name, "eval")
        kept = np.unique(np.linspace(0, len(images) - 1, min(most or len(images), len(images))).astype(int))
        self.images, self._labels = images[kept], labels if len(kept) == len(images) else labels[kept]
        self._floating = self.run(FloatSession(self.model.original).run) if floats else []

    @property
    def samples(self) -> int:
        """Number of evaluation samples."""
        return len(self.images)

    def run(self, forward: Callable[[dict[str, Array]], dict[str, Array]]) -> Outputs:
        """The outputs of something that takes and gives arrays by name, for every evaluation sample."""
        found = []
        for image in self.images:
            made = forward({self.port: image[np.newaxis]})
            found.append([made[name] for name in self.outputs])
        return found

    def scored(self, outputs: Outputs) -> Figures:
        """The figures of a quantised network's outputs."""
        scores = [
            self._nets.metric(self.name, found, self._labels, self.images)
            for found in (self._floating, outputs)
        ]
        metric = next(key for key in ("f1_vs_float", *scores[0]) if key in scores[0])
        decide = decision(self.name, self._nets)
        lost = won = agreement = None
        if decide is not None:
            floating, quantized = decide(self._floating), decide(outputs)
            agreement = float((floating == quantized).mean())
            lost = int(((floating == self._labels) & (quantized != self._labels)).sum())
            won = int(((floating != self._labels) & (quantized == self._labels)).sum())
        first = [np.stack([sample[0] for sample in found]) for found in (self._floating, outputs)]
        signal, noise = first[0].astype(np.float64), first[1].astype(np.float64) - first[0]
        sqnr = 20 * np.log10(np.linalg.norm(signal) / max(float(np.linalg.norm(noise)), 1e-30))
        return Figures(metric, scores[0][metric], scores[1][metric], lost, won, float(sqnr), agreement)
