"""A trace as a value change dump (VCD, IEEE 1364 section 18) and as tables.

One time unit of the dump is one cycle. Every unit has `state` and `layer`, every port `request`, `grant`,
`write`, `instruction`, `bank`, `word` and `data`, every DDR channel `line` and `page`. A port that asks for
several words in a cycle has as many scopes, `row_feeder_0` and so on. What has no value is `x`, as are the
bits of bytes that nobody wrote.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from tpuflow.execution.debug.replay import UNITS, Replay
from tpuflow.execution.vectors.trace import Channel, Request, State, Trace

__all__ = ["STATES", "channel_rows", "instruction_rows", "port_rows", "state_rows", "value_changes"]

STATES = ("off", "busy")
"""The first numbers of `state` in a dump; the reasons to do no work follow."""
FIRST_SIGN, SIGNS = 33, 94
FLAGS = frozenset({"request", "grant", "write"})
SIZES = {"state": 4, "layer": 32, "instruction": 32, "bank": 16, "word": 32, "line": 3, "page": 64}
SIZES |= dict.fromkeys(FLAGS, 1)
PORT = ("request", "grant", "write", "instruction", "bank", "word", "data")


def value_changes(trace: Trace, channels: int, word_bytes: int) -> Iterator[str]:
    """The dump, line by line."""
    lanes = _lanes(trace)
    scopes: list[tuple[str, tuple[str, ...]]] = [(unit, ("state", "layer")) for unit in UNITS]
    scopes += [(f"{port}_{lane}", PORT) for port, count in lanes.items() for lane in range(count)]
    scopes += [(f"ddr{number}", ("line", "page")) for number in range(channels)]
    codes = (*STATES, *trace.stalls)
    yield from (
        "$version tpuflow golden vectors 1 $end",
        "$comment one time unit is one cycle $end",
        f"$comment state: {', '.join(f'{number} {name}' for number, name in enumerate(codes))} $end",
        f"$comment line: {', '.join(f'{number} {name}' for number, name in enumerate(UNITS))} $end",
        "$timescale 1 ns $end",
        "$scope module tpu $end",
    )
    signs: dict[Variable, str] = {}
    for scope, variables in scopes:
        yield f"$scope module {scope} $end"
        for variable in variables:
            sign = signs[scope, variable] = _sign(len(signs))
            size = SIZES.get(variable, 8 * word_bytes)
            name = variable if size == 1 else f"{variable} [{size - 1}:0]"
            yield f"$var wire {size} {sign} {name} $end"
        yield "$upscope $end"
    yield from ("$upscope $end", "$enddefinitions $end", f"#{trace.begin}", "$dumpvars")
    held = {key: "0" if key[1] in {*FLAGS, "state"} else "x" for key in signs}
    yield from (_change(key, value, signs) for key, value in held.items())
    yield "$end"
    for cycle, changes in _by_cycle(trace, codes):
        changed = [(key, value) for key, value in changes.items() if held[key] != value]
        if cycle > trace.begin and changed:
            yield f"#{cycle}"
        for key, value in changed:
            held[key] = value
            yield _change(key, value, signs)
    yield f"#{trace.end}"


def _lanes(trace: Trace) -> dict[str, int]:
    """How many words each port asks for in one cycle, at most; at least one."""
    counts = Counter((request.cycle, request.port) for request in trace.requests)
    most = dict.fromkeys(trace.ports, 1)
    for (_, port), count in counts.items():
        most[port] = max(most[port], count)
    return most


def _sign(number: int) -> str:
    """The number of a variable in printable signs."""
    first = chr(FIRST_SIGN + number % SIGNS)
    return first if number < SIGNS else first + _sign(number // SIGNS - 1)


Variable = tuple[str, str]
"""Scope and name."""
Changes = dict[Variable, str]


def _change(key: Variable, value: str, signs: Mapping[Variable, str]) -> str:
    return f"{value}{signs[key]}" if key[1] in FLAGS else f"b{value} {signs[key]}"


def _by_cycle(trace: Trace, codes: Sequence[str]) -> Iterator[tuple[int, Changes]]:
    """Values by scope and variable, for every cycle in which something may change."""
    found: dict[int, Changes] = defaultdict(dict)
    for state in trace.states:
        layer = "x" if state.layer is None else f"{state.layer:b}"
        found[state.cycle] |= {
            (state.unit, "state"): f"{codes.index(state.state):b}",
            (state.unit, "layer"): layer,
        }
    for user in trace.channels:
        line = "x" if user.line is None else f"{UNITS.index(user.line):b}"
        page = "x" if user.line is None else f"{user.page:b}"
        found[user.cycle] |= {(f"ddr{user.channel}", "line"): line, (f"ddr{user.channel}", "page"): page}
    taken: Counter[tuple[int, str]] = Counter()
    for request in trace.requests:
        scope = f"{request.port}_{taken[request.cycle, request.port]}"
        taken[request.cycle, request.port] += 1
        # Nothing is asked for in the next cycle, unless a request says so.
        following = found[request.cycle + 1]
        for variable in ("request", "grant"):
            following.setdefault((scope, variable), "0")
        found[request.cycle] |= {
            (scope, name): value for name, value in zip(PORT, _values(request), strict=True)
        }
    return iter(sorted((cycle, each) for cycle, each in found.items() if cycle < trace.end))


def _values(request: Request) -> tuple[str, ...]:
    bits = "".join(
        f"{byte:08b}" if seen else "xxxxxxxx"
        for byte, seen in zip(reversed(request.data), reversed(request.known), strict=True)
    )
    return (
        "1",
        f"{request.granted:b}",
        f"{request.write:b}",
        f"{request.instruction:b}",
        f"{request.bank:b}",
        f"{request.word:b}",
        bits,
    )


Row = Iterable[object]


def _lines(names: Row, rows: Iterable[Row]) -> Iterator[str]:
    return (",".join(str(cell) for cell in row) for row in chain([names], rows))


def state_rows(states: Sequence[State]) -> Iterator[str]:
    """States of units as a table."""
    rows = ((each.cycle, each.unit, each.state, "" if each.layer is None else each.layer) for each in states)
    return _lines(("cycle", "unit", "state", "layer"), rows)


def port_rows(requests: Sequence[Request]) -> Iterator[str]:
    """Requests of ports as a table."""
    rows = (
        (
            each.cycle,
            each.port,
            each.instruction,
            "write" if each.write else "read",
            each.bank,
            each.word,
            int(each.granted),
            _hexadecimal(each),
        )
        for each in requests
    )
    return _lines(("cycle", "port", "instruction", "access", "bank", "word", "granted", "data"), rows)


def channel_rows(channels: Sequence[Channel]) -> Iterator[str]:
    """Users of DDR channels as a table."""
    rows = ((each.cycle, each.channel, each.line or "", each.page if each.line else "") for each in channels)
    return _lines(("cycle", "channel", "line", "page"), rows)


def instruction_rows(replay: Replay, begin: int, end: int) -> Iterator[str]:
    """Instructions under way between two cycles as a table, by their first cycle."""
    rows = (
        (each.number, each.unit, each.layer, each.begin, each.end)
        for number in replay.order
        for each in (replay.instructions[number],)
        if each.begin < end and each.end > begin
    )
    return _lines(("instruction", "unit", "layer", "begin", "end"), rows)


def _hexadecimal(request: Request) -> str:
    """A word as `$readmemh` has it."""
    pairs = zip(reversed(request.data), reversed(request.known), strict=True)
    return "".join(f"{byte:02x}" if seen else "xx" for byte, seen in pairs)
