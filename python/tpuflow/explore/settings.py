"""A study as data: which networks, which space, what counts, and how the search goes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.compiler.machine import Machine
from tpuflow.energy import load_table
from tpuflow.explore.objectives import COMBINED, OBJECTIVES
from tpuflow.explore.space import ExploreError, Space, parsed_values
from tpuflow.explore.strategies import STRATEGIES
from tpuflow.io.files import parse_toml, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Settings", "load_settings"]


@dataclass(frozen=True)
class Settings:
    """The settings of a study.

    Attributes:
        networks: ONNX models or saved graphs (`.tpuq`).
        space: What is chosen from.
        objectives: Of `OBJECTIVES`; all are minimised but throughput.
        machine: Preset or file that every point changes.
        levels: Optimisation levels, rising; what counts is the last.
        strategy: Of `STRATEGIES`.
        trials: How many points strategies other than the grid take.
        seed: Of random choices, of generated samples and of schedules.
        wave: Trials that are decided on together.
        combine: How several networks become one figure: `geomean` or `worst`.
        energy_table: Of energy and area: `45nm`, `7nm` or a file.
        search_steps: Most steps of every search of level 5, see `tpuflow.compiler.Schedule`; usual are 200.
        prune: Whether points are discarded by their lower bounds.
        data: Samples that accuracy is measured with, of the one network there is then.
    """

    networks: tuple[str, ...]
    space: Space
    objectives: tuple[str, ...] = ("latency", "area")
    machine: str = "128x128_asic"
    levels: tuple[int, ...] = (1, 5)
    strategy: str = "grid"
    trials: int = 100
    seed: int = 0
    wave: int = 8
    combine: str = "geomean"
    energy_table: str = "45nm"
    search_steps: int = 0
    prune: bool = True
    data: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of networks in results: their files, with the folder where files have one name."""
        paths = [Path(network) for network in self.networks]
        stems = [path.stem for path in paths]
        return tuple(
            path.stem if stems.count(path.stem) == 1 else f"{path.parent.name}_{path.stem}" for path in paths
        )

    def __post_init__(self) -> None:
        """Checks everything that can be known beforehand.

        Raises:
            TpuflowError: A value makes no sense; the message names the key.
        """
        if not self.networks:
            raise ExploreError("networks: there are none")
        if len(set(self.names)) < len(self.names):
            twice = max(self.names, key=self.names.count)
            raise ExploreError(f"networks: two are called {twice}: rename a file")
        _among("objectives", self.objectives, tuple(OBJECTIVES))
        _among("strategy", (self.strategy,), tuple(STRATEGIES))
        _among("combine", (self.combine,), tuple(COMBINED))
        if tuple(self.levels) not in ((1,), (5,), (1, 5)):
            raise ExploreError(f"levels {list(self.levels)}: write [1], [5] or [1, 5]")
        for key in ("trials", "wave"):
            if getattr(self, key) < 1:
                raise ExploreError(f"{key} {getattr(self, key)}: there must be at least one")
        for key in ("seed", "search_steps"):
            if getattr(self, key) < 0:
                raise ExploreError(f"{key} {getattr(self, key)} is negative")
        if "accuracy" in self.objectives:
            if not self.data:
                raise ExploreError("objective accuracy: needs samples to measure with: give data (--data)")
            if len(self.networks) > 1 or self.networks[0].endswith(".tpuq"):
                raise ExploreError("objective accuracy: needs one network, as an ONNX model")
        elif self.data:
            raise ExploreError(f"data {self.data}: is read for the objective accuracy alone: leave it out")
        load_table(self.energy_table)
        self.space.check_fields(self.base)

    @property
    def base(self) -> Machine:
        """The machine that every point changes."""
        return Machine.load(self.machine)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON holds it."""
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "space"}
        return plain | {
            "space": {name: list(values) for name, values in self.space.fields.items()},
            "constraints": list(self.space.constraints),
        }


def _among(key: str, given: Sequence[str], known: Sequence[str]) -> None:
    if not given or len(set(given)) < len(given):
        raise ExploreError(f"{key}: write each once, of {', '.join(known)}")
    for name in given:
        if name not in known:
            raise ExploreError(f'{key} "{name}": choose of {", ".join(known)}')


def load_settings(path: str | Path) -> Settings:
    """Reads a study's file: keys of `Settings`, and the tables `[space]` and `constraints = [...]`.

    Raises:
        TpuflowError: The file cannot be read, a key is unknown or of another type, a value makes no sense.
    """
    path = Path(path)
    content = parse_toml(read_text(path, ExploreError), path, ExploreError)
    try:
        return settings_of(content, path.parent)
    except ExploreError as error:
        raise ExploreError(f"{path}: {error}") from None


def settings_of(content: Mapping[str, Any], folder: Path) -> Settings:
    """Settings of nested values; relative paths are those beside `folder`.

    Raises:
        TpuflowError: As for `load_settings`.
    """
    types: dict[str, type] = {
        "networks": list, "objectives": list, "levels": list, "constraints": list, "space": dict,
        "machine": str, "strategy": str, "combine": str, "energy_table": str, "data": str,
        "trials": int, "seed": int, "wave": int, "search_steps": int, "prune": bool,
    }  # fmt: skip
    for key, value in content.items():
        if key not in types:
            raise ExploreError(f'no key "{key}", there are {", ".join(types)}')
        if not isinstance(value, types[key]) or (types[key] is int and isinstance(value, bool)):
            raise ExploreError(f"{key} {value}: not a {types[key].__name__}")
    if "space" not in content:
        raise ExploreError("no table [space]: there are no points to explore")
    given = _flat(content["space"])
    space = Space(
        {name: parsed_values(name, values) for name, values in given.items()},
        tuple(map(str, content.get("constraints", ()))),
    )
    others = {key: value for key, value in content.items() if key not in {"space", "constraints", "networks"}}
    lists = {key: tuple(value) for key, value in others.items() if isinstance(value, list)}
    networks = tuple(str(folder / str(name)) for name in content.get("networks", ()))
    beside = folder / str(others.get("machine", ""))
    if "machine" in others and beside.is_file():
        others["machine"] = str(beside)
    if others.get("data"):
        others["data"] = str(folder / str(others["data"]))
    return Settings(networks, space, **others | lists)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields by `table.key`: `[space.cache] bytes = ..` is `"cache.bytes" = ..`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and not {"low", "high"} & value.keys():
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
