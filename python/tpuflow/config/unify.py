"""Rules by which operands of operators get one scale: `[(Concat, 20, 1.05, min), (Add, 0, 2, out)]`.

Each is an operator type, how many operators that pass codes on may stand between an operand and what makes
its codes (0: any number), how many times the smallest step the largest may be, and a method:

    min        the widest grid, which cuts nothing off      max      steps as fine as the finest operand's
    avg        as many codes per unit as on average         out      the grid of the first result
    first      the grid of the first operand                largest  that of the operand with most elements
    skip       none: operands keep their own, whatever else is said of concatenations

Names follow the published ones, which count codes per unit: the least of those is the widest grid. `Eltwise`
stands for sums, differences, products, and the larger and smaller of two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["METHODS", "UnifyRule", "parsed_unify"]

METHODS = ("max", "min", "avg", "out", "first", "largest", "skip")

GROUPS = {"eltwise": ("Add", "Sub", "Mul", "Max", "Min")}
"""Names that stand for several operators."""

ENTRY = re.compile(r"\(\s*(\w+)\s*,\s*(\d+)\s*,\s*(\d+(?:\.\d*)?)\s*,\s*(\w+)\s*,?\s*\)")
FORM = re.compile(rf"\s*\[\s*{ENTRY.pattern}(?:\s*,\s*{ENTRY.pattern})*\s*,?\s*\]\s*")


@dataclass(frozen=True)
class UnifyRule:
    """The rule for operators of one type.

    Attributes:
        operator: As it was written.
        depth: Operators that pass codes on, at most; 0 for any number.
        threshold: The largest step over the smallest one, at most.
        method: One of `METHODS`.
    """

    operator: str
    depth: int
    threshold: float
    method: str

    def fits(self, operator: str) -> bool:
        """Whether it is for operators of a type."""
        named = GROUPS.get(self.operator.lower(), (self.operator,))
        return operator.lower() in (each.lower() for each in named)


def parsed_unify(text: str) -> tuple[UnifyRule, ...]:
    """The rules of a text; none where it is empty.

    Raises:
        ValueError: It has another form, a method there is not, or a threshold below 1.
    """
    if not text.strip():
        return ()
    if FORM.fullmatch(text) is None:
        raise ValueError(f'"{text}" must be like [(Concat, 20, 1.05, min), (Add, 0, 2, out)]')
    rules = tuple(
        UnifyRule(name, int(depth), float(threshold), method.lower())
        for name, depth, threshold, method in ENTRY.findall(text)
    )
    for rule in rules:
        if rule.method not in METHODS:
            raise ValueError(f'unknown method "{rule.method}": choose one of {", ".join(METHODS)}')
        if rule.threshold < 1:
            raise ValueError(f"a threshold of {rule.threshold:g} lies below 1, no scales are so close")
    return rules
