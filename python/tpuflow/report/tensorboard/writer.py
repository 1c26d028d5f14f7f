"""One event file, written by TensorBoard's own writer."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tpuflow.errors import TpuflowError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from tpuflow.report.tensorboard.histogram import Histogram

__all__ = ["MissingTensorBoardError", "Node", "RunLog", "require"]


class MissingTensorBoardError(TpuflowError):
    """TensorBoard is not installed."""


def require() -> None:
    """Says early that TensorBoard or matplotlib is missing.

    Raises:
        MissingTensorBoardError: With what to install.
    """
    for package in ("tensorboard", "matplotlib"):
        try:
            import_module(package)
        except ImportError as error:
            raise MissingTensorBoardError(
                f'logs for TensorBoard need {error.name or package}: pip install "tpuflow[tensorboard]"'
            ) from None


class Node:
    """A node of a graph as TensorBoard draws it.

    Attributes:
        name: Name in the network; need not be unique, nor one TensorBoard could show.
        operator: What it computes.
        inputs: The nodes it reads from.
        attributes: What a click shows.
        size: Bytes of its weights and outputs.
        interval: Begin and end in microseconds, where known.
    """

    def __init__(
        self, name: str, operator: str, inputs: list[Node] | None = None, **attributes: object
    ) -> None:
        self.name = name
        self.operator = operator
        self.inputs = inputs or []
        self.attributes: dict[str, object] = attributes
        self.size = 0
        self.interval: tuple[float, float] | None = None


class RunLog:
    """Events of one run, in a file below `folder`; to be used in a `with` statement.

    Raises:
        MissingTensorBoardError: TensorBoard is not installed.
        TpuflowError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        require()
        writer = import_module("tensorboard.summary.writer.event_file_writer")
        self._protos = {
            name: import_module(f"tensorboard.compat.proto.{name}_pb2")
            for name in ("event", "graph", "config", "summary", "attr_value", "tensor_shape")
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = writer.EventFileWriter(str(folder))
        except OSError as error:
            raise TpuflowError(f"{folder}: no logs can be written there: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def graph(self, nodes: list[Node]) -> None:
        """A graph under the tag `Default`, and its bytes and times by node under `Resources`."""
        names = _names(nodes)
        graph = self._protos["graph"].GraphDef()
        graph.versions.producer = 22
        metadata = self._protos["config"].RunMetadata()
        device = metadata.step_stats.dev_stats.add(device="/device:TPU:0")
        for node in nodes:
            made = graph.node.add(name=names[node], op=node.operator or "Unknown", device="/device:TPU:0")
            made.input.extend(dict.fromkeys(names[source] for source in node.inputs))
            for key, value in node.attributes.items():
                made.attr[key].s = str(value).encode()
            begin, end = node.interval or (0.0, 0.0)
            stats = device.node_stats.add(
                node_name=names[node],
                all_start_micros=round(begin),
                op_start_rel_micros=0,
                op_end_rel_micros=round(end - begin),
                all_end_rel_micros=round(end - begin),
            )
            stats.memory.add(allocator_name="tpu", total_bytes=node.size, peak_bytes=node.size)
        self._add(graph_def=graph.SerializeToString())
        tagged = {"tag": "Resources", "run_metadata": metadata.SerializeToString()}
        self._add(tagged_run_metadata=tagged)

    def scalars(self, tag: str, values: NDArray[Any] | list[float], first: int = 0) -> None:
        """One scalar per step."""
        scalar = import_module("tensorboard.plugins.scalar.summary_v2")
        for step, value in enumerate(np.asarray(values, np.float64).ravel().tolist(), first):
            self._add(step=step, summary=scalar.scalar_pb(tag, value))

    def histogram(self, tag: str, histogram: Histogram, step: int = 0) -> None:
        """A distribution."""
        limits, counts = histogram.buckets()
        self._value(
            step,
            tag=tag,
            histo={
                "min": histogram.low,
                "max": histogram.high,
                "num": float(histogram.count),
                "sum": histogram.total,
                "sum_squares": histogram.squares,
                "bucket_limit": limits,
                "bucket": counts,
            },
        )

    def image(self, tag: str, png: bytes, size: tuple[int, int], step: int = 0) -> None:
        """A picture; `size` is width and height in pixels."""
        content = {"encoded_image_string": png, "width": size[0], "height": size[1], "colorspace": 4}
        self._value(step, tag=tag, image=content)

    def text(self, tag: str, markdown: str, step: int = 0) -> None:
        """A text."""
        text = import_module("tensorboard.plugins.text.summary_v2")
        self._add(step=step, summary=text.text_pb(tag, markdown))

    def _value(self, step: int, **value: Any) -> None:
        self._add(step=step, summary=self._protos["summary"].Summary(value=[value]))

    def _add(self, **content: Any) -> None:
        self._writer.add_event(self._protos["event"].Event(wall_time=time.time(), **content))


LONGEST = 200
"""Characters of a name TensorBoard is given."""


def _names(nodes: list[Node]) -> Mapping[Node, str]:
    """A name for every node that TensorBoard can show: unique, not empty, of characters it reads."""
    found: dict[Node, str] = {}
    taken: set[str] = set()
    for node in nodes:
        kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-/") else "_" for c in node.name)
        parts = [part for part in kept[-LONGEST:].split("/") if part]
        base = "/".join(parts).lstrip("_-") or node.operator or "node"
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        found[node] = name
    return found
