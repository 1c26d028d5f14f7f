"""Exceptions for errors in the user's input, with messages that are ready to be shown.

Every message is one clear sentence in lower case, without a full stop, that names the file, layer, tensor
or field and, where it is not obvious, what to do about it. The command line prints the text and exits with
status 1; anything that is *not* a `TpuflowError` is a defect of this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AllocationError",
    "DeviceError",
    "EventError",
    "FileError",
    "Finding",
    "GraphError",
    "MachineError",
    "ModelError",
    "ProgramError",
    "RangesError",
    "SampleError",
    "ShortfallError",
    "TpuflowError",
    "UndecidedError",
    "UnsupportedModelError",
    "VerificationError",
]


class TpuflowError(Exception):
    """The request or its input is wrong; the text says what, where and what to do.

    It is one line, and one more for each detail: ends of lines in what it quotes from a file are escaped.

    Attributes:
        exit_status: Of the command line.
        details: Lines of a list behind the sentence.
    """

    exit_status = 1

    def __init__(self, text: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(text, tuple(details))
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n  ".join(_one_line(line) for line in (self.args[0], *self.details))


def _one_line(text: str) -> str:
    return "".join(
        char.encode("unicode_escape").decode() if len(char.splitlines()[0]) == 0 else char for char in text
    )


class ShortfallError(TpuflowError):
    """Everything was computed, and the result is below the bar that was asked for."""

    exit_status = 3


class UndecidedError(TpuflowError):
    """There is no answer within the limits of the search."""

    exit_status = 4


class ModelError(TpuflowError):
    """A model file (or model in memory) cannot be read, or contradicts itself or the options given."""


class NoKernelError(ModelError):
    """onnxruntime knows an operator of a model, but cannot compute it with these types or options."""


class SampleError(TpuflowError):
    """Arrays fed to a model have a wrong name, shape or type, or there are none."""


class RangesError(TpuflowError):
    """Ranges of tensors, or the file that holds them, are wrong."""


class VerificationError(TpuflowError):
    """Two forms of a model that must compute the same do not."""


class AllocationError(TpuflowError):
    """Buffers to be placed make no sense, or no place for all of them was found."""


class EventError(TpuflowError):
    """A run met what its caller does not accept: an overflow, NaN or infinity."""


class FileError(TpuflowError):
    """A graph or program file cannot be read or written, was cut or altered, or is of another version."""


class GraphError(TpuflowError, ValueError):
    """A quantised graph does not fit together, or a value of it may not fit its width."""


class MachineError(TpuflowError, ValueError):
    """A machine description is unknown, incomplete or makes no sense."""


class ProgramError(TpuflowError, ValueError):
    """A program does not fit together, or does not fit the machine it is given to."""


class DeviceError(TpuflowError):
    """A device, or something opened on one, cannot do what it was asked for."""


@dataclass(frozen=True, order=True)
class Finding:
    """One reason why a model cannot be compiled.

    Attributes:
        node: Name of the offending node (or tensor, when no node is to blame).
        operator: Operator type, with its domain unless that is ONNX's own.
        attribute: The attribute or input that is out of range; None when the operator itself is unknown.
        reason: What is wrong with it, one phrase.
    """

    node: str
    operator: str
    attribute: str | None
    reason: str

    def __str__(self) -> str:
        attribute = f", {self.attribute}" if self.attribute else ""
        return f'node "{self.node}" ({self.operator}{attribute}): {self.reason}'


class UnsupportedModelError(ModelError):
    """The model is valid but has nodes outside the supported set; lists all of them at once.

    Attributes:
        source: What the model is called.
        findings: One entry per offending node and attribute, in graph order.
        cut_points: Tensors at which the model can be cut so that what comes before them is supported.
    """

    def __init__(self, source: str, findings: Sequence[Finding], cut_points: Sequence[str] = ()) -> None:
        self.source = source
        self.findings = tuple(findings)
        self.cut_points = tuple(cut_points)
        count = len(self.findings)
        nodes = "1 unsupported node" if count == 1 else f"{count} unsupported nodes"
        details = [str(finding) for finding in self.findings]
        if self.cut_points:
            details.append(f"to do without them, cut the model: --cut-outputs {','.join(self.cut_points)}")
        super().__init__(f"{source}: {nodes}{':' if count else ''}", details)

    def __reduce__(self) -> tuple[type[UnsupportedModelError], tuple[object, ...]]:
        return type(self), (self.source, self.findings, self.cut_points)
