"""Thresholds trained on samples, epoch by epoch, with curves and checkpoints.

    ranges = fine_tune(model, ranges, samples, epochs=10, folder="work")

```text
 DIR/logs/               TensorBoard: loss, layer_loss and the largest magnitude of every range, by epoch
 DIR/checkpoints/        epoch_N.json of every epoch, best.json
```

What is trained is the logarithm of how far each operand of a linear layer reaches, by Adam on the mean
squared error of the sums of all its readers, whose weights stay rounded as they are. Rounding passes
gradients straight through, and what is clipped pulls the range after it (see `refine.adaquant`). Layers learn
apart from each other, which needs no automatic differentiation. What decides is the loss of the whole network
in integers, noise over signal of its outputs on the samples: it is measured before the first epoch and after
each, and the ranges of least loss are the result, so they are never worse than those it began with.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpuflow.calibration import Range, Ranges
from tpuflow.config import Config
from tpuflow.config.chain import GlobalMethod
from tpuflow.errors import FileError
from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.ptq.adaquant import Adam, stored_operand
from tpuflow.ptq.confirmation import graph_of
from tpuflow.ptq.easy_quant import round_to_codes
from tpuflow.ptq.operands import Operand, chosen_layers, operand_grid, operands_of
from tpuflow.report.tensorboard import RunLog, require

if TYPE_CHECKING:
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.ptq.layers import LinearLayer

__all__ = ["fine_tune"]

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

RATE = 0.01
"""Learning rate of the logarithm of a range."""

BATCHES = 8
"""Steps of an epoch."""


def fine_tune(
    model: FloatModel,
    ranges: Ranges,
    samples: Samples,
    *,
    epochs: int = 10,
    folder: str | Path = "",
    config: Config | None = None,
    seed: int = 0,
    remark: Callable[[str], None] = logger.info,
) -> Ranges:
    """The ranges of least loss over some epochs of training.

    Args:
        model: What they are for.
        ranges: Where training begins.
        samples: What is trained on.
        epochs: How often all samples are gone through; 0 only measures.
        folder: Where curves and checkpoints go; an empty text writes nothing.
        config: How everything is stored.
        seed: Of the order of what is learned from.
        remark: Told the loss of every epoch.

    Raises:
        FileError: The folder cannot be written.
        MissingTensorBoardError: There is a folder, but no TensorBoard to write curves with.
    """
    config = config or Config()
    book = _TrainingLog(folder)
    evaluator = Evaluator(model, samples)
    layers = dict(chosen_layers(model, config, GlobalMethod("gptq")))
    operands = [
        _TrainedOperand(operand, layers, ranges, config)
        for operand in operands_of(model.model, list(layers), samples)
        if operand_grid(operand.name, ranges, config) is not None
    ]
    generator = np.random.default_rng(seed)
    best, least = ranges, math.inf
    for epoch in range(epochs + 1):
        if epoch:
            for each in operands:
                each.learn(generator)
        now = _scale_ranges(ranges, {each.name: each.factor for each in operands})
        found = 10 ** (-evaluator.sqnr_db(graph_of(model, now, config)) / 10)
        inside = float(np.mean([each.loss() for each in operands])) if operands else 0.0
        if found < least:
            best, least = now, found
        book.note(epoch, now, {"loss": found, "layer_loss": inside}, best)
        remark(f"epoch {epoch}: loss {found:.4g}{', the least so far' if best is now else ''}")
    book.close()
    return best


class _TrainedOperand:
    """One operand on its way: what its readers meet, and the factor of its range."""

    def __init__(
        self, operand: Operand, largest: Mapping[LinearLayer, int], ranges: Ranges, config: Config
    ) -> None:
        self.name = operand.name
        self._grid = operand_grid(operand.name, ranges, config)
        self._log = np.zeros(1)
        self._adam = Adam(RATE, (1,))
        self._readers: list[tuple[Array, Array, Array]] = []
        for layer, columns in operand.layers:
            weights = layer.weights
            reach = np.abs(weights).max(axis=2)
            steps = np.where(reach > 0, reach, 1.0) / largest[layer]
            made = round_to_codes(weights, steps, largest[layer]) * steps[:, :, np.newaxis]
            x = columns.astype(np.float64)
            self._readers.append((x, made, x @ weights.transpose(0, 2, 1)))

    @property
    def factor(self) -> float:
        """How many times its first range."""
        return float(np.exp(self._log[0]))

    def loss(self) -> float:
        """Squared error of the sums over their power, the mean over readers."""
        found = []
        for x, made, expected in self._readers:
            z, _ = stored_operand(x, self._grid, self.factor)
            off = z @ made.transpose(0, 2, 1) - expected
            found.append(float(np.mean(off**2)) / max(float(np.mean(expected**2)), 1e-30))
        return float(np.mean(found))

    def learn(self, generator: np.random.Generator) -> None:
        """One epoch."""
        order = [generator.permutation(x.shape[1]) for x, _, _ in self._readers]
        for batch in range(BATCHES):
            gradient = 0.0
            for (x, made, expected), places in zip(self._readers, order, strict=True):
                part = places[batch::BATCHES]
                if not len(part):
                    continue
                z, slope = stored_operand(x[:, part], self._grid, self.factor)
                off = z @ made.transpose(0, 2, 1) - expected[:, part]
                power = max(float(np.mean(expected**2)), 1e-30)
                gradient += float(np.sum((off @ made) * slope)) * 2 / (off.size * power)
            self._log += self._adam.step(np.array([gradient]))


def _scale_ranges(ranges: Ranges, factors: dict[str, float]) -> Ranges:
    tensors = dict(ranges.tensors)
    for name, factor in factors.items():
        low = min(low for low, _ in tensors[name].pairs)
        high = max(high for _, high in tensors[name].pairs)
        tensors[name] = Range(low * factor, high * factor)
    return Ranges(tensors, ranges.samples, ranges.strategy, ranges.means)


class _TrainingLog:
    """Curves and checkpoints in a folder; without one, nothing."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = None if str(folder) == "" else Path(folder)
        self._log: RunLog | None = None
        if self._folder is not None:
            require()
            try:
                for name in ("logs", "checkpoints"):
                    (self._folder / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(
                    f"{self._folder}: cannot be made: {(error.strerror or str(error)).lower()}"
                ) from None
            self._log = RunLog(self._folder / "logs")
            self._log.__enter__()

    def note(self, epoch: int, ranges: Ranges, losses: dict[str, float], best: Ranges) -> None:
        """Adds a point to every curve."""
        if self._folder is None or self._log is None:
            return
        for name, value in losses.items():
            self._log.scalars(name, [value], epoch)
        for name, value in ranges.thresholds.items():
            self._log.scalars(f"thresholds/{name}", [value], epoch)
        ranges.save(self._folder / "checkpoints" / f"epoch_{epoch}.json")
        if best is ranges:
            ranges.save(self._folder / "checkpoints" / "best.json")

    def close(self) -> None:
        """Ends the file of events."""
        if self._log is not None:
            self._log.__exit__(None, None, None)
