"""Perplexity of a decoder: how surprised it is by text it did not see, its cache stepped as in use.

    exp(mean over tokens of -log p(token | all before it in its row))

The first tokens of a row are the prompt, fed at once; all others are fed one by one, and what follows each of
those is scored. Two decoders are compared token by token: their losses differ far less than texts do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuflow.execution.decoder import Decoder

__all__ = ["Perplexity", "losses", "paired_perplexity"]

Losses = NDArray[np.float64]


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a decoder.

    Attributes:
        tokens: Tokens that were scored.
        value: Its perplexity.
        reference: That of the float decoder, if it was run.
        change: By how much the first is larger, as a share of the second.
        standard_error: Of the change, by the rows' mean differences.
    """

    tokens: int
    value: float
    reference: float | None = None
    change: float | None = None
    standard_error: float | None = None

    def to_json(self) -> dict[str, Any]:
        """All figures by name."""
        return {"metric": "perplexity", **self.__dict__}


def losses(
    decoder: Decoder, rows: NDArray[Any], prompt: int, progress: Callable[[int, int], None] | None = None
) -> Losses:
    """Negative log-likelihoods `[rows, tokens - prompt - 1]` of what follows each token behind the prompt.

    Args:
        decoder: What to score.
        rows: Tokens `[rows, tokens]`.
        prompt: Tokens fed at once, at least one.
        progress: Told after every row.

    Raises:
        SampleError: Rows are no longer than the prompt, or longer than the context.
    """
    if rows.ndim != 2 or rows.dtype.kind not in "iu" or rows.shape[1] < prompt + 2 or prompt < 1:
        raise SampleError(
            f"tokens are {rows.dtype} {list(rows.shape)}: rows of integers are needed, longer than "
            f"the prompt of {prompt}"
        )
    if rows.shape[1] - 1 > decoder.longest:
        raise SampleError(f"rows of {rows.shape[1]} tokens exceed the context of {decoder.longest}")
    found = np.zeros((len(rows), rows.shape[1] - prompt - 1))
    for at, row in enumerate(rows):
        decoder.reset()
        decoder.step(row[:prompt])
        for place in range(prompt, len(row) - 1):
            found[at, place - prompt] = _loss(decoder.step(row[place : place + 1])[-1], row[place + 1])
        if progress is not None:
            progress(at + 1, len(rows))
    return found


def _loss(logits: NDArray[Any], token: int) -> float:
    scores = logits.astype(np.float64)
    scores -= scores.max()
    return float(math.log(np.exp(scores).sum()) - scores[token])


def paired_perplexity(found: Losses, reference: Losses | None = None) -> Perplexity:
    """The perplexity of losses, beside those of the float decoder on the same tokens."""
    value = math.exp(found.mean())
    if reference is None:
        return Perplexity(found.size, value)
    rows = (found - reference).mean(axis=1)
    change = math.expm1(rows.mean())
    error = rows.std(ddof=1) / math.sqrt(len(rows)) * (1 + change) if len(rows) > 1 else math.nan
    return Perplexity(found.size, value, math.exp(reference.mean()), change, error)
