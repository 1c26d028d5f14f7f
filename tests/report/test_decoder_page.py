"""The page of a decoder: prefill and decode apart, and what a step costs behind any number of tokens."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from frontend.decoders import VOCABULARY, decoder
from report.test_page import Page
from tpuflow.cli.commands.report import report as report_command
from tpuflow.execution.phases import PhaseCost, phase_cost
from tpuflow.execution.simulation import simulate
from tpuflow.pipeline.decoders import build_decoder, phases_of
from tpuflow.pipeline.request import Request
from tpuflow.report import render_decoder_page

if TYPE_CHECKING:
    from pathlib import Path

    from tpuflow.partitioning.storage import AnyProgram
    from tpuflow.pipeline.bundle import Bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("decoder")
    onnx.save(decoder("exported", layers=2), folder / "d.onnx")
    np.savez(folder / "ids.npz", ids=np.random.default_rng(0).integers(0, VOCABULARY, (4, 16)))
    request = Request(folder / "d.onnx", calibration=folder / "ids.npz", verify=False)
    return build_decoder(request, phases_of(4, 1, [8, 16])).bundle


@pytest.fixture(scope="module")
def costs(bundle: Bundle) -> dict[str, PhaseCost]:
    return {name: phase_cost(name, bundle.program(name), 4) for name in bundle.programs}


def memory(program: AnyProgram, position: int) -> tuple[int, int, int]:
    """Cycles, and bytes read and written, of a run."""
    run = simulate(program.at(position), values=False).report  # type: ignore[union-attr]
    return run["cycles"], run["memory"]["ddr_read_bytes"], run["memory"]["ddr_write_bytes"]


@pytest.mark.slow
def test_traffic_is_weights_cache_and_the_rest(bundle: Bundle, costs: dict[str, PhaseCost]) -> None:
    """Of every position all bytes are told apart: weights stay, the cache grows by its rows."""
    for name, cost in costs.items():
        program, tokens = bundle.program(name), cost.phase.sequence
        assert cost.runs[0].position == 0
        assert cost.runs[-1].position == cost.phase.past
        for run in cost.runs:
            cycles, read, written = memory(program, run.position)
            assert (run.cycles, run.traffic.total) == (cycles, read + written)
            assert run.traffic.cache == cost.row_bytes * (run.position + tokens)
            assert run.traffic.weights == cost.runs[0].traffic.weights > 0
            assert run.traffic.activations == cost.runs[0].traffic.activations > 0
    assert costs["decode1_context8"].row_bytes == costs["prefill4_context16"].row_bytes > 0


@pytest.mark.slow
def test_the_page_shows_prefill_and_decode_apart(costs: dict[str, PhaseCost]) -> None:
    text = render_decoder_page("tiny <decoder>", list(costs.values()))
    page = Page(text)
    assert not page.open
    assert "tiny &lt;decoder&gt;" in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert re.findall(r"<h2>([^<]+)</h2>", text) == [
        "Phases", "Latency and context", "prefill4_context16", "decode1_context16",
    ]  # fmt: skip
    for name, cost in costs.items():
        assert text.count(f"<td>{name}</td>") == 1
        assert f'<td class="number">{cost.runs[-1].cycles:,}</td>' in text
    decode = [cost for cost in costs.values() if cost.phase.sequence == 1]
    dots = sum(len(cost.runs) for cost in decode) + 3 * len(decode[-1].runs)
    assert text.count('<circle class="dot') == dots
    crossing = -(-decode[-1].runs[-1].traffic.weights // decode[-1].row_bytes)
    assert f"only from {crossing:,} tokens on, beyond the context of 16" in text
    assert "src=" not in text
    assert "http" not in text


@pytest.mark.slow
def test_where_the_cache_outweighs_the_weights(costs: dict[str, PhaseCost]) -> None:
    cost = costs["decode1_context16"]
    weights = cost.row_bytes * 10 - 3
    runs = tuple(replace(run, traffic=replace(run.traffic, weights=weights)) for run in cost.runs)
    text = render_decoder_page("small", [replace(cost, runs=runs)])
    assert "from <b>10 tokens</b> on" in text
    assert "outweigh" not in render_decoder_page("none", [replace(cost, row_bytes=0)])


@pytest.mark.slow
def test_the_command_writes_the_page_of_a_bundle(bundle: Bundle, tmp_path: Path) -> None:
    bundle.save(tmp_path / "d.tpub")
    report_command(tmp_path / "d.tpub")
    assert "prefill4_context16" in (tmp_path / "d.html").read_text()
    with pytest.raises(Exception, match="is about it alone: leave out all but -o"):
        report_command(tmp_path / "d.tpub", tmp_path / "d.tpub")
