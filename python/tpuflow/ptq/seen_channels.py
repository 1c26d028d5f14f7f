"""How far the channels of a network reach, as samples show them.

Of every batch the extrema and mean squares of channels are found while its values are in a cache and the next
batches run; values themselves are not kept. What several groups of samples show adds up (`join`), so that
halves which evaluate each other need not run once more as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuflow.calibration import summarize_channels
from tpuflow.frontend.activations import ActivationSession, handed_out
from tpuflow.ptq.channels import Channels
from tpuflow.ptq.noise import ColumnStatistics, Extrema

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples

__all__ = ["MILD", "SeenChannels"]

MEMORY = 512 << 20
"""Bytes of activations held at a time."""

MILD = 0.25
"""Weight of the mean batch in what a channel is taken to reach, usually."""


@dataclass(frozen=True)
class SeenChannels:
    """The channels of a model, and what samples show of their values.

    Attributes:
        model: What they are channels of; nodes that stay with the host keep all they read and make.
        channels: Their numbers.
        extrema: By name, of all values that may be scaled and are handed out.
    """

    model: FloatModel
    channels: Channels
    extrema: Mapping[str, Extrema]

    @classmethod
    def of(cls, model: FloatModel, samples: Samples) -> SeenChannels:
        """The channels of a model, as samples show them."""
        channels = Channels.of(model.model.graph, {finding.node for finding in model.findings})
        wanted = {value.name: ids.shape for value, ids in channels.ids.items() if value.name and ids.any()}
        session = ActivationSession(
            model.model,
            memory_bytes=MEMORY,
            wanted=wanted.keys() & set(handed_out(model.model)),
            several=samples.count > 1,
        )
        found: dict[str, Extrema] = {}
        for _, parts in session.runs(samples.batches()):
            for part in parts:
                shown = {
                    name: array
                    for name, array in part.items()
                    if array.size and array.ndim == len(wanted[name])
                }
                _observe(found, shown, wanted)
        return cls(model, channels, found)

    def join(self, other: SeenChannels) -> SeenChannels:
        """Both groups of samples of one model, as if they were one."""
        both = {
            name: own.join(other.extrema[name]) for name, own in self.extrema.items() if name in other.extrema
        }
        return replace(self, extrema=both)

    def statistics(self, mild: float = MILD) -> dict[str, ColumnStatistics]:
        """Reach and mean square by channel.

        Args:
            mild: Weight of the mean batch in what channels are taken to reach, `0 .. 1`, else the furthest's.
        """
        return {name: extrema.statistics(mild) for name, extrema in self.extrema.items()}


def _observe(
    found: dict[str, Extrema], shown: Mapping[str, NDArray[np.float32]], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Adds a batch of values to what was found; axes along which all numbers are equal are gone through."""
    kept = [[length > 1 for length in shapes[name]] for name in shown]
    found_here = summarize_channels(list(shown.values()), kept)
    for (name, array), axes, summary in zip(shown.items(), kept, found_here, strict=True):
        shape = [length if own else 1 for length, own in zip(array.shape, axes, strict=True)]
        low, high, square = (row.reshape(shape) for row in summary)
        found.setdefault(name, Extrema()).observe(low, high, square)
