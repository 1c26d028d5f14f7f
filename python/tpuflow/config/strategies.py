"""Parses names of calibration strategies, which may carry numbers: `3std`, `0.9percentile`, `pct[99.9]`.

extrema  mean  mse  mae  lp[p]  [R]percentile  pct[p]  [N]std  [N]kld  [R]aciq_laplace  [R]aciq_gauss
weighted_scale_param[r1,r2,r3,r4]  in_ir
"""

from __future__ import annotations

import re

from tpuflow.config.choices import choices
from tpuflow.strategies import STRATEGIES

__all__ = ["known_strategy", "parsed_strategy", "parsed_trim"]

FORM = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)?\s*([a-z_]+)\s*(?:\[([^\]]*)\])?\s*")


def parsed_strategy(text: str) -> tuple[str, tuple[float, ...]]:
    """The strategy and its numbers, none where it has none.

    Raises:
        ValueError: It is no strategy, or has numbers it does not take.
    """
    form = FORM.fullmatch(text)
    name = form.group(2) if form else ""
    if form is None or name not in STRATEGIES:
        word = name or text
        raise ValueError(f'"{text}" is not a calibration strategy, {choices(word, STRATEGIES)}')
    lead, listed, strategy = form.group(1), form.group(3), STRATEGIES[name]
    if lead is not None and not strategy.leading:
        raise ValueError(f'"{text}": {name} has no number in front')
    if listed is not None and not strategy.numbers:
        raise ValueError(f'"{text}": {name} has no numbers behind it')
    try:
        numbers = (
            [float(lead)]
            if lead is not None
            else [float(item) for item in (listed or "").split(",") if item.strip()]
        )
    except ValueError:
        raise ValueError(f'"{text}": [{listed}] must hold numbers') from None
    if listed is not None and len(numbers) != strategy.numbers:
        raise ValueError(f'"{text}": {name} takes {strategy.numbers} numbers, there are {len(numbers)}')
    if lead is not None and not numbers[0] > 0:
        raise ValueError(f'"{text}": the number must be above 0')
    if wrong := strategy.wrong(tuple(numbers)):
        raise ValueError(f'"{text}": {wrong}')
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
