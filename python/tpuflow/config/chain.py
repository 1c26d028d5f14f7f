r"""The chain of global calibration: methods in order, each limited to some layers.

    gptq                     every linear layer
    adaround[Conv]           those of these operators
    gptq{blocks\..*}          those whose name fits a regular expression

Methods are joined by `&` and run in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["METHODS", "GlobalMethod", "parsed_chain"]

METHODS = ("gptq", "adaround")
"""Methods of global calibration."""

FORM = re.compile(r"\s*([a-z_]+)\s*(?:\[([^\]]*)\])?\s*(?:\{(.*)\})?\s*")


@dataclass(frozen=True)
class GlobalMethod:
    """A method and the layers it is for.

    Attributes:
        name: One of `METHODS`.
        operators: Operator types; all where empty.
        pattern: Regular expression on whole names of nodes and tensors; all where empty.
    """

    name: str
    operators: tuple[str, ...] = ()
    pattern: str = ""

    def fits(self, operator: str, *names: str) -> bool:
        """Whether a layer is within the scope."""
        named = not self.pattern or any(re.fullmatch(self.pattern, name) for name in names)
        return named and (not self.operators or operator in self.operators)


def parsed_chain(text: str) -> tuple[GlobalMethod, ...]:
    """The methods of a chain; none for "none" or an empty text.

    Raises:
        ValueError: A method is unknown, twice the same for the same layers, or its scope is no expression.
    """
    if text.strip() in {"", "none"}:
        return ()
    found: list[GlobalMethod] = []
    for part in text.split("&"):
        form = FORM.fullmatch(part)
        if form is None or form.group(1) not in METHODS:
            raise ValueError(
                f'"{part.strip()}" is not a method of global calibration, choose of {", ".join(METHODS)}'
            )
        operators = tuple(name.strip() for name in (form.group(2) or "").split(",") if name.strip())
        pattern = form.group(3) or ""
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f'"{pattern}" is no regular expression: {error}') from None
        method = GlobalMethod(form.group(1), operators, pattern)
        if method in found:
            raise ValueError(f'"{part.strip()}" stands twice in the chain')
        found.append(method)
    return tuple(found)
