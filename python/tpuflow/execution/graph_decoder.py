"""A decoder of integer graphs whose caches stay in the interpreter: no step takes or returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.execution.decoder import Decoder, PhaseLevel, phase_feed
from tpuflow.execution.levels import GraphLevel, shared_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuflow.execution.levels import Level

__all__ = ["GraphDecoder", "graph_decoder"]

Array = NDArray[Any]


def graph_decoder(
    levels: Sequence[Level], ran: Callable[[PhaseLevel, int], None] = lambda _, __: None
) -> Decoder:
    """A decoder of graphs, with its caches in the interpreter if all of them are states.

    Raises:
        SampleError: As for `Decoder`.
    """
    whole = [level for level in levels if isinstance(level, GraphLevel)]
    pasts = [phase for phase in map(PhaseLevel.of, levels) if phase.phase.past]
    held = all(
        isinstance(phase.level, GraphLevel) and len(phase.level.states) == len(phase.caches)
        for phase in pasts
    )
    if len(whole) < len(levels) or not pasts or not held:
        return Decoder(levels, ran)
    return GraphDecoder(whole, ran)


class GraphDecoder(Decoder):
    """Steps graphs through tokens; those with a past share the rows of their states.

    Args:
        levels: Of one model, each of a phase.
        ran: As for `Decoder`.

    Raises:
        SampleError: As for `Decoder`, or graphs have different states.
    """

    def __init__(
        self, levels: Sequence[GraphLevel], ran: Callable[[PhaseLevel, int], None] = lambda _, __: None
    ) -> None:
        with_states = [level for level in levels if level.states]
        self._state = shared_state(with_states)
        self._longest_past = max(with_states, key=lambda level: PhaseLevel.of(level).phase.past)
        self._levels = {id(level): level for level in levels}
        super().__init__(levels, ran)

    def reset(self) -> None:
        """See `Decoder`."""
        super().reset()
        self._state.reset()

    def _compute(self, chosen: PhaseLevel, tokens: Sequence[int]) -> dict[str, Array]:
        level = self._levels[id(chosen.level)]
        if level.states:
            feed = phase_feed(level, chosen.phase, None, tokens, self.position)
            return level.step(feed, self._state, self.position)
        outputs = level.run(phase_feed(level, chosen.phase, {}, tokens, self.position))
        return self._keep_rows(outputs, len(tokens))

    def _keep_rows(self, outputs: dict[str, Array], count: int) -> dict[str, Array]:
        """Writes the rows of a graph without a past to the state; gives its other outputs."""
        longest = self._longest_past
        ports = dict(zip(longest.input_names, longest.ports, strict=True))
        rows = []
        for past, new in longest.states:
            port, found = ports[past], outputs.pop(longest.shown[new].name)
            whole = np.zeros(port.shape, port.dtype)
            kept = min(count, port.shape[-2])
            whole[..., :kept, :] = found[..., :kept, :]
            rows.append(port.encode(whole))
        self._state.write(rows, min(count, ports[longest.states[0][0]].shape[-2]))
        return outputs
