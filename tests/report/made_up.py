"""A made-up run of any size in the JSON forms of `Run` and `Program`, for tests of what is drawn of it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tpuflow.report import TensorHistogram

__all__ = ["made_up_comparison", "made_up_explanation", "made_up_histograms", "made_up_run"]

CAUSES = ("bank_conflict", "ddr", "dependency", "weight_load", "issue", "unit_busy")
BANKS, WORDS, WORD = 32, 4096, 128

MACHINE = {
    "name": "128x128_asic",
    "clock_hz": 1_000_000_000,
    "array": {"rows": 128, "columns": 128},
    "cache": {"banks": BANKS, "words": WORDS, "word_bytes": WORD},
    "ddr": {"channels": 2, "word_bytes": 32, "clock_hz": 800_000_000},
}

Json = dict[str, Any]


def made_up_run(layers: int, tiles: int, seed: int = 0) -> tuple[Json, Json, list[Json]]:
    """Figures, program and intervals of `layers` layers of `tiles` tiles: weights come, a unit computes."""
    chance = random.Random(seed)
    instructions: list[Json] = []
    intervals: list[Json] = []
    allocations: list[Json] = []
    summaries: list[Json] = []
    clock = dict.fromkeys(("dtl0", "dtl1", "me", "ewp", "pdp"), 150)
    busy = dict.fromkeys(clock, 0)
    loads = dict.fromkeys(clock, 0)
    for layer in range(layers):
        unit = chance.choice(["me", "me", "me", "me", "ewp", "pdp"])
        begin = len(instructions)
        starts, ends = [], []
        for tile in range(tiles):
            line = f"dtl{tile % 2}"
            size = chance.randrange(4, 40) * 1024
            start, length = clock[line], size // 25 + 80
            instructions.append(instruction(line, layer, transfer(size)))
            loads[line] += 1
            intervals.append(interval(line, len(instructions) - 1, layer, start, start + length, "execute"))
            clock[line] = start + length
            busy[line] += length - 80
            length = chance.randrange(200, 900)
            start = max(clock[unit], clock[line])
            instructions.append(
                instruction(unit, layer, work(unit, tile), {"unit": line, "count": loads[line]})
            )
            number = len(instructions) - 1
            intervals.append(interval(unit, number, layer, start - 16, start, "issue"))
            intervals.append(interval(unit, number, layer, start, start + length, "execute"))
            intervals.append(interval(unit, number, layer, start + length, start + length + 60, "drain"))
            clock[unit] = start + length + 16
            busy[unit] += length
            starts.append(start)
            ends.append(start + length)
        summaries.append(summary(layer, unit, starts[0], ends[-1], sum(ends) - sum(starts)))
        size = chance.randrange(1, 8) * 128 * 1024
        address = (layer % 3) * 8 * 128 * 1024 * 4
        last = len(instructions) - 1
        allocations.append(allocation(f"tensor_{layer}", address, size, begin, last))
        allocations.append(allocation(f"weights of block_{layer}/conv", 12 << 20, size // 2, begin, last))
    cycles = max(part["end"] for part in intervals) + 20
    units = [
        {
            "start": 150,
            "end": cycles,
            "busy": busy[unit],
            "instructions": sum(part["unit"] == unit for part in instructions),
            "stalls": dict(zip(CAUSES, stalls(cycles - 150 - busy[unit]), strict=True)),
        }
        for unit in clock
    ]
    program = {
        "instructions": instructions,
        "allocations": allocations,
        "layers": [{"name": layer["name"]} for layer in summaries],
        "machine": MACHINE,
    }
    return report(cycles, busy, units, summaries), program, intervals


def instruction(unit: str, layer: int, content: Json, *waits: Json) -> Json:
    return {"unit": unit, "layer": layer, "waits": list(waits), "work": content}


def transfer(size: int) -> Json:
    return {
        "Transfer": {
            "direction": "load",
            "ddr_space": 0,
            "bytes": size // 4,
            "counts": [2, 2],
            "ddr_address": 0,
        }
    }


def work(unit: str, tile: int) -> Json:
    if unit == "me":
        return {"Matrix": {"pixels": 512, "columns": 128, "first_column": 128 * tile}}
    return {"Pool" if unit == "pdp" else "Vector": {"rows": 7, "first_row": 7 * tile}}


def interval(unit: str, number: int, layer: int, start: int, end: int, phase: str) -> Json:
    return {"unit": unit, "instruction": number, "layer": layer, "start": start, "end": end, "phase": phase}


def allocation(name: str, address: int, size: int, first: int, last: int) -> Json:
    return {"name": name, "address": address, "bytes": size, "first": first, "last": last}


def summary(layer: int, unit: str, start: int, end: int, work: int) -> Json:
    return {
        "name": f"block_{layer}/conv",
        "op": {"me": "conv", "ewp": "binary", "pdp": "depthwise"}[unit],
        "dtype": "int8",
        "unit": unit,
        "start": start,
        "end": end,
        "busy": work,
        "macs": 1000 * work if unit != "ewp" else 0,
        "bound": work * 3 // 4,
        "binding": "array" if unit == "me" else unit,
    }


def stalls(idle: int) -> list[int]:
    shares = (0.05, 0.3, 0.4, 0.1, 0.1)
    parts = [int(idle * share) for share in shares]
    return [*parts, idle - sum(parts)]


def report(cycles: int, busy: dict[str, int], units: list[Json], layers: list[Json]) -> Json:
    bounds = {
        "array": cycles // 3,
        "ddr": cycles * 4 // 5,
        "ewp": cycles // 9,
        "pdp": cycles // 12,
        "ports": cycles // 5,
        "flow": cycles * 3 // 4,
        "segment": cycles // 3,
        "path": cycles // 2,
    }
    bound = max(bounds.values())
    return {
        "program": "made_up",
        "machine": "128x128_asic",
        "level": 5,
        "clock_hz": 1_000_000_000,
        "cycles": cycles,
        "time_us": cycles / 1000,
        "macs": sum(layer["macs"] for layer in layers),
        "utilization": {unit: count / cycles for unit, count in busy.items()},
        "bounds": bounds,
        "bound": bound,
        "binding": "ddr",
        "gap": cycles / bound - 1,
        "stalls": {cause: sum(unit["stalls"][cause] for unit in units) for cause in CAUSES},
        "host_us": 0.0,
        "memory": {
            "cache_peak_bytes": 13 << 20,
            "cache_in_use_bytes": 12 << 20,
            "cache_bytes": BANKS * WORDS * WORD,
            "ddr_read_bytes": 25 << 20,
            "ddr_write_bytes": 4000,
            "spill_bytes": 0,
        },
        "layers": layers,
        "counters": {"units": units, "page_misses": 6400},
        "events": [],
    }


def made_up_comparison(tensors: int) -> Json:
    """What `compare --json` writes of a chain of tensors, every fourth of them unlike, one of them NaN."""
    rows = []
    for number in range(tensors):
        cosine = None if number == 7 else 0.7 if number % 4 == 3 else 0.999
        numbers = {
            "cosine": cosine,
            "euclid": cosine,
            "sqnr": cosine and 30 * cosine,
            "max_error": cosine and 0.5,
        }
        rows.append(
            {
                "name": f"tensor_{number}",
                "normalized": {"cosine": 1.0, "euclid": 1.0, "sqnr": None, "max_error": 0.0},
                "quantized": numbers,
                "equal": True if number == tensors - 1 else None,
            }
        )
    return {"name": "made_up.tpu", "samples": 1, "bit_equal": True, "tensors": rows}


def made_up_histograms(tensors: int) -> list[TensorHistogram]:
    """Distributions of random counts."""
    chance = np.random.default_rng(5)
    found = []
    for number in range(tensors):
        negative, positive = (chance.integers(0, 1000, 64).astype(np.uint64) for _ in range(2))
        spread = 64 * 0.125
        found.append(
            TensorHistogram(
                f"tensor_{number}",
                0.125,
                17,
                negative,
                positive,
                (-spread, spread),
                (-0.5 * spread, 0.75 * spread),
            )
        )
    return found


def made_up_explanation(report: Json) -> Json:
    """What limits every layer of a run, and three changes of which two would help."""
    first = report["layers"][0]["name"]
    layers = [
        {
            "busy": layer["busy"],
            "waits": [{"cycles": 2 * layer["busy"], "unit": "dtl0", "layer": first}] if number % 2 else [],
            "startup": 3,
            "held": 0,
        }
        for number, layer in enumerate(report["layers"])
    ]
    changes = [
        {"what": what, "rebuilt": rebuilt, "cycles": report["cycles"] - saved, "saved": saved}
        for what, rebuilt, saved in (
            ("twice the DDR bandwidth", False, 100),
            ("twice the cache", True, 7),
            ("level 1", True, -900),
        )
    ]
    return {"cycles": report["cycles"], "layers": layers, "changes": changes}
