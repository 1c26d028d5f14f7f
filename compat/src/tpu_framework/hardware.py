"""Machines as parameters: those that come with the package by name, and any a user makes of one of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from tpuflow.compiler.program import machine_text, machine_toml
from tpuflow.errors import MachineError
from tpuflow.io.files import parse_toml

__all__ = ["ModelParameters", "TPU_128x128_PARAMS", "TpuParameters", "get_hw_params"]


@dataclass(frozen=True)
class TpuParameters:
    """What programs for a machine depend on.

    Attributes:
        cache_word_length: Bytes of a cache word.
        rows: Rows of the array.
        columns: Columns of the array.
        clock_hz: Clock.
        ddr_bytes_per_second: Of all channels together.
    """

    cache_word_length: int
    rows: int
    columns: int
    clock_hz: int
    ddr_bytes_per_second: int


@dataclass(frozen=True)
class ModelParameters:
    """A whole machine, as the tables of its TOML file.

    Attributes:
        machine: Names and values; nested as in the file.
    """

    machine: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.machine["name"])

    @property
    def tpu_parameters(self) -> TpuParameters:
        """See `TpuParameters`."""
        array, cache, ddr = (self.machine[key] for key in ("array", "cache", "ddr"))
        return TpuParameters(
            int(cache["word_bytes"]),
            int(array["rows"]),
            int(array["columns"]),
            int(self.machine["clock_hz"]),
            int(ddr["channels"]) * int(ddr["word_bytes"]) * int(ddr["clock_hz"]),
        )

    def replace(self, **values: Any) -> ModelParameters:
        """Another machine: `replace(name="mine", array__rows=64)`; two underscores lead into a table.

        Raises:
            MachineError: There is no such parameter.
        """
        content = json.loads(json.dumps(self.machine))
        for key, value in values.items():
            *tables, last = key.split("__")
            place = content
            for table in tables:
                place = place.get(table, {})
            if last not in place:
                raise MachineError(f'machine "{self.name}" has no parameter {key.replace("__", ".")}')
            place[last] = value
        return ModelParameters(content)

    def to_toml(self) -> str:
        """The machine's file."""
        return machine_toml(self.machine)


def get_hw_params(tpu_type: str | PathLike[str]) -> ModelParameters:
    """A machine by name, such as `128x128_asic`, or from a TOML file.

    Raises:
        MachineError: There is none; the message lists the names.
    """
    return ModelParameters(parse_toml(machine_text(tpu_type), str(tpu_type), MachineError))


TPU_128x128_PARAMS = get_hw_params("128x128_asic")
