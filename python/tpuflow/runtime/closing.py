"""The `with` block of devices, programs and inferences, which ends in `close`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Closing"]


class Closing(ABC):
    """Something that is closed at the end of a `with` block, also when the block fails."""

    @abstractmethod
    def close(self) -> None:
        """Ends everything that runs; closing twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
