"""Runtime for applications: open a device, load a program, run inferences.

    with Device.open("sim:128x128_asic") as device:
        with device.load("digits.tpu") as program:
            with program.inference() as inference:
                outputs = inference.sync({"image": image})

Devices are simulated machines. A *fast* device computes values, an *exact* one also cycles, and checks every
rule of the machine. The program file holds all metadata of inputs and outputs: names, shapes, types, scales,
places of their words.

core.py       the extension module: packing, sessions
tensors.py    metadata of inputs and outputs
device.py     devices and the programs loaded on them
state.py      rows that stay on the device between steps
inference.py  runs, one at a time or several in flight
raw.py        programs without metadata, and the codec for their words
"""

from tpuflow.runtime.device import Device, DeviceInfo, LoadedProgram
from tpuflow.runtime.inference import Inference, Outputs, Ticket
from tpuflow.runtime.raw import Codec, convert_to_raw
from tpuflow.runtime.state import State
from tpuflow.runtime.tensors import TensorDescription, descriptions

__all__ = [
    "Codec",
    "Device",
    "DeviceInfo",
    "Inference",
    "LoadedProgram",
    "Outputs",
    "State",
    "TensorDescription",
    "Ticket",
    "convert_to_raw",
    "descriptions",
]
