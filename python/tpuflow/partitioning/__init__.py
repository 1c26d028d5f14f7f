"""Divides a network between the machine and the host: what the machine cannot do, onnxruntime does.

    parts = partition(load("detector.onnx", host=True))      # Partitioned[FloatModel]
    graph = quantize(parts, ranges)                          # Partitioned[Graph]
    program = compile(graph)                                 # Partitioned[Program]; .save("detector.tpu")

    turns.py      which node runs in which turn of device or host: pure graph theory
    split.py      a float model and what it cannot do on the machine -> segments
    network.py    the type: segments, and tensors that flow between them by name
    container.py  one file that holds all segments
    host.py       runs segments in order, those of the host in onnxruntime

A network that is whole on the device is one segment, and everywhere behind here the plain graph or program.
`Partitioned.host` lists what the host computes: names, nodes, reasons, tensors taken and given.
"""

from tpuflow.partitioning.host import HostRunner, walk
from tpuflow.partitioning.network import (
    DeviceSegment,
    HostSegment,
    Partitioned,
    PartitionedModel,
    device_networks,
)
from tpuflow.partitioning.split import device_values, partition

__all__ = [
    "DeviceSegment",
    "HostRunner",
    "HostSegment",
    "Partitioned",
    "PartitionedModel",
    "device_networks",
    "device_values",
    "partition",
    "walk",
]
