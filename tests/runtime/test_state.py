"""Caches that stay on the device: steps give the bits of the graph with its past given, at every position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from frontend.decoders import VOCABULARY
from tpuflow import _core
from tpuflow.errors import DeviceError, FileError, SampleError
from tpuflow.execution.decoder import Decoder, PhaseLevel, phase_feed
from tpuflow.execution.graph_decoder import GraphDecoder, graph_decoder
from tpuflow.execution.levels import Level, graph_level
from tpuflow.partitioning import Partitioned
from tpuflow.pipeline.decoders import BuiltDecoder
from tpuflow.pipeline.stateful import StatefulDecoder
from tpuflow.runtime import Device, State

# Their decoder takes ten seconds to build.
pytestmark = pytest.mark.slow

Array = NDArray[Any]
PAST = {f"past_key_values.{layer}.{kind}" for layer in range(2) for kind in ("key", "value")}


def step_feed(level: Level, tokens: list[int], position: int) -> dict[str, Array]:
    return phase_feed(level, PhaseLevel.of(level).phase, None, tokens, position)


@pytest.mark.slow
def test_steps_give_the_bits_of_the_graph_with_its_past_given(built: BuiltDecoder) -> None:
    part = built.parts["decode1_context16"]
    level = graph_level(part.graph)
    phase = PhaseLevel.of(level).phase
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 16).tolist()
    for mode in ("fast", "exact"):
        with Device.open(mode=mode) as device, device.load(part.program) as program:
            inference = program.inference()
            caches: dict[str, Array] = {}
            cycles: list[int] = []
            for position, token in enumerate(ids):
                feed = phase_feed(level, phase, caches, [token], position)
                expected = level.run(feed)
                found = inference.step(step_feed(level, [token], position))
                assert set(found) == {"logits"}
                assert found["logits"].tobytes() == expected["logits"].tobytes(), position
                cycles.append(found.cycles or 0)
                for name in PAST:
                    row = expected[name.replace("past_key_values", "present")]
                    held = caches.setdefault(name, np.zeros((1, 2, 16, 16), np.float32))
                    held[:, :, position : position + 1] = row
                    assert inference.state.rows == position + 1
                    assert inference.state.read(name).tobytes() == held[:, :, : position + 1].tobytes()
            if mode == "exact":
                # The more rows count, the more bytes are loaded.
                assert cycles[0] < cycles[-1]
            # From the middle on again: rows behind the position do not count.
            again = inference.step(step_feed(level, [ids[7]], 7), 7)
            cut = {name: held[:, :, :7] for name, held in caches.items()}
            expected = level.run(phase_feed(level, phase, cut, [ids[7]], 7))
            assert again["logits"].tobytes() == expected["logits"].tobytes()
            assert inference.state.rows == 8
            with pytest.raises(SampleError, match="position 9 lies behind the 8 rows of the state"):
                inference.step(step_feed(level, [1], 9), 9)


def test_a_row_takes_no_more_than_its_heads(built: BuiltDecoder) -> None:
    program = built.parts["decode1_context16"].program
    assert not isinstance(program, Partitioned)
    read = [
        json.loads(_core.simulate(program.at(position), [], values=False).to_json())["memory"]
        for position in range(16)
    ]
    row = 2 * 16  # bytes of two heads; of two caches in each of two layers
    assert np.diff([each["ddr_read_bytes"] for each in read]).tolist() == [4 * row] * 15
    assert {each["ddr_write_bytes"] for each in read} == {4 * row + 128}  # and a word of logits


def test_programs_of_a_bundle_share_the_state(built: BuiltDecoder) -> None:
    programs, graphs = [], []
    for part in built.parts.values():
        assert not isinstance(part.program, Partitioned)
        programs.append(part.program)
        graphs.append(graph_level(part.graph))
    assert [program.last_position for program in programs] == [None, 3, 4, 7, 12, 15]
    ids = np.random.default_rng(2).integers(0, VOCABULARY, 16).tolist()
    again = StatefulDecoder(programs)
    for prompt in (1, 3, 4, 6, 9, 16):
        ways = [Decoder(graphs), StatefulDecoder(programs), graph_decoder(graphs)]
        assert isinstance(ways[2], GraphDecoder)
        assert len({way.step(ids[:prompt]).tobytes() for way in ways}) == 1, prompt
        for token in ids[prompt:]:
            assert len({way.step([token]).tobytes() for way in ways}) == 1, (prompt, ways[0].position)
    expected = Decoder(graphs).step(ids[:3]).tobytes()
    for used in (again, graph_decoder(graphs)):
        used.step(ids)
        used.reset()
        assert used.step(ids[:3]).tobytes() == expected


def test_states_are_saved_restored_read_and_written(built: BuiltDecoder, tmp_path: Path) -> None:
    part, longer = built.parts["decode1_context8"], built.parts["decode1_context16"]
    level = graph_level(part.graph)
    with Device.open() as device, device.load(part.program) as program, device.load(longer.program) as other:
        one = program.inference()
        for position, token in enumerate((3, 1, 4)):
            one.step(step_feed(level, [token], position))
        one.state.save(tmp_path / "rows.state")
        two = program.inference()
        two.state.restore(tmp_path / "rows.state")
        three = other.inference(state=other.state())
        three.state.write({name: one.state.read(name) for name in one.state.names})
        assert [each.state.rows for each in (one, two, three)] == [3, 3, 3]
        feed = step_feed(level, [5], 3)
        expected = one.step(feed)["logits"].tobytes()
        assert two.step(feed)["logits"].tobytes() == expected
        assert three.step(step_feed(graph_level(longer.graph), [5], 3))["logits"].shape == (1, 1, VOCABULARY)
        for name in PAST:
            assert one.state.read(name).tobytes() == two.state.read(name).tobytes()
        # Eight positions are the whole context.
        for position in range(4, 8):
            one.step(step_feed(level, [2], position))
        with pytest.raises(
            SampleError, match=r"position 8 lies beyond the context: the program reaches 7 rows"
        ):
            one.step(step_feed(level, [2], 7))
        one.state.reset()
        assert one.state.rows == 0
        assert one.state.read("past_key_values.0.key").shape == (1, 2, 0, 16)
        _refusals(one.state, tmp_path)
        with pytest.raises(SampleError, match="lies before the first row"):
            one.step(step_feed(level, [2], 0), -1)
        with pytest.raises(SampleError, match=r'unknown input "past_key_values\.0\.key"'):
            one.step({**feed, "past_key_values.0.key": np.zeros((1, 2, 7, 16), np.float32)})


def _refusals(state: State, folder: Path) -> None:
    saved = (folder / "rows.state").read_bytes()
    for number, damaged in enumerate((b"", saved[:-1], saved[:40], saved[:-1] + b"\x7f", b"{}\n" + saved)):
        (folder / "bad.state").write_bytes(damaged)
        with pytest.raises(FileError, match=r"bad\.state: not a saved state, or one that was cut or altered"):
            state.restore(folder / "bad.state")
        assert state.rows == 0, number
    (folder / "bad.state").write_bytes(saved.replace(b"past_key_values.0.key", b"past_key_values.9.key"))
    with pytest.raises(FileError, match=r"another program: 4 of them, first past_key_values\.9\.key"):
        state.restore(folder / "bad.state")
    with pytest.raises(FileError, match="none"):
        state.restore(folder / "none.state")
    rows = {name: np.zeros((1, 2, 3, 16), np.float32) for name in state.names}
    first, *_ = rows
    with pytest.raises(SampleError, match="rows of all states are written at once"):
        state.write({first: rows[first]})
    with pytest.raises(SampleError, match=r"as many rows as each other, not \[2, 3\]"):
        state.write({**rows, first: rows[first][:, :, :2]})
    with pytest.raises(SampleError, match=r"float64 \[1, 2, 3, 16\], the program has float32"):
        state.write({**rows, first: rows[first].astype(np.float64)})
    with pytest.raises(SampleError, match='no state "logits"'):
        state.read("logits")


def test_a_program_without_a_past_has_no_state(built: BuiltDecoder) -> None:
    part = built.parts["prefill4_context4"]
    with Device.open() as device, device.load(part.program) as program:
        with pytest.raises(SampleError, match=r'program ".*" has no state'):
            program.inference().step({})
        inference = program.inference()
        inference.close()
        with pytest.raises(DeviceError, match="was closed"):
            inference.step({})
