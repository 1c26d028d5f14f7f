"""Masks, positions and caches of decoders get their grids from what they mean, not from what samples show."""

from __future__ import annotations

import numpy as np
import pytest

import tpuflow
from conftest import slow_except
from frontend.decoders import VOCABULARY, decoder
from tpuflow._core import Graph
from tpuflow.execution.decoder import PhaseLevel, phase_feed
from tpuflow.execution.levels import FloatLevel, GraphLevel
from tpuflow.frontend import FloatModel, specialize

MASKS = [-np.inf, float(np.finfo(np.float32).min), -1e9, -1e4]
Feed = dict[str, np.ndarray]


def _made(
    sequence: int, masked: float, starts: range, *, fused: bool = False
) -> tuple[FloatModel, Graph, list[Feed]]:
    """A phase in a context of 16 quantised by tokens from these places on, and these feeds."""
    model = tpuflow.load(specialize(decoder("exported", 1, masked, fused=fused), sequence, 16))
    level, rng = PhaseLevel.of(FloatLevel(model)), np.random.default_rng(3)
    feeds = []
    for start in starts:
        caches = {cache.past: rng.standard_normal((1, 2, 16, 16)).astype("f") for cache in level.caches}
        tokens = rng.integers(0, VOCABULARY, sequence).tolist()
        feeds.append(phase_feed(level.level, level.phase, caches, tokens, start))
    samples = {name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]}
    return model, tpuflow.quantize(model, samples=samples), feeds


@pytest.mark.parametrize("sequence", slow_except([1], [1, 3]))
@pytest.mark.slow
def test_what_a_mask_adds_makes_no_difference(sequence: int) -> None:
    outputs = []
    for masked in MASKS:
        model, graph, feeds = _made(sequence, masked, range(2, 12))
        found = [GraphLevel(graph).run(feed)["logits"] for feed in feeds]
        wanted = [FloatLevel(model).run(feed)["logits"] for feed in feeds]
        noise = np.square(np.array(found) - wanted).sum() / np.square(wanted).sum()
        assert 10 * np.log10(noise) < -24, masked
        outputs.append(np.array(found))
    for each in outputs[1:]:
        np.testing.assert_allclose(each, outputs[0], atol=0.02 * np.abs(outputs[0]).max())


@pytest.mark.parametrize("sequence", [1, 3])
def test_rows_that_are_part_of_one_product_are_states(sequence: int) -> None:
    """Values and keys of very different range lie on one grid in the product, on their caches' behind it."""
    model, graph, feeds = _made(sequence, -1e9, range(2, 12), fused=True)
    assert len(graph.states) == 2
    for past, new in graph.states:
        ours, theirs = (graph.tensors[number] for number in (past, new))
        assert (ours.scale, ours.zero_point) == (theirs.scale, theirs.zero_point)
    found = [GraphLevel(graph).run(feed)["logits"] for feed in feeds]
    wanted = [FloatLevel(model).run(feed)["logits"] for feed in feeds]
    noise = np.square(np.array(found) - wanted).sum() / np.square(wanted).sum()
    assert 10 * np.log10(noise) < -15


def test_places_that_are_left_out_do_not_count() -> None:
    _, graph, feeds = _made(1, -1e9, range(2, 12))
    level, rng = GraphLevel(graph), np.random.default_rng(0)
    for start, feed in zip(range(2, 12), feeds, strict=True):
        other = dict(feed)
        for name in feed:
            if name.startswith("past"):
                other[name] = feed[name].copy()
                other[name][..., start:, :] = rng.standard_normal(other[name][..., start:, :].shape)
        np.testing.assert_array_equal(level.run(other)["logits"], level.run(feed)["logits"])


def test_angles_have_the_grid_of_all_positions() -> None:
    _, graph, _ = _made(1, -1e9, range(1))  # the first position alone: its sines are all 0
    rows = [tensor for tensor in graph.tensors if tensor.name.endswith(("cos/rows", "sin/signed/rows"))]
    assert len(rows) == 2
    for tensor in rows:
        assert tensor.dtype == "int16"
        assert tensor.scale is not None
        assert 32767 * tensor.scale[0] >= 0.99


def test_past_and_present_share_a_grid() -> None:
    _, graph, _ = _made(1, -1e9, range(2, 12))
    grids = {tensor.name: (tensor.dtype, tensor.scale, tensor.zero_point) for tensor in graph.tensors}
    for kind in ("key", "value"):
        past = grids[f"past_key_values.0.{kind}"]
        assert past[0] == "int8"
        assert past == grids[f"present.0.{kind}/all"]
        # What a run appends has the codes of the past, whatever else reads the new rows.
        sources = {tensor.source_json: tensor for tensor in (graph.tensors[index] for index in graph.outputs)}
        (rows,) = (each for text, each in sources.items() if f"present.0.{kind}" in (text or ""))
        assert past == (rows.dtype, rows.scale, rows.zero_point)


def test_new_rows_of_caches_are_written_where_they_are_made() -> None:
    _, graph, _ = _made(3, -1e9, range(2, 12))
    made_by = {layer.output: at for at, layer in enumerate(graph.layers)}
    names = [tensor.name for tensor in graph.tensors]
    states = [at for at in graph.outputs if names[at] != "logits"]
    logits = made_by[next(at for at in graph.outputs if names[at] == "logits")]
    assert len(states) == 2
    # The score of the new keys, for one, comes after these.
    softmax = next(at for at, layer in enumerate(graph.layers) if layer.op == "softmax")
    assert all(made_by[at] < softmax < logits for at in states)
