"""Devices, which are simulated machines, and the programs loaded on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpuflow.compiler.machine import Machine, machines, require_machine
from tpuflow.errors import DeviceError, MachineError, ProgramError, SampleError
from tpuflow.partitioning import Partitioned, device_networks
from tpuflow.partitioning.storage import AnyProgram, load_program
from tpuflow.runtime.closing import Closing
from tpuflow.runtime.core import Session
from tpuflow.runtime.inference import IN_FLIGHT, Inference
from tpuflow.runtime.state import State
from tpuflow.runtime.tensors import TensorDescription, descriptions, of_ports

__all__ = ["Device", "DeviceInfo", "LoadedProgram", "Mode"]

Mode = Literal["fast", "exact"]
PREFIX = "sim:"


@dataclass(frozen=True)
class DeviceInfo:
    """A device that can be opened.

    Attributes:
        name: What `Device.open` takes: `sim:` and the machine.
        machine: Preset or TOML file.
        clock_hz: Its clock.
        cache_word_length: Bytes of a cache word.
    """

    name: str
    machine: str
    clock_hz: int
    cache_word_length: int

    @classmethod
    def of(cls, machine: str) -> DeviceInfo:
        """The simulated machine of that name or file.

        Raises:
            MachineError: There is none.
        """
        parameters = Machine.load(machine)
        word = int(parameters["cache.word_bytes"])
        return cls(f"{PREFIX}{machine}", machine, int(parameters["clock_hz"]), word)


class Device(Closing):
    """An open device.

    Attributes:
        info: Which.
        mode: `fast`: values; `exact`: cycles too, and every rule of the machine checked.
    """

    def __init__(self, info: DeviceInfo, mode: Mode = "fast") -> None:
        if mode not in ("fast", "exact"):
            raise DeviceError(f'{info.name}: mode "{mode}" does not exist: choose fast or exact')
        self.info = info
        self.mode: Mode = mode
        self._open = True
        self._loaded: list[LoadedProgram] = []

    @staticmethod
    def list_devices() -> list[DeviceInfo]:
        """A simulated device for every machine that comes with the package, the default first."""
        return [DeviceInfo.of(machine) for machine in machines()]

    @staticmethod
    def open(device: DeviceInfo | str | None = None, *, mode: Mode = "fast") -> Device:
        """Opens a device.

        Args:
            device: One of `list_devices`, its name, or the name or TOML file of a machine. [the first]
            mode: What it is to give.

        Raises:
            MachineError: There is no such device; the message lists those there are.
            DeviceError: There is no such mode.
        """
        if device is None:
            device = Device.list_devices()[0]
        if not isinstance(device, DeviceInfo):
            device = DeviceInfo.of(str(device).removeprefix(PREFIX))
        return Device(device, mode)

    def load(
        self,
        program: str | Path | AnyProgram,
        *,
        io_address: int | None = None,
        addresses: Mapping[str, int] | None = None,
    ) -> LoadedProgram:
        """Loads a program made for this machine.

        Args:
            program: A file, or a program.
            io_address: Where in DDR the inputs and outputs begin, all together. [where the program has them]
            addresses: Where single inputs and outputs begin, by name, such as in buffers of an application.

        Raises:
            FileError: The file cannot be read, was altered, or is of another version, which is named.
            MachineError: The program was made for another machine; a parameter is named with both values.
            ProgramError: Inputs or outputs cannot lie there.
            DeviceError: The device is closed.
        """
        self.require_open()
        where = ""
        if isinstance(program, str | Path):
            where = f"{program}: "
            program = load_program(Path(program))
        for part in device_networks(program):
            try:
                require_machine(part, self.info.machine)
            except MachineError as error:
                raise MachineError(f"{where}{error}") from None
        if io_address is not None or addresses:
            program = _relocate(program, io_address, addresses or {})
        loaded = LoadedProgram(self, program)
        self._loaded.append(loaded)
        return loaded

    def require_open(self) -> None:
        """Raises `DeviceError` if the device has been closed."""
        if not self._open:
            raise DeviceError(f"{self.info.name}: the device is closed: open it again")

    def close(self) -> None:
        """Ends everything that runs on the device."""
        for program in self._loaded:
            program.close()
        self._loaded.clear()
        self._open = False

    def __repr__(self) -> str:
        return f"Device({self.info.name!r}, {self.mode!r})"


def _relocate(program: AnyProgram, io_address: int | None, addresses: Mapping[str, int]) -> AnyProgram:
    if isinstance(program, Partitioned):
        raise ProgramError(
            "parts of it run on the host: only the inputs and outputs of a single part can lie elsewhere"
        )
    if io_address is not None and addresses:
        raise ProgramError("give one address for all inputs and outputs, or single ones by name")
    wrong = [each for each in (io_address, *addresses.values()) if each is not None and not 0 <= each < 2**64]
    if wrong:
        raise ProgramError(f"address {wrong[0]} is not one of 64 bits")
    return program.relocated(io_address, dict(addresses))


class LoadedProgram(Closing):
    """A program on a device.

    Attributes:
        device: The device.
        name: Name of the network.
        inputs: What it takes, in the model's order.
        outputs: What it gives.
    """

    def __init__(self, device: Device, program: AnyProgram) -> None:
        self.device = device
        self.program = program
        self.name = program.name
        self.inputs: tuple[TensorDescription, ...]
        self.outputs: tuple[TensorDescription, ...]
        if isinstance(program, Partitioned):
            self.inputs, self.outputs = of_ports(program.inputs), of_ports(program.outputs)
        else:
            self.inputs, self.outputs = descriptions(program.metadata())
        self.sessions = [Session(part) for part in device_networks(program)]
        self._open = True
        self._inferences: list[Inference] = []

    def state(self) -> State:
        """A state without rows that stays on the device; programs of a network can share it.

        Raises:
            SampleError: The program has no state.
        """
        if isinstance(self.program, Partitioned):
            raise SampleError(f'program "{self.name}" has no state: parts of it run on the host')
        (session,) = self.sessions
        return State(session, self.program.metadata(), self.inputs, self.outputs)

    def inference(self, in_flight: int = IN_FLIGHT, state: State | None = None) -> Inference:
        """Something to run the program with.

        Args:
            in_flight: How many submitted inferences may run at a time.
            state: What its steps run behind. [one of its own, without rows]

        Raises:
            DeviceError: The program was unloaded, or its device closed.
        """
        self.require_open()
        made = Inference(self, in_flight, state)
        self._inferences.append(made)
        return made

    def require_open(self) -> None:
        """Raises `DeviceError` if the program has been unloaded."""
        self.device.require_open()
        if not self._open:
            raise DeviceError(f'program "{self.name}" was unloaded: load it again')

    def close(self) -> None:
        """Unloads the program, after what was submitted has run."""
        for inference in self._inferences:
            inference.close()
        self._inferences.clear()
        self._open = False

    def __repr__(self) -> str:
        return f"LoadedProgram({self.name!r} on {self.device.info.name!r})"
