"""A network in segments: what runs on the device, what on the host, and the tensors that flow between.

One type serves every level. A float network, an integer graph and a program in segments differ in what a
device segment holds; host segments are the same ONNX model at each. `map` leads from one level to the next:

    Partitioned[FloatModel] --quantize--> Partitioned[Graph] --compile--> Partitioned[Program]

Segments run one after another, in order, and know tensors by the names of the normalised model. A tensor a
device segment gives is dequantised as any output is before another segment reads it; one it takes is
quantised as any input is. So a network in graphs and the same network in programs agree in every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tpuflow.errors import Finding
from tpuflow.frontend import Port

if TYPE_CHECKING:
    from tpuflow.frontend import FloatModel

__all__ = ["DeviceSegment", "HostSegment", "Partitioned", "PartitionedModel", "device_networks"]

Network_co = TypeVar("Network_co", covariant=True)
Next = TypeVar("Next")


@dataclass(frozen=True)
class DeviceSegment(Generic[Network_co]):
    """A part the machine computes.

    Attributes:
        name: `device1`, `device2`, ... in the order they run.
        network: The part at some level: float model, graph or program.
        inputs: Tensors it reads, in the order of the part's inputs.
        outputs: Tensors it gives to later segments or to the user, in the order of the part's outputs.
    """

    name: str
    network: Network_co
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class HostSegment:
    """A part onnxruntime computes on the host.

    Attributes:
        name: `host1`, `host2`, ... in the order they run.
        model: The part as a serialised ONNX model.
        inputs: Tensors it reads.
        outputs: Tensors it gives to later segments or to the user.
        nodes: Names of its nodes, in the order they run.
        findings: Why: what the machine cannot do. Nodes without an entry lie between such nodes.
    """

    name: str
    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def reason(self) -> str:
        """Why it is there, in one line: every operator the machine lacks, with the number of its nodes."""
        counts: dict[str, int] = {}
        for finding in self.findings:
            tensor = finding.attribute is None or finding.attribute.startswith("tensor ")
            what = finding.reason if tensor else f"{finding.attribute} {finding.reason}"
            text = f"{finding.operator}: {what}"
            counts[text] = counts.get(text, 0) + 1
        return "; ".join(text if count == 1 else f"{text} ({count} times)" for text, count in counts.items())

    def summary(self) -> dict[str, Any]:
        """Its figures for `--json`."""
        return {
            "name": self.name,
            "nodes": list(self.nodes),
            "reason": self.reason,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
        }


@dataclass(frozen=True)
class Partitioned(Generic[Network_co]):
    """A network in segments.

    Attributes:
        name: The model's name.
        segments: In the order they run.
        inputs: What the network takes, in the order of the model's header.
        outputs: What it gives, in the order of the model's header.
    """

    name: str
    segments: tuple[DeviceSegment[Network_co] | HostSegment, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def device(self) -> tuple[DeviceSegment[Network_co], ...]:
        """The device segments, in the order they run."""
        return tuple(part for part in self.segments if isinstance(part, DeviceSegment))

    @property
    def host(self) -> tuple[HostSegment, ...]:
        """The host segments, in the order they run."""
        return tuple(part for part in self.segments if isinstance(part, HostSegment))

    @property
    def whole(self) -> Network_co | None:
        """The network of the only segment if that is the device's; None where the host takes part."""
        (first, *others) = self.segments
        return first.network if isinstance(first, DeviceSegment) and not others else None

    def map(self, step: Callable[[Network_co], Next]) -> Partitioned[Next]:
        """The network one level further: `step` of every device segment."""
        return self.with_networks([step(part.network) for part in self.device])

    def with_networks(self, networks: Iterable[Next]) -> Partitioned[Next]:
        """The network with others in its device segments, in order."""
        given = iter(networks)
        segments = tuple(
            part
            if isinstance(part, HostSegment)
            else DeviceSegment(part.name, next(given), part.inputs, part.outputs)
            for part in self.segments
        )
        return Partitioned(self.name, segments, self.inputs, self.outputs)

    def save(self, path: str | Path) -> None:
        """Writes graphs or programs in segments as one file.

        Raises:
            FileError: The file cannot be written.
        """
        from tpuflow.partitioning.container import save  # noqa: PLC0415 - the container knows this type

        save(self, Path(path))


def device_networks(network: Next | Partitioned[Next]) -> list[Next]:
    """The networks of the device segments, in order, or a network that is whole."""
    return [part.network for part in network.device] if isinstance(network, Partitioned) else [network]


@dataclass(frozen=True)
class PartitionedModel(Partitioned["FloatModel"]):
    """A float network in segments.

    Attributes:
        model: The whole of it.
        bound: Names of the nodes the host computes.
    """

    model: FloatModel
    bound: frozenset[str]
