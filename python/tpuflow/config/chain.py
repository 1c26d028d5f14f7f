r"""The chain of global calibration: methods in order, each with its numbers, each limited to some layers.

    gptq                          every linear layer
    easy_quant[8,1,0.5,2]         numbers in the order of `METHODS`; what is left out is the default
    adaround[Conv,MatMul]         layers of these operators
    adaround[(0,7),(12,20)]       layers by number: inputs first, then the nodes of the normalised model
    gptq{blocks\..*}              those whose name fits a regular expression
    smooth_quant[0.6][MatMul]     numbers first, then a scope

Methods are joined by `&` and run in order. What rounds weights for good stands behind all that scales.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tpuflow.config.choices import choices

__all__ = ["METHODS", "ROUNDING", "GlobalMethod", "parsed_chain"]

METHODS: Mapping[str, Mapping[str, float]] = {
    "equalize": {},
    "smooth_quant": {"alpha": 0.5},
    "awq": {"n_grid": 20},
    "second_moment": {},
    "easy_quant": {"batches": 8, "epochs": 1, "alpha": 0.5, "beta": 2, "nsteps": 10, "ngroups": 4},
    "auto_tune": {"batches": 8, "candidates": 20},
    "svd_quant": {"mode": 0, "alpha": 0.5, "beta": 2, "nsteps": 10, "thresh": 0.09},
    "gptq": {"sweeps": 10},
    "adaround": {
        "batches": 0, "epochs": 300, "batch_size": 1, "lr": 0.1, "reg_param": 0.1, "beta_start": 20,
        "beta_end": 2, "warm_start": 0.2,
    },
    "adaquant_zy": {
        "batches": 16, "epochs": 20, "batch_size": 4, "lr_weight": 1e-5, "lr_bias": 1e-3,
        "lr_quant_param_weight": 1e-3, "lr_quant_param_activation": 0.1,
    },
}  # fmt: skip
"""Methods of global calibration, with their numbers in order and defaults."""

COUNTS = {
    "batches": 1, "epochs": 1, "batch_size": 1, "nsteps": 1, "candidates": 2, "n_grid": 1,
    "ngroups": 0, "sweeps": 0, "mode": 0,
}  # fmt: skip
"""Those that are whole numbers, with the least they may be; all others may be zero or any fraction above."""

ROUNDING = frozenset({"gptq", "adaround", "adaquant_zy"})
"""Methods behind which none but these may stand: they fix what weights are stored as."""

FORM = re.compile(r"\s*([a-z_]+)\s*((?:\[[^\]]*\]\s*)*)(?:\{(.*)\})?\s*")
RANGE = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*\)")


@dataclass(frozen=True)
class GlobalMethod:
    """A method, its numbers and the layers it is for.

    Attributes:
        name: One of `METHODS`.
        operators: Operator types; all where empty.
        pattern: Regular expression on whole names of nodes and tensors; all where empty.
        ids: Ranges of layers by number, first and last; all where empty.
        given: Numbers, in the order of `METHODS`; the rest are defaults.
    """

    name: str
    operators: tuple[str, ...] = ()
    pattern: str = ""
    ids: tuple[tuple[int, int], ...] = ()
    given: tuple[float, ...] = ()

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers by name."""
        defaults = METHODS[self.name]
        return {**defaults, **dict(zip(defaults, self.given, strict=False))}

    def fits(self, operator: str, *names: str, number: int | None = None) -> bool:
        """Whether a layer is within the scope; `number` is its own among the network's."""
        named = not self.pattern or any(re.fullmatch(self.pattern, name) for name in names)
        counted = not self.ids or (
            number is not None and any(first <= number <= last for first, last in self.ids)
        )
        return named and counted and (not self.operators or operator in self.operators)


def parsed_chain(text: str) -> tuple[GlobalMethod, ...]:
    """The methods of a chain; none for "none" or an empty text.

    Raises:
        ValueError: A method is unknown, twice the same for the same layers, or behind one that it must stand
            before; its numbers or its scope cannot be read.
    """
    if text.strip() in {"", "none"}:
        return ()
    found: list[GlobalMethod] = []
    for part in text.split("&"):
        form = FORM.fullmatch(part)
        if form is None or form.group(1) not in METHODS:
            word = part.strip()
            raise ValueError(f'"{word}" is not a method of global calibration, {choices(word, METHODS)}')
        method = _with_brackets(form.group(1), form.group(2), form.group(3) or "")
        if method in found:
            raise ValueError(f'"{part.strip()}" stands twice in the chain')
        if found and found[-1].name in ROUNDING and method.name not in ROUNDING:
            raise ValueError(
                f'"{method.name}" cannot stand behind {found[-1].name}, which rounds weights for good: '
                "put it in front"
            )
        found.append(method)
    return tuple(found)


def _with_brackets(name: str, brackets: str, pattern: str) -> GlobalMethod:
    """A method with what its brackets hold: numbers, operators, or ranges of layers."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f'"{pattern}" is not a regular expression: {error}') from None
    given: tuple[float, ...] = ()
    operators: tuple[str, ...] = ()
    ids: tuple[tuple[int, int], ...] = ()
    for content in re.findall(r"\[([^\]]*)\]", brackets):
        items = [item.strip() for item in content.split(",") if item.strip()]
        if "(" in content:
            ids = tuple((int(first), int(last)) for first, last in RANGE.findall(content))
            if not ids or RANGE.sub("", content).strip(" ,") or any(first > last for first, last in ids):
                raise ValueError(f'{name}: "[{content}]" must hold ranges of layers, (first,last)')
        elif items and items[0][0].isalpha():
            operators = tuple(items)
        else:
            try:
                given = tuple(float(item) for item in items)
            except ValueError:
                raise ValueError(f'{name}: "[{content}]" must hold numbers or operator types') from None
    if len(given) > len(METHODS[name]):
        known = ", ".join(METHODS[name]) or "no numbers"
        raise ValueError(f"{name} takes {known}; there are {len(given)} numbers")
    for number, meaning in zip(given, METHODS[name], strict=False):
        if not math.isfinite(number):
            raise ValueError(f"{name}: {meaning} must be a finite number, it is {number:g}")
        if meaning in COUNTS and number != int(number):
            raise ValueError(f"{name}: {meaning} must be a whole number, it is {number:g}")
        if number < (least := min(COUNTS.get(meaning, 0), METHODS[name][meaning])):
            raise ValueError(f"{name}: {meaning} must be at least {least}, it is {number:g}")
    return GlobalMethod(name, operators, pattern, ids, given)
