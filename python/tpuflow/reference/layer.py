"""One layer of a graph as the reference sees it: its fields, and the tensors they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuflow.reference import linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuflow.reference.rounding import Integers


class Layer:
    """One layer's fields, with tensors of the run looked up by number.

    Attributes:
        op: The operator's fields as in the graph's JSON.
    """

    def __init__(self, op: Mapping[str, Any], values: Mapping[int, Integers], tensors: list[Any]) -> None:
        self.op = op
        self._values = values
        self._tensors = tensors

    def value(self, field: str) -> Integers:
        """The tensor that a field names."""
        return self._values[self.op[field]]

    def optional(self, field: str) -> Integers | None:
        """The tensor that a field names, None where the field is absent."""
        return None if self.op.get(field) is None else self.value(field)

    def zero_point(self, field: str) -> int:
        """Zero point of the tensor that a field names."""
        return self.zero_point_of(self.op[field])

    def zero_point_of(self, tensor: int) -> int:
        """Zero point of a tensor, 0 where it has no quantisation."""
        quant = self._tensors[tensor].get("quant")
        return 0 if quant is None else int(quant["zero_point"])

    def tensor(self, number: int) -> Integers:
        """A tensor by number."""
        return self._values[number]

    def fields(self, *names: str) -> dict[str, Any]:
        """Some fields, as keyword arguments."""
        return {name: self.op[name] for name in names}

    def table(self) -> dict[str, Any] | None:
        """The fused table with its entries in place of their tensor's number."""
        table = self.op["epilogue"].get("table")
        return None if table is None else {**table, "entries": self.tensor(table["entries"])}

    def finish(self, sums: Integers, bias: Integers | None) -> Integers:
        """Codes of the sums of a linear operator, and its biases."""
        epilogue = self.op["epilogue"]
        return linear.epilogue(sums, bias, epilogue["requant"], self.table(), epilogue.get("first_shift"))

    def dtype(self, field: str) -> str:
        """Element type of the tensor that a field names."""
        return str(self._tensors[self.op[field]]["dtype"])
