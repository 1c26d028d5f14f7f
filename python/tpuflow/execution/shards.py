"""A level run on shards of the samples, in processes that open it for themselves.

with LocalProcesses(2) as executor:
outputs = Sharded.of(level, path, executor)(samples)      # equal to run_samples(level, samples)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tpuflow.execution.levels import FloatLevel, open_level, run_feeds
from tpuflow.executors import Shared, local_copy, run_all
from tpuflow.io.samples import joined_samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from tpuflow.execution.levels import Level
    from tpuflow.executors import Executor
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples

__all__ = ["Sharded"]


@dataclass(frozen=True)
class Sharded:
    """Runs a level on samples in an executor.

    Attributes:
        level: What is run, as it is open here.
        file: The file other processes open it from; of a float model, the model itself, which is shared.
        executor: Where it runs.
    """

    level: Level
    file: Path | Shared[FloatModel]
    executor: Executor

    @classmethod
    def of(cls, level: Level, path: Path, executor: Executor) -> Sharded:
        """A level that was opened from a file."""
        if isinstance(level, FloatLevel):
            return cls(level, executor.share(level.model), executor)
        executor.ship([path])
        return cls(level, path, executor)

    def __call__(
        self, samples: Samples, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Outputs of all samples, as `run_samples` gives them."""
        shards = samples.shards()
        done = 0

        def step(at: int, _found: object) -> None:
            nonlocal done
            done += shards[at].count
            if progress is not None:
                progress(done, samples.count)

        feeds: dict[str, list[NDArray[Any]]] = {}
        for found in run_all(self.executor, _run, [(self.file, shard) for shard in shards], step):
            for name, arrays in found.items():
                feeds.setdefault(name, []).extend(arrays)
        return joined_samples(feeds, samples, self.level.dynamic)


def _run(file: Path | Shared[FloatModel], shard: Samples) -> dict[str, list[NDArray[Any]]]:
    key = file.key if isinstance(file, Shared) else file
    _FILES[key] = file
    return run_feeds(_level(key), shard)


_FILES: dict[Path | str, Path | Shared[FloatModel]] = {}


@cache
def _level(key: Path | str) -> Level:
    """The level, opened once a process."""
    file = _FILES[key]
    return FloatLevel(file.value) if isinstance(file, Shared) else open_level(local_copy(file))
