"""Runs a network segment by segment, host segments in onnxruntime, and clocks these.

Host segments run on one thread, with onnxruntime's deterministic algorithms, so that the same tensors in give
the same tensors out at every level.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import onnx
from numpy.typing import NDArray

from tpuflow.frontend import FloatSession
from tpuflow.partitioning.network import DeviceSegment, HostSegment, Partitioned

__all__ = ["HostRunner", "walk"]

Array = NDArray[Any]
Network = TypeVar("Network")


class HostRunner:
    """The host segments of one network, each prepared when it first runs.

    Attributes:
        seconds: Of the last run of each segment by name, preparation not counted.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._sessions: dict[str, FloatSession] = {}

    def run(
        self, segment: HostSegment, arrays: Mapping[str, Array], *, every: bool = False
    ) -> dict[str, Array]:
        """Runs a segment on the tensors it reads; with `every` gives all tensors its nodes compute.

        Raises:
            ModelError: If onnxruntime cannot run it.
        """
        feeds = {name: arrays[name] for name in segment.inputs}
        key = f"{segment.name}{'/all' if every else ''}"
        if key not in self._sessions:
            model = onnx.ModelProto.FromString(segment.model)
            self._sessions[key] = FloatSession(model, "all" if every else None, threads=1)
            self._sessions[key].run(feeds)  # the first run also sets up memory
        start = time.perf_counter()
        found = self._sessions[key].run(feeds)
        self.seconds[segment.name] = time.perf_counter() - start
        return found


def walk(
    network: Partitioned[Network],
    feeds: Mapping[str, Array],
    host: HostRunner,
    device: Callable[[DeviceSegment[Network], dict[str, Array]], dict[str, Array]],
    *,
    every: bool = False,
    given: dict[str, Array] | None = None,
) -> dict[str, Array]:
    """Runs all segments on one feed.

    Args:
        network: The segments.
        feeds: Every input of the network by name.
        host: Runs host segments, and keeps their times.
        device: Runs a device segment: tensors it reads by name -> tensors it gives, and perhaps more.
        every: Give every tensor met, not the outputs alone.
        given: Where to note what host segments give to later ones or to the user.

    Returns:
        Tensors by name; the outputs in the order of the header.
    """
    known: dict[str, Array] = dict(feeds)
    for segment in network.segments:
        taken = {name: known[name] for name in segment.inputs}
        if isinstance(segment, HostSegment):
            found = host.run(segment, taken, every=every)
            if given is not None:
                given.update({name: found[name] for name in segment.outputs})
            known = found | known
        else:
            # What a device says of the tensors it reads is what it makes of them: others read the originals.
            known = device(segment, taken) | known
    outputs = {port.name: known[port.name] for port in network.outputs}
    if not every:
        return outputs
    return outputs | {name: array for name, array in known.items() if name not in feeds}
