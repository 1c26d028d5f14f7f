"""Partitioning: device segments for the machine, host segments for onnxruntime.

    parts = partition(load("detector.onnx", host=True))      # Partitioned[FloatModel]
    graph = quantize(parts, ranges)                          # Partitioned[Graph]
    program = compile(graph)                                 # Partitioned[Program]; .save("detector.tpu")

    segmentation.py    assignment of nodes to alternating device and host segments
    split.py      a float model and its unsupported nodes -> segments
    network.py    the type: segments, and tensors that flow between them by name
    container.py  one file that holds all segments
    storage.py    files of graphs and programs, whole or segmented
    host.py       runs segments in order, those of the host in onnxruntime

A network without host segments stays a plain graph or program in all later stages. `Partitioned.host` lists
the host segments: names, nodes, reasons, input and output tensors.
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
