"""Programs on a device, as an application uses them: open, load, run.

    with Device.open("sim:128x128_asic") as device:
        with device.load("digits.tpu") as program:
            with program.inference() as inference:
                outputs = inference.sync({"image": image})

Devices are simulated machines. A *fast* device gives values, an *exact* one cycles too and proves every rule
of the machine on the way. All a program needs to be fed (names, shapes, types, scales, where its words lie)
stands in its file.

core.py       the extension module: packing, sessions
tensors.py    what a program says of its inputs and outputs
device.py     devices and the programs loaded on them
inference.py  runs, one at a time or several in flight
raw.py        programs without metadata, and the codec that packs for them
"""

from tpuflow.runtime.device import Device, DeviceInfo, LoadedProgram
from tpuflow.runtime.inference import Inference, Outputs, Ticket
from tpuflow.runtime.raw import Codec, convert_to_raw
from tpuflow.runtime.tensors import TensorDescription, descriptions

__all__ = [
    "Codec",
    "Device",
    "DeviceInfo",
    "Inference",
    "LoadedProgram",
    "Outputs",
    "TensorDescription",
    "Ticket",
    "convert_to_raw",
    "descriptions",
]
