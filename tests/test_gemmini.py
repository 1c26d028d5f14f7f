"""Tilings replayed by the laws of the machine: counted by hand, simulated, and beside measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gemmini_compare import convolution
from gemmini_replay import ALL, Lacking, Layer, Replay, Rows, Tiling, packets
from gemmini_rows import MACHINE, auto_tiling, mapped_tiling, relative_error, rows, spearman

from tpuflow import _core, quantize
from tpuflow.compiler.machine import Machine
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import load


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine.load(MACHINE)


TILE = Layer(1, 1, 1, 64, 64, 16)
"""A tile of a product: 64 pixels of 64 channels, a page of memory, to 16 channels."""


def transfer(direction: str, ddr: int, space: str, local: int, size: int, waits: str = "") -> str:
    return (
        f"dtl0 layer=0{waits} Transfer((bytes={size} counts=[1 1] ddr_address={ddr} ddr_space=0"
        f" ddr_strides=[0 0] direction={direction} local_address={local} local_space={space}"
        " local_strides=[0 0]))"
    )


def tiled(text: str, tiles: int) -> str:
    """The product of a compiled program in tiles of 64 pixels, two in the cache at a time."""
    text = re.sub(r"codes=\(hi=32767 lo=-32767", "codes=(hi=127 lo=-127", text)
    text = re.sub(r"int16 (\d+/\d+x\d+x16) 32", r"int8 \1 16", text).replace("dtype=int16", "dtype=int8")
    lines = [line for line in text.splitlines() if not line.startswith(("dtl", "allocation"))]
    matrix = next(line for line in lines if line.startswith("me "))
    at = lines.index(matrix)
    (source,), (target,) = (
        re.findall(rf"^{name} .*view=<Ddr\(0\):(\d+)", text, re.MULTILINE) for name in ("input", "output")
    )
    body = [transfer("load", 0, "EwpCache", 0, 128)]
    finished = 1

    def store(tile: int) -> str:
        where = int(target) + 1024 * tile, "Cache", 131072 + tile % 2 * 1024, 1024
        return transfer("store", *where, f" wait=[me:{tile + 1}]")

    for tile in range(tiles):
        slot, free = tile % 2, f" wait=[me:{tile - 1}]" if tile > 1 else ""
        body.append(transfer("load", int(source) + 4096 * tile, "Cache", 4096 * slot, 4096, free))
        body.append(transfer("load", 128, "Cache", 65536 + 1024 * slot, 1024))
        finished += 2
        told = finished
        if tile:
            body.append(store(tile - 1))
            finished += 1
        work = re.sub(r"wait=\[[^]]*\]", f"wait=[dtl0:{told}]", matrix.partition(" ; ")[0])
        work = re.sub(r"pixels=\d+ ", "pixels=64 ", work)
        work = re.sub(r"input=<[^>]*>", f"input=<Cache:{4096 * slot} int8 64/64x1x64 64+0 0+64 0,0>", work)
        output = f"output=<Cache:{131072 + 1024 * slot} int8 64/64x1x16 16+0 0+64 0,0>"
        work = re.sub(r"output=<[^>]*>", output, work)
        body.append(re.sub(r"weights=\(address=\d+", f"weights=(address={65536 + 1024 * slot}", work))
    return "\n".join([*lines[:at], *body, store(tiles - 1), *lines[at + 1 :]]) + "\n"


@pytest.mark.parametrize("tiles", [1, 2, 3, 8])
def test_tiles_that_programs_can_express_take_as_long_in_the_simulator(machine: Machine, tiles: int) -> None:
    layer = replace(TILE, Q=64 * tiles)
    samples = {"x": np.random.default_rng(2).standard_normal((1, 64, 1, layer.Q), dtype=np.float32)}
    single = Config.parse({"quantize": {"array_columns": 1}})
    graph = quantize(load(convolution(layer)), config=single, samples=samples)
    program = _core.Program.from_text(tiled(compile_graph(graph, machine=machine, level=1).to_text(), tiles))
    parameters = 72 + 24 + 128 // 8  # the load of biases and scales, which Gemmini has in its accumulators
    replayed = Replay(machine, layer, Tiling({name: getattr(TILE, name) for name in "RSPQCK"})).cycles()
    issue, page = 1, 24 if tiles > 1 else 0  # the last store finds the page of the one before it open
    assert simulate(program, samples).cycles == parameters + replayed + issue - page


def test_a_tile_counted_by_hand(machine: Machine) -> None:
    whole = Tiling({"R": 1, "S": 1, "P": 1, "Q": 64, "C": 64, "K": 16})
    layer = Layer(1, 1, 1, 64, 64, 16)
    pixels, weights, results = 72 + 24 + 4096 // 8, 72 + 24 + 1024 // 8, 72 + 24 + 1024 // 8
    array = 16 + 4 * 64 + 33  # first weights, four K blocks of 64 pixels, the last sums on their way out
    assert Replay(machine, layer, whole).cycles() == pixels + weights + array + results


def test_loads_hide_behind_the_array(machine: Machine) -> None:
    layer = Layer(3, 3, 16, 16, 16, 64)
    tiling = Tiling({"R": 3, "S": 3, "P": 16, "Q": 16, "C": 16, "K": 16})
    replay = Replay(machine, layer, tiling)
    # 18 x 18 pixels of 16 bytes: one run, two pages; 144 rows of 16 bytes, two cycles each, three pages.
    load = 72 + 2 * 24 + 5184 // 8 + 72 + 3 * 24 + 144 * 2
    store = 72 + 4 * 24 + 256 * 2
    assert replay.cycles() == load + 16 + 4 * 9 * 256 + 33 + store


def test_requests_are_aligned_powers_of_two() -> None:
    assert packets(0, 240) == [64, 64, 64, 64]
    assert packets(0, 16) == [16]
    assert packets(32, 64) == [32, 32]
    assert packets(48, 17) == [16, 16]
    assert packets(3, 3) == [16]


def test_a_line_costs_the_memory_once(machine: Machine) -> None:
    layer, tiling = Layer(1, 1, 16, 16, 64, 64), Tiling(dict.fromkeys("RSPQCK", 16))
    replay = Replay(machine, layer, tiling, ALL)
    quarters = [replay.transfer("weights", Rows(64, first, 16, 64)) for first in (0, 16, 32, 48)]
    assert quarters == [64 * 8, 64 * 4, 64 * 4, 64 * 4]
    without = Replay(machine, layer, tiling, Lacking(requests=True))
    assert [without.transfer("weights", Rows(64, first, 16, 64)) for first in (0, 16)] == [64 * 8, 64 * 8]


def test_pixels_of_different_rows_share_no_block(machine: Machine) -> None:
    layer, tile = Layer(1, 1, 4, 18, 16, 16), {"R": 1, "S": 1, "P": 4, "Q": 18, "C": 16, "K": 16}
    assert Replay(machine, layer, Tiling(tile)).array(tile) == 72
    # Per row 16 pixels and 2 that take 4 cycles; the last block waits for the next 16 rows of weights.
    assert Replay(machine, layer, Tiling(tile), ALL).array(tile) == 4 * 20 + 12


def test_mappings_as_they_are_written() -> None:
    assert auto_tiling("3_3_14_7_105_32_1").sizes == {"R": 3, "S": 3, "P": 14, "Q": 7, "C": 105, "K": 32}
    text = "L3[WIO] C2 P2 K4 - L2[WI] N1 K16X - L1[O] K4 S3 R3 C8 Q14 P7 C16X - L0[W] N1"
    layer = Layer(3, 3, 14, 14, 256, 256, 2)
    found = mapped_tiling(text, 512, 8128, layer)
    assert found.sizes == {"R": 3, "S": 3, "P": 7, "Q": 14, "C": 128, "K": 64}
    assert found.order == "PKQCRS" and found.slots == 1
    assert mapped_tiling(text, 1024, 32768, layer).slots == 2


def test_correlation_and_error() -> None:
    assert spearman([1, 2, 3], [10, 30, 20]) == pytest.approx(0.5)
    assert spearman([1, 2, 2], [1, 5, 5]) == pytest.approx(1)
    assert relative_error([1, 3], [2, 2]) == pytest.approx(0.5)


def test_cycles_measured_on_an_fpga(machine: Machine, shared: Path) -> None:
    path = shared / "bench" / "gemmini" / "firesim_rows.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    found = rows(path)
    measured, analytical = [row.measured for row in found], [row.analytical for row in found]
    layers = {row.layer: row.auto for row in found}  # the tiler took the same tiles for all memories
    assert all(layers[row.layer] == row.auto for row in found)
    once = {layer: Replay(machine, layer, tiling).cycles() for layer, tiling in layers.items()}
    replayed = [once[row.layer] for row in found]
    assert spearman(replayed, measured) >= 0.97 > spearman(analytical, measured)
    assert relative_error(replayed, measured) <= 0.25 < relative_error(analytical, measured)
