"""The timeline as a Perfetto trace, to be opened at ui.perfetto.dev or by its command-line tools.

One track per unit and phase (issue, execute, drain) with a slice per instruction; a flow from every
instruction to those that wait for its token; counters of the cache bytes in use and of the bytes a cycle read
from and written to external memory. A cycle is written as its time at the machine's clock, in whole
nanoseconds, as the format wants; the exact cycles stand in the arguments of every slice.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tpuflow.report.words import PHASES, UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tpuflow.report.timeline import Slice, Timeline

__all__ = ["encode_trace"]

PROCESS, CACHE, READ, WRITTEN = 1, 2, 3, 4
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
    for uuid, title, unit in (
        (CACHE, "cache in use", ""),
        (READ, "DDR read", "bytes/cycle"),
        (WRITTEN, "DDR written", "bytes/cycle"),
    ):
        counter = packet().track_descriptor
        counter.uuid, counter.parent_uuid, counter.name = uuid, PROCESS, title
        if unit:
            counter.counter.unit_name = unit
        else:
            counter.counter.unit = pb.CounterDescriptor.UNIT_SIZE_BYTES
    order = {unit: number for number, unit in enumerate(UNITS)}
    tracks: dict[tuple[str, str, int], int] = {}
    begun, ended = _flows(charts)
    for number, row, part in _rows(charts.slices):
        place = (part.unit, part.phase, row)
        if place not in tracks:
            tracks[place] = FIRST_UNIT + len(tracks)
            track = packet().track_descriptor
            track.uuid, track.parent_uuid = tracks[place], PROCESS
            short, long = UNITS[part.unit]
            track.name = f"{short} {long}" if part.phase == "execute" else f"{short} {part.phase}"
            track.sibling_order_rank = 10 * order[part.unit] + PHASES.index(part.phase)
        begin = _slice(packet, part, charts.layers[part.layer], tracks[place], pb)
        begin.flow_ids.extend(begun.get(number, ()))
        begin.terminating_flow_ids.extend(ended.get(number, ()))
    for cycle, used in _levels([(part.start, part.end, part.size) for part in charts.allocations]):
        event = packet(cycle).track_event
        event.type, event.track_uuid, event.counter_value = pb.TrackEvent.TYPE_COUNTER, CACHE, int(used)
    for uuid, sign in ((READ, 1), (WRITTEN, -1)):
        moves = [part for part in charts.slices if part.moved * sign > 0 and part.end > part.start]
        rates = [(part.start, part.end, Fraction(abs(part.moved), part.end - part.start)) for part in moves]
        for cycle, rate in _levels(rates):
            event = packet(cycle).track_event
            event.type, event.track_uuid = pb.TrackEvent.TYPE_COUNTER, uuid
            event.double_counter_value = float(rate)
    return bytes(builder.serialize())


def _flows(charts: Timeline) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Numbers of the flows that begin, and that end, at a slice."""
    begun: dict[int, list[int]] = {}
    ended: dict[int, list[int]] = {}
    for flow, (producer, consumer) in enumerate(charts.flows, 1):
        begun.setdefault(producer, []).append(flow)
        ended.setdefault(consumer, []).append(flow)
    return begun, ended


def _levels(parts: Iterable[tuple[int, int, int | Fraction]]) -> Iterator[tuple[int, int | Fraction]]:
    """The sum of all amounts that hold at a time, `(start, end, amount)` each, wherever it changes."""
    changes: dict[int, int | Fraction] = {}
    for start, end, amount in parts:
        changes[start] = changes.get(start, 0) + amount
        changes[end] = changes.get(end, 0) - amount
    level: int | Fraction = 0
    for cycle in sorted(changes):
        if changes[cycle]:
            level += changes[cycle]
            yield cycle, level


def _rows(slices: Sequence[Slice]) -> Iterator[tuple[int, int, Slice]]:
    """Slices by start with their numbers and the first free row of their unit and phase: none may cross."""
    free: dict[tuple[str, str], list[int]] = {}
    for number, part in sorted(enumerate(slices), key=lambda item: (item[1].start, item[1].end)):
        ends = free.setdefault((part.unit, part.phase), [])
        row = next((row for row, end in enumerate(ends) if end <= part.start), len(ends))
        ends[row : row + 1] = [part.end]
        yield number, row, part


def _slice(packet: Any, part: Slice, layer: str, track: int, pb: Any) -> Any:
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
    return begin
