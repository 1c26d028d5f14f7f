"""Names of calibration strategies, which may carry numbers: `3std`, `0.9percentile`, `pct[99.9]`.

extrema  mean  mse  mae  lp[p]  [R]percentile  pct[p]  [N]std  [N]kld  [R]aciq_laplace  [R]aciq_gauss
weighted_scale_param[r1,r2,r3,r4]  in_ir
"""

from __future__ import annotations

import re

__all__ = ["STRATEGIES", "known_strategy", "parsed_strategy", "parsed_trim"]

STRATEGIES = (
    "extrema", "mean", "percentile", "pct", "mse", "mae", "lp", "kld", "std", "aciq_laplace", "aciq_gauss",
    "weighted_scale_param", "in_ir",
)  # fmt: skip
"""Strategies without their numbers; `tpuflow.calibration.STRATEGIES` holds what they do."""

LEADING = frozenset({"percentile", "std", "kld", "aciq_laplace", "aciq_gauss"})
"""Those that may begin with a number."""

NUMBERS = {"pct": 1, "lp": 1, "weighted_scale_param": 4}
"""Those that may be followed by so many numbers in brackets."""

FORM = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)?\s*([a-z_]+)\s*(?:\[([^\]]*)\])?\s*")


def parsed_strategy(text: str) -> tuple[str, tuple[float, ...]]:
    """The strategy and its numbers, none where it has none.

    Raises:
        ValueError: It is no strategy, or has numbers it does not take.
    """
    form = FORM.fullmatch(text)
    name = form.group(2) if form else ""
    if form is None or name not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise ValueError(f'"{text}" is not a calibration strategy, choose one of {known}')
    lead, listed = form.group(1), form.group(3)
    if lead is not None and name not in LEADING:
        raise ValueError(f'"{text}": {name} has no number in front')
    if listed is not None and name not in NUMBERS:
        raise ValueError(f'"{text}": {name} has no numbers behind it')
    try:
        numbers = (
            [float(lead)]
            if lead is not None
            else [float(item) for item in (listed or "").split(",") if item.strip()]
        )
    except ValueError:
        raise ValueError(f'"{text}": [{listed}] must hold numbers') from None
    if listed is not None and len(numbers) != NUMBERS[name]:
        raise ValueError(f'"{text}": {name} takes {NUMBERS[name]} numbers, there are {len(numbers)}')
    if lead is not None and not numbers[0] > 0:
        raise ValueError(f'"{text}": the number must be above 0')
    if name == "kld" and lead is not None and numbers[0] != int(numbers[0]):
        raise ValueError(f'"{text}": the number of thresholds must be whole')
    if name == "pct" and numbers and not 0 < numbers[0] <= 100:
        raise ValueError(f'"{text}": a percentile lies above 0 and is at most 100')
    if name == "lp" and numbers and not 0 < numbers[0] <= 16:
        raise ValueError(f'"{text}": the power of errors lies above 0 and is at most 16')
    return name, tuple(numbers)


def known_strategy(name: str) -> str:
    """`name`, if it is a strategy with the numbers it takes.

    Raises:
        ValueError: It is not.
    """
    parsed_strategy(name)
    return name


TRIM = re.compile(r"\s*(clip|second)\s*\(([^,()]+),([^,()]+)\)\s*")


def parsed_trim(text: str) -> tuple[str, float, float] | None:
    """`clip` or `second` and its two bounds; None for an empty text.

    Raises:
        ValueError: It is neither, or the bounds are no numbers in order.
    """
    if not text.strip():
        return None
    form = TRIM.fullmatch(text)
    if form is None:
        raise ValueError(f'"{text}" is neither clip(a,b) nor second(a,b)')
    try:
        low, high = float(form.group(2)), float(form.group(3))
    except ValueError:
        raise ValueError(f'"{text}": the bounds must be numbers') from None
    if not low < high:
        raise ValueError(f'"{text}": the lower bound must be below the upper one')
    return form.group(1), low, high
