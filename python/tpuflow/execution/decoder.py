"""A decoder at work: phases of one model, and the caches that pass between their runs.

    decoder = Decoder([prefill, decode])            # levels: graphs, programs or float models, one a phase
    logits = decoder.step(prompt)                   # [tokens, vocabulary]
    logits = decoder.step([logits[-1].argmax()])    # one more, after all before

A phase is known by the shapes of its network: how many tokens it takes at once, and how many it sees
(`frontend.specialize`). Tokens are fed in as few runs as the phases allow; a phase that takes more than are
left is filled up with places that are left out. Rows of a cache stand at the place of their token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import SampleError
from tpuflow.frontend import Phase, caches_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuflow.execution.levels import Level
    from tpuflow.frontend import Cache

__all__ = ["Decoder", "PhaseLevel", "phase_feed"]

Array = NDArray[Any]


def phase_feed(
    level: Level, phase: Phase, caches: dict[str, Array] | None, tokens: Sequence[int], position: int
) -> dict[str, Array]:
    """The inputs of a phase: tokens from a position on, with the rows of the caches before it.

    Args:
        level: The network, for its inputs.
        phase: What it computes at once.
        caches: Rows by the name of the input, as many as the position says or more; None where they stay on
            the device.
        tokens: At most as many as the phase takes.
        position: Of the first.
    """
    count, past = len(tokens), phase.past
    feed: dict[str, Array] = {}
    for port in level.ports:
        if caches is None and port.name.startswith("past"):
            continue
        if port.name.startswith("past"):
            rows = np.zeros(port.shape, port.dtype)
            if position and caches is not None:
                rows[..., :position, :] = caches[port.name][..., :position, :]
            feed[port.name] = rows
        elif port.name == "input_ids":
            feed[port.name] = _pad(tokens, phase.sequence, port.dtype, 0)
        elif port.name == "position_ids":
            places = np.minimum(np.arange(position, position + phase.sequence), phase.context - 1)
            feed[port.name] = places[np.newaxis].astype(port.dtype)
        elif port.name == "attention_mask":
            mask = np.zeros((1, phase.context), port.dtype)
            mask[:, :position] = 1
            mask[:, past : past + count] = 1
            feed[port.name] = mask
        else:
            raise SampleError(
                f'input "{port.name}" of a decoder is none of input_ids, position_ids, attention_mask and '
                "caches"
            )
    return feed


def _pad(tokens: Sequence[int], size: int, dtype: Any, fill: int) -> Array:
    row = np.full((1, size), fill, dtype)
    row[0, : len(tokens)] = tokens
    return row


@dataclass(frozen=True)
class PhaseLevel:
    """A network of one phase.

    Attributes:
        level: The network.
        phase: What it computes at once.
        caches: Its caches.
    """

    level: Level
    phase: Phase
    caches: tuple[Cache, ...]

    @classmethod
    def of(cls, level: Level) -> PhaseLevel:
        """Reads the phase off the shapes of a network.

        Raises:
            SampleError: It is no decoder of static shape, see `frontend.specialize`.
        """
        shapes = {port.name: tuple(port.shape) for port in level.ports}
        ids = shapes.get("input_ids")
        if ids is None or len(ids) != 2 or ids[0] != 1:
            raise SampleError("a decoder takes input_ids [1, sequence]; this network does not")
        found = tuple(caches_of(list(shapes), list(level.outputs)))
        past = shapes[found[0].past][-2] if found else 0
        return cls(level, Phase(ids[1], ids[1] + past), found)


class Decoder:
    """Steps a decoder through tokens.

    Attributes:
        phases: The networks at hand, the shortest first.
        longest: The longest context.
        position: Tokens so far.
        caches: Rows by the name of the input, of which as many count as there are tokens.

    Args:
        levels: Networks of one model, each of a phase.
        ran: Told of every run, with its network and the number of tokens that were new.

    Raises:
        SampleError: A network is no decoder, or there is none.
    """

    def __init__(
        self, levels: Sequence[Level], ran: Callable[[PhaseLevel, int], None] = lambda _, __: None
    ) -> None:
        self.phases = sorted(
            map(PhaseLevel.of, levels), key=lambda each: (each.phase.sequence, each.phase.context)
        )
        if not self.phases:
            raise SampleError("a decoder needs a network")
        self._ran = ran
        # A phase without a past has no inputs for it, but gives rows all the same.
        self._pasts = {cache.present: cache.past for each in self.phases for cache in each.caches}
        self.longest = max(each.phase.context for each in self.phases)
        self.reset()

    def reset(self) -> None:
        """Forgets all tokens."""
        self.position = 0
        self.caches: dict[str, Array] = {}

    def step(self, tokens: Sequence[int]) -> Array:
        """Feeds tokens after those before, and gives their logits [tokens, vocabulary].

        Raises:
            SampleError: No phase reaches so far.
        """
        given = [int(token) for token in tokens]
        parts = []
        while given:
            chosen = self._chosen(len(given))
            count = min(len(given), chosen.phase.sequence)
            parts.append(self._run(chosen, given[:count]))
            given = given[count:]
        return np.concatenate(parts)

    def generate(
        self, tokens: Sequence[int], count: int, progress: Callable[[int, int], None] | None = None
    ) -> list[int]:
        """Feeds tokens, and then the likeliest next one, again and again: `count` new ones.

        Raises:
            SampleError: There are no tokens, one is none of the vocabulary, or no phase reaches so far.
        """
        if not tokens:
            raise SampleError("a text needs a first token")
        found: list[int] = []
        logits = self.step(tokens)
        while True:
            found.append(int(logits[-1].argmax()))
            if progress is not None:
                progress(len(found), count)
            if len(found) == count:
                return found
            logits = self.step(found[-1:])

    def _chosen(self, count: int) -> PhaseLevel:
        """The phase for so many tokens: the shortest that takes them all, or the longest there is."""
        able = [
            each
            for each in self.phases
            if each.phase.past >= self.position
            and self.position + min(count, each.phase.sequence) <= self.longest
        ]
        if not able:
            reach = max((each.phase.past for each in self.phases), default=0)
            raise SampleError(
                f"token {self.position} lies beyond the context: the networks at hand reach {reach} before a "
                "run; build one with a longer --context"
            )
        whole = [each for each in able if each.phase.sequence >= count]
        most = max(each.phase.sequence for each in able)
        fitting = whole or [each for each in able if each.phase.sequence == most]
        return min(fitting, key=lambda each: (each.phase.sequence, each.phase.context))

    def _run(self, chosen: PhaseLevel, tokens: Sequence[int]) -> Array:
        phase, count = chosen.phase, len(tokens)
        outputs = self._compute(chosen, tokens)
        for present, past in self._pasts.items():
            if present in outputs:
                self._append(past, outputs[present][..., -phase.sequence :, :][..., :count, :])
        self.position += count
        self._ran(chosen, count)
        return outputs["logits"][0, :count]

    def _compute(self, chosen: PhaseLevel, tokens: Sequence[int]) -> dict[str, Array]:
        """The outputs of a run behind the tokens so far."""
        feed = phase_feed(chosen.level, chosen.phase, self.caches, tokens, self.position)
        return chosen.level.run(feed)

    def _append(self, past: str, rows: Array) -> None:
        """Writes new rows behind those before; there is room for the longest context from the first on."""
        if past not in self.caches:
            self.caches[past] = np.zeros((*rows.shape[:-2], self.longest, rows.shape[-1]), rows.dtype)
        self.caches[past][..., self.position : self.position + rows.shape[-2], :] = rows
