"""Rows that stay on the device between the steps of an inference: the caches of a decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import FileError, SampleError
from tpuflow.io.files import replace_atomically
from tpuflow.runtime.core import Session

if TYPE_CHECKING:
    from tpuflow.runtime.tensors import TensorDescription

__all__ = ["State"]

Array = NDArray[Any]


class State:
    """The rows of all states of a program. A state is known by the name of its input.

    Programs of one network, whatever their contexts, can share one: the rows of a shorter context are the
    first ones of a longer.

    Attributes:
        names: Of the states.
        outputs: Of the outputs that are appended to them, in the same order.

    Raises:
        SampleError: The program has no state.
    """

    def __init__(
        self,
        session: Session,
        metadata: str,
        inputs: tuple[TensorDescription, ...],
        outputs: tuple[TensorDescription, ...],
    ) -> None:
        content = json.loads(metadata)
        self._session = session
        self.core = session.state()
        self.names = tuple(self.core.names)
        self.outputs = tuple(outputs[state["output"]].name for state in content["states"])
        self._ports: dict[str, tuple[TensorDescription, int]] = {}
        for state in content["states"]:
            port = inputs[state["input"]]
            shape, _ = session.rows_of(self.core, port.name)  # without rows yet
            self._ports[port.name] = (port, list(shape).index(0))

    @property
    def rows(self) -> int:
        """How many rows count: the next step's position, unless it says another."""
        return self.core.rows

    def reset(self, rows: int = 0) -> None:
        """Forgets rows from `rows` on."""
        self.core.truncate(rows)

    def read(self, name: str) -> Array:
        """The rows of a state that count, in the model's form.

        Raises:
            SampleError: There is no such state.
        """
        shape, found = self._session.rows_of(self.core, name)
        return np.asarray(found).view(self._ports[name][0].dtype).reshape(shape)

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Replaces all rows.

        Args:
            arrays: As many rows for every state by its name, in the model's form and type.

        Raises:
            SampleError: They are not.
        """
        if set(arrays) != set(self.names):
            wanted = ", ".join(self.names)
            raise SampleError(f"rows of all states are written at once: {wanted}")
        rows = {arrays[name].shape[self._ports[name][1]] for name in self.names}
        if len(rows) != 1:
            raise SampleError(f"states have as many rows as each other, not {sorted(rows)}")
        for name, array in arrays.items():
            port, axis = self._ports[name]
            shape = (*port.shape[:axis], *rows, *port.shape[axis + 1 :])
            if array.dtype != port.dtype or array.shape != shape:
                given, wanted = f"{array.dtype} {list(array.shape)}", f"{port.dtype} {list(shape)}"
                raise SampleError(f'state "{name}": {given}, the program has {wanted}')
        self._session.fill(self.core, rows.pop(), [arrays[name] for name in self.names])

    def save(self, path: str | Path) -> None:
        """Writes the rows that count to a file."""
        with replace_atomically(path) as to:
            to.write_bytes(self.core.save())

    def restore(self, path: str | Path) -> None:
        """Takes the rows of a file that was saved of the same states.

        Raises:
            FileError: The file cannot be read, was altered, or holds states of another program.
        """
        try:
            self.core.restore(Path(path).read_bytes())
        except (OSError, SampleError) as error:
            raise FileError(f"{path}: {error}") from None
