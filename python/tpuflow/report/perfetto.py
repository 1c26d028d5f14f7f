"""The timeline as a Perfetto trace, to be opened at ui.perfetto.dev or by its command-line tools.

One track per unit and phase (issue, execute, drain) with a slice per instruction, and one counter of the
cache bytes in use. A cycle is
written as its time at the machine's clock, in whole nanoseconds, as the format wants; the exact cycles stand
in the arguments of every slice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuflow.report.words import PHASES, UNITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuflow.report.timeline import Slice, Timeline

__all__ = ["encode_trace"]

PROCESS, CACHE = 1, 2
FIRST_UNIT = 10
SEQUENCE = 1


def encode_trace(charts: Timeline, clock_hz: int, name: str) -> bytes:
    """A trace file.

    Args:
        charts: What to write.
        clock_hz: Cycles per second.
        name: Name of the program, shown as a process.
    """
    # Nothing else needs protocol buffers of Perfetto.
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb  # noqa: PLC0415
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder  # noqa: PLC0415

    builder = TraceProtoBuilder()

    def packet(timestamp: int | None = None) -> Any:
        made = builder.add_packet()
        made.trusted_packet_sequence_id = SEQUENCE
        if timestamp is not None:
            made.timestamp = timestamp * 1_000_000_000 // clock_hz
        return made

    process = packet().track_descriptor
    process.uuid, process.process.pid, process.process.process_name = PROCESS, 1, name
    counter = packet().track_descriptor
    counter.uuid, counter.parent_uuid, counter.name = CACHE, PROCESS, "cache in use"
    counter.counter.unit = pb.CounterDescriptor.UNIT_SIZE_BYTES
    order = {unit: number for number, unit in enumerate(UNITS)}
    tracks: dict[tuple[str, str, int], int] = {}
    for row, part in _rows(charts.slices):
        place = (part.unit, part.phase, row)
        if place not in tracks:
            tracks[place] = FIRST_UNIT + len(tracks)
            track = packet().track_descriptor
            track.uuid, track.parent_uuid = tracks[place], PROCESS
            short, long = UNITS[part.unit]
            track.name = f"{short} {long}" if part.phase == "execute" else f"{short} {part.phase}"
            track.sibling_order_rank = 10 * order[part.unit] + PHASES.index(part.phase)
        _slice(packet, part, charts.layers[part.layer], tracks[place], pb)
    used = 0
    changes = [(part.start, part.size) for part in charts.allocations]
    changes += [(part.end, -part.size) for part in charts.allocations]
    for cycle, change in sorted(changes):
        used += change
        event = packet(cycle).track_event
        event.type, event.track_uuid, event.counter_value = pb.TrackEvent.TYPE_COUNTER, CACHE, used
    return bytes(builder.serialize())


def _rows(slices: Sequence[Slice]) -> Iterator[tuple[int, Slice]]:
    """Slices by start, each with the first free row of its unit and phase: on a track they must not cross."""
    free: dict[tuple[str, str], list[int]] = {}
    for part in sorted(slices, key=lambda part: (part.start, part.end)):
        ends = free.setdefault((part.unit, part.phase), [])
        row = next((row for row, end in enumerate(ends) if end <= part.start), len(ends))
        ends[row : row + 1] = [part.end]
        yield row, part


def _slice(packet: Any, part: Slice, layer: str, track: int, pb: Any) -> None:
    begin = packet(part.start).track_event
    begin.type, begin.track_uuid = pb.TrackEvent.TYPE_SLICE_BEGIN, track
    begin.name = layer if part.phase == "execute" else f"{layer} ({part.phase})"
    begin.categories.append(part.phase)
    numbers = {"instruction": part.instruction, "start_cycle": part.start, "end_cycle": part.end}
    if part.moved:
        numbers["bytes"] = abs(part.moved)
    for key, value in numbers.items():
        argument = begin.debug_annotations.add()
        argument.name, argument.int_value = key, value
    argument = begin.debug_annotations.add()
    argument.name, argument.string_value = "work", part.text
    end = packet(part.end).track_event
    end.type, end.track_uuid = pb.TrackEvent.TYPE_SLICE_END, track
