"""The trace, read back by the schema the format is published with."""

from __future__ import annotations

from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from report.made_up import made_up_run
from tpuflow.report import Timeline, encode_trace, timeline, timeline_of_all


def read(charts: Timeline, clock_hz: int = 1_000_000_000) -> tuple[dict[int, str], list[Any]]:
    """Names of the tracks, and all packets of events by time."""
    trace = pb.Trace()
    trace.ParseFromString(encode_trace(charts, clock_hz, "net"))
    assert trace.IsInitialized()
    names = {
        packet.track_descriptor.uuid: packet.track_descriptor.name
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    events = [packet for packet in trace.packet if packet.HasField("track_event")]
    assert len(names) + len(events) == len(trace.packet)
    assert all(packet.trusted_packet_sequence_id for packet in trace.packet)
    return names, sorted(events, key=lambda packet: packet.timestamp)


def arguments(event: Any) -> dict[str, Any]:
    return {note.name: getattr(note, note.WhichOneof("value")) for note in event.debug_annotations}


@pytest.mark.feature("SIM-05")
def test_the_trace_holds_every_interval_and_no_slices_cross() -> None:
    report, program, intervals = made_up_run(12, 5)
    names, events = read(timeline(program, intervals), report["clock_hz"])
    begun: dict[int, list[int]] = {}
    slices = 0
    for packet in events:
        event = packet.track_event
        assert event.track_uuid in names
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            assert not begun.get(event.track_uuid), names[event.track_uuid]
            begun[event.track_uuid] = [packet.timestamp]
            slices += 1
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            assert begun[event.track_uuid].pop() <= packet.timestamp
    assert slices == len(intervals)
    assert {"ME matrix engine", "DTL0 DMA line 0", "cache in use", "DDR read"} <= set(names.values())
    assert max(packet.timestamp for packet in events) == max(part["end"] for part in intervals)


@pytest.mark.parametrize("segments", [1, 3])
def test_flows_lead_from_a_token_to_who_waits_for_it(segments: int) -> None:
    programs, intervals = [], []
    for number in range(segments):
        _, program, own = made_up_run(4, 5, seed=number)
        programs.append(program)
        later = 10**6 * number
        intervals += [
            part | {"segment": number, "start": part["start"] + later, "end": part["end"] + later}
            for part in own
        ]
    _, events = read(timeline_of_all(programs, intervals))
    begun, ended = {}, {}
    for packet in events:
        event = packet.track_event
        for flow in event.flow_ids:
            assert flow not in begun
            begun[flow] = arguments(event)
        for flow in event.terminating_flow_ids:
            ended[flow] = arguments(event)
    assert set(begun) == set(ended)
    found = []
    for flow, producer in begun.items():
        segment = producer["start_cycle"] // 10**6
        assert ended[flow]["start_cycle"] // 10**6 == segment
        assert producer["end_cycle"] <= ended[flow]["start_cycle"]
        found.append((segment, producer["instruction"], ended[flow]["instruction"]))
    # The slow way: count tokens from the start of the program for every wait.
    wanted = []
    for segment, program in enumerate(programs):
        for number, instruction in enumerate(program["instructions"]):
            for wait in instruction["waits"]:
                units = [i for i, each in enumerate(program["instructions"]) if each["unit"] == wait["unit"]]
                wanted.append((segment, units[wait["count"] - 1], number))
    assert sorted(found) == sorted(wanted) and found


def test_counters_of_bandwidth_add_up_to_all_bytes() -> None:
    _, program, intervals = made_up_run(6, 4)
    charts = timeline(program, intervals)
    names, events = read(charts)
    totals = dict.fromkeys(("DDR read", "DDR written"), 0.0)
    level = dict.fromkeys(totals, (0, 0.0))
    for packet in events:
        name = names[packet.track_event.track_uuid]
        if name in totals:
            since, rate = level[name]
            totals[name] += rate * (packet.timestamp - since)
            level[name] = packet.timestamp, packet.track_event.double_counter_value
    assert totals["DDR read"] == pytest.approx(sum(part.moved for part in charts.slices if part.moved > 0))
    assert totals["DDR written"] == -sum(part.moved for part in charts.slices if part.moved < 0)
    assert all(rate == 0.0 for _, rate in level.values())


@pytest.mark.feature("SIM-06")
def test_the_counter_of_the_cache_is_what_tensors_own() -> None:
    _, program, intervals = made_up_run(6, 4)
    charts = timeline(program, intervals)
    names, events = read(charts)
    for packet in events:
        if names[packet.track_event.track_uuid] == "cache in use":
            at = packet.timestamp
            owned = sum(part.size for part in charts.allocations if part.start <= at < part.end)
            assert packet.track_event.counter_value == owned


def test_loads_of_packed_weights_are_told_with_their_bytes() -> None:
    _, program, intervals = made_up_run(4, 5)
    place = {"ddr_space": 1, "ddr_address": 0}
    expand = {"rows": 70, "row_bytes": 16, "block": 32, "codes": "ZeroPoints", **place}
    next(each for each in program["instructions"] if "Transfer" in each["work"])["work"] = {"Expand": expand}
    slices = timeline(program, intervals).slices
    told = {part.text: part.moved for part in slices if part.moved}
    assert told["expand 70 rows of 16 bytes of DDR1"] == 3 * 24 + 70 * 8
