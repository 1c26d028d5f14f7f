"""The published runtime's names: devices, programs on them, raw programs. All of it is `tpuflow.runtime`."""

from tpuflow.runtime import Codec, Device, Inference, LoadedProgram, TensorDescription, convert_to_raw

__all__ = ["Codec", "Device", "Inference", "LoadedProgram", "TensorDescription", "convert_to_raw"]
